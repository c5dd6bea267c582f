"""The life of the managed server: the real llama-server where it matters, misbehaving children elsewhere."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openjev_cli import child, launch, record, runtime, server
from openjev_cli.binary import Binary, find_binary
from openjev_cli.errors import ServerError
from openjev_cli.launch import Patience
from openjev_cli.record import Files, Running, Spec
from tests.conftest import Command

Environ = dict[str, str]


@pytest.fixture
def environ() -> Iterator[Environ]:
    """A short runtime folder of the test's own; what still runs there is stopped, and nothing may be left."""
    path = tempfile.mkdtemp(prefix="ojl-", dir="/tmp")
    found = {"XDG_RUNTIME_DIR": path, "PATH": "/usr/bin:/bin"}
    yield found
    folder = runtime.folder(found)
    recorded = [record.read(files) for files in record.all_files(folder)]
    server.stop(environ=found)
    left = sorted(file.name for file in folder.iterdir())
    alive = [each for each in recorded if each is not None and runtime.is_alive(each.process)]
    shutil.rmtree(path)
    assert (left, alive) == ([], [])


@pytest.fixture
def real(llama_server: Path, tiny_hybrid: Path) -> Spec:
    """The real server on the tiny hybrid."""
    return Spec(find_binary(llama_server, Path("/nonexistent"), {}), tiny_hybrid, n_ctx=2048)


@pytest.fixture
def fake(tmp_path: Path) -> Spec:
    """A server that misbehaves as the FAKE_ variables say, on a file that only looks like a model."""
    program = tmp_path / "llama-server"
    body = (Path(__file__).parent / "misbehaving_server.py").read_text()
    program.write_text(f"#!{sys.executable}\n{body}")
    program.chmod(0o755)
    return Spec(Binary(program, "stock"), write_model(tmp_path / "fake.gguf"))


def write_model(path: Path) -> Path:
    path.write_bytes(b"GGUF" + bytes(60))
    return path


