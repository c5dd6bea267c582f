"""The command line of llama-server, one table: every flag with its reason. Pure; nothing is read or run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openjev_cli.errors import ServerError

SLOTS = 8
HTTP_THREADS = 64


@dataclass(frozen=True)
class Settings:
    """What a server is started with. The first four groups come from the caller; threads and everything about
    memory come from the machine and are not part of a server's key.

    n_ctx: tokens a slot holds. idle: "exit" (patched build), "sleep" (stock) or "never"."""

    model: Path
    mmproj: Path | None
    adapter: Path | None
    backend: str
    n_ctx: int
    slots: int = SLOTS
    socket: str = ""
    threads: int = 0
    checkpoints: int = 0
    cache_ram_mib: int = 0
    idle: str = "never"
    keep_alive_s: int = 0


@dataclass(frozen=True)
class Flag:
    """One option. value: None for a switch. needed: a binary without it is refused; others are left out."""

    name: str
    value: str | None
    reason: str
    needed: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        """As it stands in the argv."""
        return (self.name,) if self.value is None else (self.name, self.value)


def flags(settings: Settings) -> tuple[Flag, ...]:
    """Return every flag of a server with these settings, in order."""
    s = settings
    cpu = s.backend == "cpu"
    table = [
        Flag("--model", str(s.model), "the weights"),
        Flag(
            "--host", s.socket, "a Unix socket: only this user can reach it, and the kernel names its owner"
        ),
        Flag("--ctx-size", str(s.n_ctx * s.slots), "every slot gets the whole promised context"),
        Flag("--parallel", str(s.slots), "questions of a request are read in one batch"),
        Flag("--threads-http", str(HTTP_THREADS), "a request that waits its turn holds one"),
        Flag("--no-kv-unified", None, "no request may fail because another one filled a shared pool"),
        Flag("--ctx-checkpoints", str(s.checkpoints), "resume points of hybrid models; each holds memory"),
        Flag("--cache-ram", str(s.cache_ram_mib), "states come back without being read again; MiB"),
        Flag("--no-context-shift", None, "a state is never cut", needed=False),
        Flag("--jinja", None, "the model's own chat template"),
        Flag("--no-webui", None, "nothing but the API", needed=False),
        Flag("--offline", None, "nothing is fetched", needed=False),
        Flag("--log-colors", "off", "the log's last lines are shown in errors", needed=False),
    ]
    if s.mmproj is not None:
        table.append(Flag("--mmproj", str(s.mmproj), "reads images"))
    else:
        table.append(Flag("--no-mmproj", None, "never picks up a projector that lies beside", needed=False))
    if s.adapter is not None:
        table.append(Flag("--lora", str(s.adapter), "the adapter"))
    if cpu:
        table += [
            Flag("--flash-attn", "off", "the CPU kernel sums differently for every batch shape"),
            Flag("--threads", str(s.threads), "the cgroup's quota and the CPU affinity"),
            Flag("--threads-batch", str(s.threads), "the same while prompts are read"),
            Flag("--fit", "off", "what was planned here is not changed behind our back", needed=False),
        ]
    else:
        # Not measured here: whether these kernels sum alike for every batch shape, as the CPU ones do without it.
        table += [
            Flag("--flash-attn", "auto", "on where the device has the kernel"),
            Flag("--gpu-layers", "auto", "as many layers as the device's memory holds", needed=False),
            Flag("--fit", "on", "counts that memory, which is not seen from here", needed=False),
            Flag("--threads", str(s.threads), "the layers that stay on the CPU"),
            Flag("--threads-batch", str(s.threads), "the same while prompts are read"),
        ]
    if s.idle == "exit":
        table.append(Flag("--exit-idle-seconds", str(s.keep_alive_s), "gives the memory back"))
    elif s.idle == "sleep":
        table.append(
            Flag("--sleep-idle-seconds", str(s.keep_alive_s), "unloads the model; the process stays")
        )
    return tuple(table)


def build_argv(settings: Settings, known: frozenset[str] | None = None) -> tuple[str, ...]:
    """Return the options of llama-server, without the program. known: the options the binary has, None = all.
    Raises ServerError that names every needed option the binary lacks."""
    table = flags(settings)
    if known is not None:
        missing = [flag.name for flag in table if flag.needed and flag.name not in known]
        if missing:
            raise ServerError(
                f"this llama-server is too old: it has no {', '.join(missing)}",
                next_step="use llama-server b9670 or newer, or run scripts/build-llama.sh",
            )
        table = tuple(flag for flag in table if flag.name in known)
    return tuple(word for flag in table for word in flag.words)
