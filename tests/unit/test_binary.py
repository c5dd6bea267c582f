from __future__ import annotations

import json
from pathlib import Path

import pytest

from openjev_cli import binary
from openjev_cli.binary import Binary
from openjev_cli.errors import ServerError


def write_program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_named_program_comes_before_the_build_and_the_build_before_the_path(tmp_path: Path) -> None:
    named = write_program(tmp_path / "named" / "llama-server")
    built = write_program(tmp_path / "cache" / "llama" / "abc" / "llama-server")
    (built.parent.parent / "current").symlink_to("abc")
    other = write_program(tmp_path / "bin" / "llama-server")
    facts = {
        "llama_cpp": "b11434",
        "kind": "patched",
        "key": "abc",
        "patches": ["0001-amx-tile-config-and-batches", "0005-exit-when-idle"],
        "backend": "CUDA",
    }
    (built.parent / "build.json").write_text(json.dumps(facts))
    environ = {"PATH": str(other.parent)}
    found = [
        binary.find_binary(named, tmp_path / "cache", environ),
        binary.find_binary(None, tmp_path / "cache", environ),
        binary.find_binary(None, tmp_path / "empty", environ),
    ]
    assert found == [
        Binary(named, "stock"),
        Binary(built, "patched", "abc", "b11434", frozenset({"exit_idle"}), "cuda"),
        Binary(
            other,
            "stock",
            notice=f"using {other} from PATH as a stock llama-server; "
            "scripts/build-llama.sh builds the faster one",
        ),
    ]


def test_a_named_program_that_is_missing_is_never_replaced(tmp_path: Path) -> None:
    write_program(tmp_path / "bin" / "llama-server")
    missing = tmp_path / "gone"
    with pytest.raises(ServerError) as caught:
        binary.find_binary(missing, tmp_path, {"PATH": str(tmp_path / "bin")})
    assert caught.value.message == f"OPENJEV_LLAMA_SERVER: {missing} is not an executable file"


def test_without_any_the_error_says_where_it_looked_and_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "llama-server")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServerError) as caught:
        # The program in the current folder is not found through an empty or relative PATH entry.
        binary.find_binary(None, tmp_path / "cache", {"PATH": ":.:/proc/1/root"})
    looked = tmp_path / "cache" / "llama" / "current" / "llama-server"
    assert caught.value.message == f"llama-server not found (looked in {looked} and on PATH)"
    assert caught.value.next_step.startswith("run scripts/build-llama.sh")


@pytest.mark.parametrize("content", ["", "[]", '{"kind": 5, "patches": "x"}'])
def test_a_damaged_build_json_makes_it_stock(tmp_path: Path, content: str) -> None:
    path = write_program(tmp_path / "llama-server")
    (tmp_path / "build.json").write_text(content)
    assert binary.find_binary(path, tmp_path, {}) == Binary(path, "stock")


def test_options_are_asked_for_once_per_binary(tmp_path: Path) -> None:
    script = f"#!/bin/sh\necho x >> {tmp_path}/asked\necho '-c,    --ctx-size N   size (see --jinja)'\n"
    program = Binary(write_program(tmp_path / "llama-server", script), "stock")
    memo = tmp_path / "options.json"
    first, second = binary.options_of(program, memo), binary.options_of(program, memo)
    assert first == second == frozenset({"-c", "--ctx-size", "--jinja"})
    assert (tmp_path / "asked").read_text() == "x\n"
    write_program(program.path, script + "echo --new-option\n")
    assert "--new-option" in binary.options_of(program, memo)


def test_a_program_that_is_no_llama_server_is_named_with_what_it_said(tmp_path: Path) -> None:
    program = Binary(write_program(tmp_path / "llama-server", "#!/bin/sh\necho hello\nexit 3\n"), "stock")
    with pytest.raises(ServerError) as caught:
        binary.options_of(program, tmp_path / "options.json")
    assert caught.value.message == (
        f"{program.path} is not a llama-server: `--help` ended with status 3 and 'hello'"
    )