def wait_for(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def health(running: Running) -> int:
    return child.request(running.socket, running.process, "/health", timeout_s=5.0)[0]


def starter(spec: Spec, environ: Environ) -> subprocess.Popen[bytes]:
    """A process of its own that calls `ensure` and prints the server's pid, as a call of the command does."""
    code = (
        "import os, sys; from pathlib import Path; from openjev_cli import server; "
        "from openjev_cli.binary import Binary\n"
        "spec = server.Spec(Binary(Path(sys.argv[1]), sys.argv[2], build=sys.argv[5]), Path(sys.argv[3]),"
        " n_ctx=int(sys.argv[4]))\n"
        "print(server.ensure(spec, environ=os.environ).pid)\n"
    )
    values = (spec.binary.path, spec.binary.kind, spec.model, str(spec.n_ctx), spec.binary.build)
    return subprocess.Popen(
        [sys.executable, "-c", code, *values],
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def names(environ: Environ) -> list[str]:
    """What lies in the runtime folder, by suffix."""
    return sorted(
        path.suffix for path in runtime.folder(environ).iterdir() if path.name != record.OPTIONS_FILE
    )


# Start, reuse, stop


def test_the_first_call_starts_the_second_reuses_and_stop_leaves_nothing(
    real: Spec, environ: Environ
) -> None:
    first = server.ensure(real, environ=environ)
    second = server.ensure(real, environ=environ)
    assert (first.was_started, second.was_started) == (True, False)
    assert (first.process, first.argv, first.n_ctx) == (second.process, second.argv, 2048)
    with second.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
    assert names(environ) == [".json", ".lock", ".log", ".sock"]
    second.memory_path.write_text("{}")
    first.close()
    assert server.stop(environ=environ) == (first.pid,)
    assert not Path(f"/proc/{first.pid}").exists()
    assert list(runtime.folder(environ).iterdir()) == []


def test_the_props_of_the_server_are_what_the_record_promises(real: Spec, environ: Environ) -> None:
    running = server.ensure(real, environ=environ)
    _, body = child.request(running.socket, running.process, "/props", timeout_s=5.0)
    props = json.loads(body)
    assert (props["default_generation_settings"]["n_ctx"], props["total_slots"]) == (
        running.n_ctx,
        running.slots,
    )
    running.close()


def test_a_context_beyond_the_model_is_returned_reduced_with_a_notice(real: Spec, environ: Environ) -> None:
    wanted = Spec(real.binary, real.model, n_ctx=100_000_000)
    running = server.ensure(wanted, environ=environ)
    assert running.n_ctx == 32768
    assert running.notices == (
        "the model was trained for 32768 tokens: that is its context, instead of 100000000",
    )
    again = server.ensure(wanted, environ=environ)
    assert (again.n_ctx, again.notices) == (32768, ())
    running.close()
    again.close()


def test_the_server_sees_no_llama_variables_and_no_descriptors_of_ours(real: Spec, environ: Environ) -> None:
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        running = server.ensure(
            real,
            environ={**environ, "LLAMA_ARG_N_PARALLEL": "3", "LLAMA_MEDIA_MARKER": "x", "http_proxy": "y"},
        )
        seen = Path(f"/proc/{running.pid}/environ").read_bytes().split(b"\0")
        assert [entry for entry in seen if entry.startswith((b"LLAMA", b"http"))] == []
        targets = [str(fd.readlink()) for fd in Path(f"/proc/{running.pid}/fd").iterdir()]
        assert targets.count("/dev/null") == 1  # its stdin
        assert str(running.files.lock) not in targets
        assert os.getsid(running.pid) == running.pid
        running.close()
    finally:
        os.close(inherited)


# Several first calls at once


@pytest.mark.parametrize("round_", range(3))
def test_six_first_calls_at_once_start_exactly_one_real_server(
    real: Spec, environ: Environ, round_: int
) -> None:
    calls = [starter(real, environ) for _ in range(6)]
    outputs = [call.communicate(timeout=120) for call in calls]
    assert [errors for _, errors in outputs] == [b""] * 6
    assert len({int(pid) for pid, _ in outputs}) == 1
    assert [each.pid for each in server.status(environ=environ)] == [int(outputs[0][0])]


def test_six_calls_during_a_slow_load_start_one(fake: Spec, environ: Environ, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    slow = {**environ, "FAKE_LOAD": "1.5", "FAKE_STARTS": str(starts)}
    calls = [starter(fake, slow) for _ in range(6)]
    pids = {call.communicate(timeout=60)[0] for call in calls}
    assert pids == {starts.read_bytes()}


def test_a_starter_killed_while_loading_leaves_a_server_that_the_others_take(
    fake: Spec, environ: Environ, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    slow = {**environ, "FAKE_LOAD": "2", "FAKE_STARTS": str(starts)}
    first = starter(fake, slow)
    wait_for(starts.exists)
    others = [starter(fake, slow) for _ in range(3)]
    first.kill()
    first.communicate()
    pids = {call.communicate(timeout=60)[0] for call in others}
    assert pids == {starts.read_bytes()}


def test_a_suspended_starter_blocks_nobody_once_its_server_is_ready(
    fake: Spec, environ: Environ, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    slow = {**environ, "FAKE_LOAD": "1", "FAKE_STARTS": str(starts)}
    first = starter(fake, slow)
    wait_for(starts.exists)
    first.send_signal(signal.SIGSTOP)
    try:
        running = server.ensure(fake, environ=slow, patience=Patience(loading_s=20))
        running.close()
        assert f"{running.pid}\n" == starts.read_text()
    finally:
        first.send_signal(signal.SIGCONT)
        first.communicate(timeout=30)


# Loading, never ready, dead


def test_a_slow_load_is_waited_for_with_progress(fake: Spec, environ: Environ) -> None:
    said: list[str] = []
    running = server.ensure(
        fake,
        environ={**environ, "FAKE_BIND": "0.5", "FAKE_LOAD": "1.2"},
        on_progress=said.append,
        patience=Patience(silent_s=0.9, report_s=0.3),
    )
    assert running.was_started
    assert said[0] == "starting llama-server for fake.gguf"
    assert len(said) >= 3
    assert {text.rpartition(" (")[0] for text in said[1:]} == {"loading fake.gguf"}
    running.close()


def test_the_deadline_extends_while_the_child_writes(fake: Spec, environ: Environ) -> None:
    running = server.ensure(
        fake, environ={**environ, "FAKE_BIND": "2", "FAKE_LOG": "0.2"}, patience=Patience(silent_s=1.0)
    )
    assert running.was_started
    running.close()


def test_a_child_that_never_gets_ready_is_given_up_and_ended(
    fake: Spec, environ: Environ, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    stuck = {**environ, "FAKE_SILENT": "1", "FAKE_STARTS": str(starts)}
    with pytest.raises(ServerError) as caught:
        server.ensure(fake, environ=stuck, patience=Patience(silent_s=0.5))
    assert caught.value.message.startswith("llama-server did not get ready: no progress for ")
    assert caught.value.message.endswith("its last line: hello from the stand-in")
    assert not Path(f"/proc/{starts.read_text().strip()}").exists()
    assert names(environ) == [".log"]


def test_a_child_that_says_loading_for_ever_is_given_up(fake: Spec, environ: Environ) -> None:
    with pytest.raises(ServerError, match="did not get ready"):
        server.ensure(fake, environ={**environ, "FAKE_LOAD": "600"}, patience=Patience(loading_s=1.0))


UNKNOWN = "error loading model: unknown model architecture: 'x'"
NO_MEMORY = "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 9"


@pytest.mark.parametrize(
    ("behaviour", "how", "line", "next_step"),
    [
        ({"FAKE_DIE": UNKNOWN}, "exited with status 1", UNKNOWN, "openjev server logs"),
        ({"FAKE_DIE": NO_MEMORY}, "exited with status 1", NO_MEMORY, "free memory"),
        (
            {"FAKE_KILL": "1"},
            "was killed by SIGKILL (the system does that when memory runs out)",
            "hello from the stand-in",
            "free memory",
        ),
    ],
)
def test_a_child_that_dies_while_loading_is_reported_within_two_seconds(
    fake: Spec, environ: Environ, behaviour: dict[str, str], how: str, line: str, next_step: str
) -> None:
    began_s = time.monotonic()
    with pytest.raises(ServerError) as caught:
        server.ensure(fake, environ={**environ, **behaviour})
    assert time.monotonic() - began_s < 2.0
    assert caught.value.message == f"llama-server {how} while it loaded fake.gguf: {line}"
    assert caught.value.next_step.startswith(next_step)
    assert caught.value.log_tail[0] == "hello from the stand-in"
    assert names(environ) == [".log"]


def test_a_real_server_that_cannot_allocate_says_so(real: Spec, environ: Environ) -> None:
    """64 slots of 32768 tokens need 1 GiB; the child inherits a limit far below. Small stacks, so that it is
    the context that does not fit, and not a thread."""
    limits = {resource.RLIMIT_DATA: 300 << 20, resource.RLIMIT_STACK: 1 << 20}
    before = {which: resource.getrlimit(which) for which in limits}
    for which, limit in limits.items():
        resource.setrlimit(which, (limit, before[which][1]))
    try:
        with pytest.raises(ServerError) as caught:
            server.ensure(Spec(real.binary, real.model, n_ctx=32768, slots=64), environ=environ)
    finally:
        for which, pair in before.items():
            resource.setrlimit(which, pair)
    assert "failed to allocate" in caught.value.message
    assert caught.value.next_step.startswith("free memory")
    assert names(environ) == [".log"]


def test_a_model_the_server_cannot_read_is_reported_by_its_own_words(
    real: Spec, environ: Environ, tmp_path: Path
) -> None:
    broken = tmp_path / "cut.gguf"
    broken.write_bytes(real.model.read_bytes()[:100_000])
    with pytest.raises(ServerError) as caught:
        server.ensure(Spec(real.binary, broken), environ=environ)
    assert caught.value.message.startswith("llama-server exited with status 1 while it loaded cut.gguf: ")
    assert len(caught.value.log_tail) > 1


# Death, suspension and strangers between two calls


def wait_until(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Return once `holds()`; a kill is not over when the signal is sent."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s


def test_a_server_killed_between_two_calls_costs_one_restart(real: Spec, environ: Environ) -> None:
    first = server.ensure(real, environ=environ)
    first.close()
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not runtime.is_alive(first.process))
    second = server.ensure(real, environ=environ)
    assert second.was_started
    assert second.process != first.process
    assert health(second) == 200
    with pytest.raises(runtime.Gone):
        first.connect()
    second.close()


def test_a_suspended_server_is_told_apart_and_waited_for(real: Spec, environ: Environ) -> None:
    running = server.ensure(real, environ=environ)
    running.close()
    os.kill(running.pid, signal.SIGSTOP)
    wait_for(lambda: runtime.is_suspended(running.pid))
    assert [each.state for each in server.status(environ=environ)] == ["suspended"]
    threading.Timer(1.0, os.kill, (running.pid, signal.SIGCONT)).start()
    again = server.ensure(real, environ=environ)
    assert (again.process, again.was_started) == (running.process, False)
    with again.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


class Stranger:
    """Another process that listens on a path and counts what it is sent."""

    def __init__(self, path: Path) -> None:
        code = (
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print('on', flush=True)\n"
            "while True:\n"
            "    c, _ = s.accept(); print(len(c.recv(100)), flush=True); c.close()\n"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"on\n"

    def end(self) -> tuple[bool, bytes]:
        """Whether it was still alive, and the sizes of everything it received."""
        was_alive = self.process.poll() is None
        self.process.kill()
        return was_alive, self.process.communicate()[0]


def test_a_stranger_on_the_socket_path_gets_nothing_and_is_not_killed(real: Spec, environ: Environ) -> None:
    first = server.ensure(real, environ=environ)
    first.close()
    os.kill(first.pid, signal.SIGKILL)
    first.socket.unlink()
    stranger = Stranger(first.socket)
    second = server.ensure(real, environ=environ)
    assert second.was_started
    assert health(second) == 200
    second.close()
    was_alive, received = stranger.end()
    assert was_alive
    assert set(received.split()) <= {b"0"}  # it was connected to, and closed without a byte


def test_a_stranger_in_place_of_a_living_server_gets_nothing_either(real: Spec, environ: Environ) -> None:
    first = server.ensure(real, environ=environ)
    first.close()
    first.socket.unlink()
    stranger = Stranger(first.socket)
    assert [each.state for each in server.status(environ=environ)] == ["not answering"]
    with pytest.raises(runtime.NotOurs):
        first.connect()
    second = server.ensure(real, environ=environ)
    assert second.process != first.process
    assert not runtime.is_alive(first.process)  # ours, and nobody could reach it any more
    assert health(second) == 200
    second.close()
    was_alive, received = stranger.end()
    assert was_alive
    assert set(received.split()) <= {b"0"}


def test_a_record_that_names_a_strangers_pid_does_it_no_harm(fake: Spec, environ: Environ) -> None:
    first = server.ensure(fake, environ=environ)
    first.close()
    os.kill(first.pid, signal.SIGKILL)
    other = subprocess.Popen(["sleep", "60"])
    try:
        record.write(first.files, {**first.facts, "pid": other.pid})
        assert server.stop(environ=environ) == ()
        second = server.ensure(fake, environ=environ)
        assert second.was_started
        assert other.poll() is None
        second.close()
    finally:
        other.kill()
        other.wait()


# Stop, status, idle, room


def test_stop_ends_a_server_that_still_loads_and_its_caller_is_told(fake: Spec, environ: Environ) -> None:
    call = starter(fake, {**environ, "FAKE_LOAD": "60"})
    wait_for(lambda: server.status(environ=environ))
    assert [each.state for each in server.status(environ=environ)] == ["loading"]
    assert len(server.stop(environ=environ)) == 1
    _, errors = call.communicate(timeout=10)
    assert b"ServerError: llama-server was killed by SIGTERM while it loaded fake.gguf" in errors
    assert names(environ) == []


def test_stop_by_key_leaves_the_others(fake: Spec, environ: Environ) -> None:
    one, two = (server.ensure(Spec(fake.binary, fake.model, n_ctx=n), environ=environ) for n in (1024, 2048))
    one.close()
    two.close()
    assert server.stop(one.key, environ=environ) == (one.pid,)
    assert [each.key for each in server.status(environ=environ)] == [two.key]


def test_status_tells_what_a_server_is_and_sweeps_what_a_dead_one_left(real: Spec, environ: Environ) -> None:
    running = server.ensure(real, environ=environ)
    running.close()
    (status,) = server.status(environ=environ)
    assert (status.key, status.pid, status.state) == (running.key, running.pid, "ready")
    assert (status.model, status.n_ctx, status.slots) == (str(real.model), 2048, 8)
    assert status.memory_bytes is not None
    assert status.memory_bytes > 1 << 20
    os.kill(running.pid, signal.SIGKILL)
    wait_for(lambda: not runtime.is_alive(running.process))
    assert server.status(environ=environ) == []
    assert names(environ) == [".log"]


def test_an_idle_server_goes_although_status_keeps_asking_and_comes_back(
    real: Spec, environ: Environ
) -> None:
    short = Spec(real.binary, real.model, n_ctx=2048, keep_alive_s=1)
    running = server.ensure(short, environ=environ)
    running.close()
    goes = "exit" if "exit_idle" in real.binary.abilities else "sleep"

    def is_idle() -> bool:
        found = [each.state for each in server.status(environ=environ)]
        return found == ([] if goes == "exit" else ["sleeping"])

    assert not is_idle()
    wait_for(is_idle, 10)
    again = server.ensure(short, environ=environ)
    assert again.was_started is (goes == "exit")
    with again.connect() as connection:
        body = b'{"prompt": "a", "n_predict": 1}'
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_room_is_made_by_stopping_idle_servers_only(fake: Spec, environ: Environ) -> None:
    idle, busy = (
        server.ensure(Spec(fake.binary, fake.model, n_ctx=n), environ=environ) for n in (1024, 2048)
    )
    idle.close()
    asked = busy.connect()
    wait_for(lambda: runtime.connections(idle.socket) == 0)
    new = Files(runtime.folder(environ), "f" * 16)
    said: list[str] = []
    launch.make_room(new, 1 << 60, launch.Reporter(said.append, 2.0))
    assert [each.key for each in server.status(environ=environ)] == [busy.key]
    assert said == ["stopping the idle server of fake.gguf to make room"]
    launch.make_room(new, 0, launch.Reporter(said.append, 2.0))
    assert len(said) == 1
    asked.close()


def test_a_log_past_its_bound_is_cut(fake: Spec, environ: Environ) -> None:
    running = server.ensure(fake, environ=environ)
    running.close()
    with running.log_path.open("ab") as log:
        log.write(b"x" * (record.MAX_LOG_BYTES + 1))
    server.ensure(fake, environ=environ).close()
    assert running.log_path.stat().st_size < 1000


def test_a_connection_to_a_server_that_ended_is_gone(fake: Spec, environ: Environ) -> None:
    running = server.ensure(fake, environ=environ)
    running.close()
    server.stop(environ=environ)
    with pytest.raises(runtime.Gone):
        running.connect()


def test_the_socket_of_a_dead_server_does_not_block_a_start(fake: Spec, environ: Environ) -> None:
    key = fake.key()
    files = Files(runtime.folder(environ), key)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(files.socket))
    files.record.write_text("{half a rec")
    running = server.ensure(fake, environ=environ)
    assert running.was_started
    running.close()


# The command


def test_the_command_starts_reports_and_stops(openjev: Command, environ: Environ, tiny_hybrid: Path) -> None:
    first = openjev("server", "start", env=environ)
    second = openjev("server", "start", "--quiet", env=environ)
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, b"")
    listed = openjev("server", "status", "-f", "json", env=environ)
    (status,) = json.loads(listed.stdout)
    assert (status["state"], status["model"]) == ("ready", str(tiny_hybrid))
    says = f"tiny-hybrid (pid {status['pid']}, {status['n_ctx']} tokens, {status['slots']} at once)\n"
    assert (first.stdout.decode(), second.stdout.decode()) == (f"started: {says}", f"already running: {says}")
    log = openjev("server", "logs", "-n", "1", env=environ)
    assert str(environ["XDG_RUNTIME_DIR"]) in log.stdout.decode()
    unknown = openjev("server", "stop", "abc", env=environ)
    assert (unknown.returncode, unknown.stdout) == (2, b"")
    assert unknown.stderr.decode().startswith(f"error: no server abc is running (there is {status['key']})\n")
    stopped = openjev("server", "stop", status["key"], env=environ)
    assert stopped.stdout.decode() == f"stopped pid {status['pid']}\n"
    after = [openjev("server", name, env=environ).stdout.decode() for name in ("status", "stop", "logs")]
    assert after == [
        "no server is running; the next question starts one\n",
        "no server was running\n",
        "no log: no server was started, or `openjev server stop` deleted it\n",
    ]


def test_a_server_that_dies_gives_exit_4_its_last_lines_and_an_empty_stdout(
    openjev: Command, environ: Environ, fake: Spec
) -> None:
    settings = {**environ, "OPENJEV_LLAMA_SERVER": str(fake.binary.path), "FAKE_DIE": "out of memory"}
    run = openjev("server", "start", "--quiet", "--model", fake.model, env=settings)
    assert (run.returncode, run.stdout) == (4, b"")
    error, *log, next_step = run.stderr.decode().splitlines()
    assert error == "error: llama-server exited with status 1 while it loaded fake.gguf: out of memory"
    assert log == ["log: hello from the stand-in", "log: out of memory"]
    assert next_step.startswith("next: free memory")


def test_without_a_binary_the_error_names_where_it_looked(openjev: Command, environ: Environ) -> None:
    run = openjev("server", "start", env={**environ, "OPENJEV_LLAMA_SERVER": "", "PATH": "/nonexistent"})
    assert (run.returncode, run.stdout) == (4, b"")
    assert run.stderr.decode().startswith("error: llama-server not found (looked in ")
    assert "\nnext: run scripts/build-llama.sh" in run.stderr.decode()


@pytest.mark.parametrize("home", ["", "/nonexistent", "/" + "h" * 150])
def test_any_home_will_do(
    openjev: Command, environ: Environ, llama_server: Path, tiny_hybrid: Path, home: str
) -> None:
    """HOME unset, missing or long; only the binary and the model are named. D08."""
    settings = {
        **environ,
        "HOME": home,
        "XDG_CONFIG_HOME": "",
        "XDG_CACHE_HOME": "relative",
        "OPENJEV_CACHE_DIR": "",
    }
    run = openjev("server", "start", "--quiet", "--model", tiny_hybrid, env=settings)
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout.startswith(b"started: tiny-hybrid ")
