from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openjev_cli import runtime
from openjev_cli.errors import ServerError
from openjev_cli.runtime import Process


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose path leaves room for a socket."""
    with tempfile.TemporaryDirectory(prefix="ojr-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("value", ["", "relative/dir", "/nonexistent/runtime"])
def test_an_unusable_runtime_variable_is_ignored(short: Path, value: str) -> None:
    found = runtime.folder({"XDG_RUNTIME_DIR": value, "TMPDIR": str(short)})
    assert found == short / f"openjev-{os.getuid()}"
    assert found.stat().st_mode & 0o777 == 0o700


def test_the_runtime_folder_of_the_session_comes_first(short: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(short), "TMPDIR": "/nonexistent"}
    assert runtime.folder(environ) == runtime.folder(environ) == short / "openjev"


def test_a_path_too_long_for_a_socket_falls_back_to_a_short_one(short: Path) -> None:
    deep = short / ("d" * 90)
    deep.mkdir()
    found = runtime.folder({"XDG_RUNTIME_DIR": str(deep), "TMPDIR": str(short)})
    assert found == short / f"openjev-{os.getuid()}"


def test_the_longest_accepted_folder_still_binds_a_socket(short: Path) -> None:
    room = runtime.MAX_SOCKET_PATH_BYTES - len(f"{short}//openjev/0123456789abcdef.sock")
    exact, over = short / ("d" * room), short / ("d" * (room + 1))
    exact.mkdir()
    over.mkdir()
    found = runtime.folder({"XDG_RUNTIME_DIR": str(exact)})
    assert found == exact / "openjev"
    assert runtime.folder({"XDG_RUNTIME_DIR": str(over), "TMPDIR": str(short)}).parent == short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(found / "0123456789abcdef.sock"))


def test_a_planted_link_is_not_followed(short: Path) -> None:
    (short / "elsewhere").mkdir(mode=0o700)
    (short / "openjev").symlink_to("elsewhere")
    found = runtime.folder({"XDG_RUNTIME_DIR": str(short), "TMPDIR": str(short)})
    assert found == short / f"openjev-{os.getuid()}"


def test_a_folder_others_can_enter_is_refused_with_the_way_out(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short / "openjev").mkdir()
    (short / "openjev").chmod(0o755)
    monkeypatch.setattr(runtime, "_candidates", lambda environ: [short / "openjev"])
    with pytest.raises(ServerError) as caught:
        runtime.folder({})
    assert caught.value.message == (
        f"no private folder for the server's socket: {short}/openjev can be entered by others "
        f"(mode 0755); chmod 700 it"
    )
    assert "XDG_RUNTIME_DIR" in caught.value.next_step


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder that belongs to somebody else")
def test_a_folder_of_somebody_else_is_refused(short: Path) -> None:
    (short / "openjev").mkdir(mode=0o700)
    os.chown(short / "openjev", 12345, 12345)
    found = runtime.folder({"XDG_RUNTIME_DIR": str(short), "TMPDIR": str(short)})
    assert found == short / f"openjev-{os.getuid()}"


def test_a_process_is_named_by_pid_and_start_time() -> None:
    me = runtime.identify(os.getpid())
    assert me is not None
    assert me == runtime.identify(os.getpid())
    assert runtime.is_alive(me)
    assert not runtime.is_alive(Process(me.pid, me.start_time + "0"))


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert runtime.identify(child.pid) is None
    child.wait()


def test_a_suspended_process_is_told_apart() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert not runtime.is_suspended(child.pid)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert runtime.is_suspended(child.pid)
    finally:
        child.kill()
        child.wait()


def test_a_connection_is_given_only_to_the_recorded_process(short: Path) -> None:
    path = short / "s.sock"
    me = runtime.identify(os.getpid())
    assert me is not None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        runtime.connect(path, me).close()
        for other in (Process(me.pid, "another life"), Process(os.getppid(), me.start_time)):
            with pytest.raises(runtime.NotOurs):
                runtime.connect(path, other)
        for _ in range(3):
            accepted, _ = listener.accept()
            assert accepted.recv(1) == b""  # closed, and not a byte was sent
            accepted.close()


def test_a_stale_socket_and_a_missing_one_are_gone(short: Path) -> None:
    path = short / "s.sock"
    me = runtime.identify(os.getpid())
    assert me is not None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    for name in (path, short / "none.sock"):
        with pytest.raises(runtime.Gone) as caught:
            runtime.connect(name, me)
        assert not isinstance(caught.value, runtime.NotOurs)


def test_a_full_backlog_ends_in_an_error_not_in_waiting_for_ever(short: Path) -> None:
    path = short / "s.sock"
    me = runtime.identify(os.getpid())
    assert me is not None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with runtime.connect(path, me), pytest.raises(runtime.Gone, match="accepted no connection for 0 s"):
            runtime.connect(path, me, timeout_s=0.1)


def test_connected_clients_are_counted(short: Path) -> None:
    path = short / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert runtime.connections(path) == 0
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            assert runtime.connections(path) == 1


def test_a_lock_is_held_once_and_free_after_release(tmp_path: Path) -> None:
    one, two = runtime.Lock(tmp_path / "l"), runtime.Lock(tmp_path / "l")
    assert one.try_acquire()
    assert not two.try_acquire()
    one.release()
    assert two.try_acquire()
    two.release(delete=True)
    assert not (tmp_path / "l").exists()


def test_a_lock_whose_file_is_deleted_and_made_again_still_excludes(tmp_path: Path) -> None:
    """A waiter may have opened the file that the holder deletes: that lock guards nothing."""
    overlaps = []

    def enter_often() -> None:
        for _ in range(60):
            lock = runtime.Lock(tmp_path / "l")
            while not lock.try_acquire():
                pass
            try:
                (tmp_path / "inside").touch(exist_ok=False)
                (tmp_path / "inside").unlink()
            except FileExistsError:
                overlaps.append(1)
            lock.release(delete=True)

    threads = [threading.Thread(target=enter_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from openjev_cli import runtime\n"
        "lock = runtime.Lock(Path(sys.argv[1])); assert lock.try_acquire(); print('held', flush=True)\n"
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path / "l"], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert not runtime.Lock(tmp_path / "l").try_acquire()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    mine = runtime.Lock(tmp_path / "l")
    assert mine.try_acquire()
    mine.release()
