from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from openjev_cli import child, runtime
from openjev_cli.errors import ServerError
from openjev_cli.runtime import Process

ENVIRON = {"PATH": "/usr/bin:/bin"}


def write_program(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(0o755)
    return path


def ignore(process: Process) -> None:
    pass


def wait_for(condition: Callable[[], object], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def test_options_keys_markers_and_proxies_never_reach_the_server() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "0",
        "LLAMA_ARG_CTX_SIZE": "1",
        "LLAMA_MEDIA_MARKER": "x",
        "LLAMA_API_KEY": "k",
        "http_proxy": "p",
        "HTTPS_PROXY": "p",
        "ALL_PROXY": "p",
        "no_proxy": "p",
    }
    assert child.clean_environment(environ) == {
        "GOMP_SPINCOUNT": child.SPIN_COUNT,
        "PATH": "/bin",
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "0",
    }


def test_a_spawned_program_has_its_own_session_no_descriptors_and_its_output_in_the_log(
    tmp_path: Path,
) -> None:
    body = (
        "import json, os, sys\n"
        "print(json.dumps([sys.argv[1:], sorted(map(int, os.listdir('/proc/self/fd')))[:-1], os.getcwd(),"
        " os.getsid(0) == os.getpid(), os.readlink('/proc/self/fd/0')]), flush=True)\n"
        "print('to stderr', file=sys.stderr)\n"
    )
    program = write_program(tmp_path / "program", body)
    inherited = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        process = child.spawn(
            program, ["a b", "$HOME"], log=tmp_path / "log", environ=ENVIRON, on_spawned=ignore
        )
    finally:
        os.close(inherited)
    assert child.exit_code(process) == 0
    first, second = (tmp_path / "log").read_text().splitlines()
    assert json.loads(first) == [["a b", "$HOME"], [0, 1, 2], "/", True, "/dev/null"]
    assert second == "to stderr"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_the_process_is_recorded_before_the_program_begins(tmp_path: Path) -> None:
    marker = tmp_path / "began"
    program = write_program(tmp_path / "program", f"open({str(marker)!r}, 'w')\n")
    seen = []

    def note(process: Process) -> None:
        time.sleep(0.1)
        seen.append((runtime.is_alive(process), marker.exists()))

    process = child.spawn(program, [], log=tmp_path / "log", environ=ENVIRON, on_spawned=note)
    assert child.exit_code(process) == 0
    assert seen == [(True, False)]
    assert marker.exists()


def test_a_starter_killed_before_it_recorded_leaves_no_process(tmp_path: Path) -> None:
    marker = tmp_path / "began"
    program = write_program(tmp_path / "program", f"open({str(marker)!r}, 'w')\n")
    code = (
        "import os, sys; from pathlib import Path; from openjev_cli import child\n"
        "def die(process):\n"
        "    print(process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "child.spawn(Path(sys.argv[1]), [], log=Path(sys.argv[2]), environ=os.environ, on_spawned=die)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, program, tmp_path / "log"], capture_output=True, check=False
    )
    assert run.returncode == -signal.SIGKILL
    wait_for(lambda: runtime.identify(int(run.stdout)) is None)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise SystemExit(3)", "exited with status 3"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "was killed by SIGKILL (the system does that when memory runs out)",
        ),
        ("import os; os.abort()", "was killed by SIGABRT"),
    ],
)
def test_an_end_is_told_with_its_status_or_signal(tmp_path: Path, body: str, expected: str) -> None:
    program = write_program(tmp_path / "program", body)
    process = child.spawn(program, [], log=tmp_path / "log", environ=ENVIRON, on_spawned=ignore)
    assert child.describe_exit(child.exit_code(process)) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["loading", "0.00.1 E llama: error loading model: unknown model architecture: 'x'", "exiting"],
         "llama: error loading model: unknown model architecture: 'x'"),
        (["error: something else", "ggml_aligned_malloc: failed to allocate 12 GB", "exiting due to error"],
         "ggml_aligned_malloc: failed to allocate 12 GB"),
        (["one", "two"], "two"),
        ([], None),
    ],
)  # fmt: skip
def test_the_decisive_line_is_found(lines: list[str], expected: str | None) -> None:
    assert child.decisive_line(lines) == expected


def test_the_tail_is_the_last_lines_with_control_characters_visible(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000 + b"\nfirst\n\n\x1b[31mred\xff\nlast")
    assert child.tail(log, 3) == ("first", "\\x1b[31mred\ufffd", "last")
    assert child.tail(tmp_path / "none") == ()


def test_terminate_kills_a_process_that_ignores_term(tmp_path: Path) -> None:
    body = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('on', flush=True)\ntime.sleep(60)\n"
    )
    program = write_program(tmp_path / "program", body)
    process = child.spawn(program, [], log=tmp_path / "log", environ=ENVIRON, on_spawned=ignore)
    wait_for(lambda: child.tail(tmp_path / "log"))
    child.terminate(process, grace_s=0.2)
    assert not Path(f"/proc/{process.pid}").exists()


def test_terminate_ends_a_suspended_process_the_polite_way(tmp_path: Path) -> None:
    body = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))\n"
        "print('on', flush=True)\ntime.sleep(60)\n"
    )
    program = write_program(tmp_path / "program", body)
    process = child.spawn(program, [], log=tmp_path / "log", environ=ENVIRON, on_spawned=ignore)
    wait_for(lambda: child.tail(tmp_path / "log"))
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: runtime.is_suspended(process.pid))
    child.terminate(process)
    assert child.tail(tmp_path / "log") == ("on", "bye")


def test_terminate_touches_no_other_process_with_the_same_pid() -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        child.terminate(Process(other.pid, "another life"))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_program_that_cannot_be_run_says_so_in_the_log(tmp_path: Path) -> None:
    process = child.spawn(tmp_path / "none", [], log=tmp_path / "log", environ=ENVIRON, on_spawned=ignore)
    assert child.exit_code(process) == 127
    assert "not found" in child.tail(tmp_path / "log")[-1]


def test_a_failing_record_starts_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "began"
    program = write_program(tmp_path / "program", f"open({str(marker)!r}, 'w')\n")
    pids = []

    def fail(process: Process) -> None:
        pids.append(process.pid)
        raise ServerError("disk full", next_step="free some")

    with pytest.raises(ServerError, match="disk full"):
        child.spawn(program, [], log=tmp_path / "log", environ=ENVIRON, on_spawned=fail)
    wait_for(lambda: runtime.identify(pids[0]) is None)
    assert not marker.exists()
