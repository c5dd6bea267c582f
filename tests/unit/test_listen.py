"""Sockets to listen on: real ones, free and taken."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from openjev_cli import errors, listen


def test_a_taken_port_names_the_process_that_has_it() -> None:
    with listen.tcp("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.InputError) as raised:
            listen.tcp("127.0.0.1", port)
    name = Path("/proc/self/comm").read_text().strip()
    assert raised.value.message == f"port {port} on 127.0.0.1 is in use by pid {os.getpid()} ({name})"
    assert raised.value.next_step == "choose another with --port"


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(errors.InputError, match=r"^cannot listen on 192\.0\.2\.1 port 0: "):
        listen.tcp("192.0.2.1", 0)  # TEST-NET-1, RFC 5737
    with pytest.raises(errors.InputError, match="no address of this machine"):
        listen.tcp("no such host", 0)
    with pytest.raises(errors.InputError, match="no address of this machine"):
        listen.tcp("two..dots", 0)


@pytest.mark.parametrize(
    ("host", "is_ours"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)]
)
def test_loopback_is_told_from_the_rest(host: str, is_ours: bool) -> None:
    assert listen.is_loopback(host) is is_ours


def test_a_socket_is_open_to_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen.unix(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_dead_socket_is_replaced_and_a_live_one_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listen.unix(path):
        with pytest.raises(errors.InputError, match="in use by another process"):
            listen.unix(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_the_socket_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = listen.unix(path)
    own = listen.identity(path)
    first.close()
    with listen.unix(path) as second:
        listen.remove(path, own)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        theirs = listen.identity(path)
        second.close()
    listen.remove(path, theirs)
    assert not path.exists()


def test_what_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(errors.InputError, match="something else is there"):
        listen.unix(path)
    assert path.read_text() == "mine"


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="longer than 103 bytes"):
        listen.unix(tmp_path / ("x" * 120))
