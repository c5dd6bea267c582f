"""The llama-servers scripts/latency.py starts for itself, each on a private socket, and stops again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket as sockets
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from openjev_cli import argv, binary, capacity, child, runtime

START_LIMIT_S = 300.0


@dataclass
class Server:
    """A llama-server of ours on a private socket. Stopped by `Servers.stop`."""

    name: str
    socket: Path
    process: runtime.Process
    words: tuple[str, ...]

    def connect(self) -> sockets.socket:
        """Open a connection to it, and to nothing else."""
        return runtime.connect(self.socket, self.process)

    def shown(self) -> list[str]:
        """Return its command line without the folders of this machine."""
        return [Path(word).name if word.startswith("/") else word for word in self.words]

    def prompt_tokens(self) -> int:
        """Return the prompt tokens it has read since it started, from its own /metrics."""
        # The counter is brought up to date in the turn that finds all slots idle: ask until it stands still.
        seen = -1
        for _ in range(20):
            status, body = child.request(self.socket, self.process, "/metrics", timeout_s=10.0)
            found = re.search(rb"^llamacpp:prompt_tokens_total (\S+)$", body, re.M)
            if status != 200 or found is None:
                raise SystemExit(f"the server of {self.name} gives no /metrics (status {status})")
            now = int(float(found[1]))
            if now == seen:
                return now
            seen = now
        return seen


@dataclass
class Servers:
    """Starts servers when they are first wanted and stops them all. n_ctx: tokens of a request."""

    stock: Path
    patched: Path
    model: Path
    native_model: Callable[[], Path]
    mmproj: Path | None
    n_ctx: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ojl-", dir="/tmp")))
    running: dict[str, Server] = field(default_factory=dict)

    def get(self, name: str) -> Server:
        """Return the server of an endpoint. Raises SystemExit with its last lines when it does not start."""
        if name not in self.running:
            self.running[name] = self._start(name)
        return self.running[name]

    def pids(self) -> list[int]:
        """Return the processes that run."""
        return [server.process.pid for server in self.running.values()]

    def stop(self) -> None:
        """End them all, and remove the folder of their sockets."""
        for server in self.running.values():
            child.terminate(server.process)
        self.running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str) -> Server:
        program = binary.find_binary(self.patched if name == "after" else self.stock, None, {})
        model = self.native_model() if name == "native" else self.model
        known = binary.options_of(program, self.folder / "options.json")
        available = capacity.available_bytes()
        plan = capacity.plan(
            n_ctx=self.n_ctx,
            slots=argv.SLOTS,
            weights_bytes=model.stat().st_size,
            shape=capacity.read_shape(model),
            # Up to four servers share the machine; no more than one of them keeps much.
            available_bytes=None if available is None else available // 2,
        )
        settings = argv.Settings(
            model=model,
            mmproj=self.mmproj,
            adapter=None,
            backend=program.backend,
            n_ctx=self.n_ctx,
            slots=argv.SLOTS,
            socket=str(self.folder / f"{name}.sock"),
            threads=capacity.threads(),
            checkpoints=plan.checkpoints,
            cache_ram_mib=plan.cache_ram_mib,
        )
        if name == "before":
            # Nothing is cached there, so nothing is spent on keeping it.
            settings = replace(settings, checkpoints=0, cache_ram_mib=0)
        words = (*argv.build_argv(settings, known), "--metrics")
        return self._spawned(name, program.path, words)

    def _spawned(self, name: str, program: Path, words: tuple[str, ...]) -> Server:
        log = self.folder / f"{name}.log"
        path = self.folder / f"{name}.sock"
        process = child.spawn(program, words, log=log, environ=os.environ, on_spawned=lambda _: None)
        server = Server(name, path, process, words)
        self.running[name] = server  # before it is ready: an interrupt stops it too
        deadline_s = time.monotonic() + START_LIMIT_S
        while True:
            if not runtime.is_alive(process):
                lines = "\n".join(child.tail(log))
                raise SystemExit(
                    f"the server of {name} {child.describe_exit(child.exit_code(process))}:\n{lines}"
                )
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the server of {name} did not get ready in {START_LIMIT_S:.0f} s")
            try:
                if child.request(path, process, "/health", timeout_s=2.0)[0] == 200:
                    return server
            except runtime.Gone:
                pass
            time.sleep(0.05)


def stop_on_signals(servers: Servers) -> None:
    """Stop the servers when this process is told to end."""

    def end(number: int, _frame: object) -> None:
        servers.stop()
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
