from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from openjev_cli import record, runtime
from openjev_cli.binary import Binary
from openjev_cli.errors import ModelError
from openjev_cli.record import Files, Record, Running, Spec
from openjev_cli.runtime import Process

KEY = "0123456789abcdef"
FACTS = {"version": record.VERSION, "key": KEY, "pid": 7, "start_time": "8@boot", "ready": True, "n_ctx": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    for name in ("llama-server", "a.gguf", "mmproj.gguf", "lora.gguf"):
        (tmp_path / name).write_text(name)
    return Spec(Binary(tmp_path / "llama-server", "patched", build="k1"), tmp_path / "a.gguf")


def test_a_record_is_read_as_it_was_written(folder: Path) -> None:
    files = Files(folder, KEY)
    record.write(files, FACTS)
    assert record.read(files) == Record(Process(7, "8@boot"), True, FACTS)
    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version": 1',
        b"\xff",
        json.dumps({**FACTS, "key": "f" * 16}).encode(),
        json.dumps({**FACTS, "pid": "x"}).encode(),
    ],
)
def test_a_damaged_or_foreign_record_counts_as_none(folder: Path, content: bytes) -> None:
    files = Files(folder, KEY)
    files.record.write_bytes(content)
    assert record.read(files) is None


def test_removing_leaves_lock_and_log_and_every_other_key(folder: Path) -> None:
    files = Files(folder, KEY)
    memory = files.memory(Process(7, "8@boot")).name
    other = "f" * 16
    for name in (
        f"{KEY}.json",
        f"{KEY}.sock",
        f"{KEY}.lock",
        f"{KEY}.log",
        memory,
        f".{KEY}.json.99",
        f"{other}.json",
    ):
        (folder / name).touch()
    files.remove()
    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.lock", f"{KEY}.log", f"{other}.json"]
    files.remove(with_log=True)
    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.lock", f"{other}.json"]


def test_every_process_has_its_own_memory_file(folder: Path) -> None:
    files = Files(folder, KEY)
    paths = {files.memory(Process(*one)) for one in [(7, "8"), (7, "9"), (8, "8"), (7, "8")]}
    assert len(paths) == 3


def test_the_key_follows_files_build_and_argv_and_nothing_else(spec: Spec, tmp_path: Path) -> None:
    def change(**changes: object) -> str:
        return Spec(**{**vars(spec), **changes}).key()

    same = spec.key()
    assert change(keep_alive_s=5) == same
    (tmp_path / "link.gguf").symlink_to("a.gguf")
    assert change(model=tmp_path / "link.gguf") == same
    different = [
        change(n_ctx=4096),
        change(slots=4),
        change(mmproj=tmp_path / "mmproj.gguf"),
        change(adapter=tmp_path / "lora.gguf"),
        change(binary=Binary(tmp_path / "llama-server", "patched", build="k2")),
        change(model=tmp_path / "lora.gguf"),
    ]
    assert len({same, *different}) == 7
    os.utime(spec.model, (1, 1))
    assert spec.key() != same


def test_a_missing_model_is_named(spec: Spec, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf: No such file or directory"):
        Spec(spec.binary, tmp_path / "none.gguf").key()


def test_the_connection_that_proved_the_server_is_used_once_and_not_when_old() -> None:
    me = runtime.identify(os.getpid())
    assert me is not None
    with (
        tempfile.TemporaryDirectory(prefix="ojr-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        files = Files(Path(folder), KEY)
        listener.bind(str(files.socket))
        listener.listen()
        fresh, old = runtime.connect(files.socket, me), runtime.connect(files.socket, me)
        running = Running(files, me, FACTS, held=[(float("inf"), fresh)])
        assert running.connect() is fresh
        running.held.append((float("-inf"), old))
        with running.connect() as another:
            assert another not in (fresh, old)
        assert old.fileno() == -1
        fresh.close()
