"""`openjev config` and `openjev models` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openjev_cli import config, profiles
from tests.conftest import Command


def lines(data: bytes) -> list[str]:
    return data.decode().splitlines()


def test_config_show_prints_value_and_source(offline: Command, tmp_path: Path) -> None:
    (tmp_path / ".openjev.toml").write_text('format = "tsv"\n')
    shown = offline("config", "show", "-f", "json", env={"OPENJEV_API_KEY": "s3cret"})
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"s3cret" not in shown.stdout
    by_name = {row["setting"]: (row["value"], row["source"]) for row in json.loads(shown.stdout)}
    assert tuple(by_name) == config.KEYS
    assert by_name["format"] == ("tsv", f"project file {tmp_path / '.openjev.toml'}")
    assert by_name["api_key"] == ("(hidden)", "environment OPENJEV_API_KEY")
    assert by_name["cache_dir"] == (f"{tmp_path}/home/.cache/openjev", "default")


def test_config_set_get_and_path_agree(offline: Command, tmp_path: Path) -> None:
    path = f"{tmp_path}/home/.config/openjev/config.toml"
    assert lines(offline("config", "path").stdout) == [path]
    assert lines(offline("config", "set", "keep_alive", "10m").stdout) == [path]
    assert lines(offline("config", "get", "keep_alive").stdout) == ["600"]
    assert lines(offline("config", "set", "keep_alive", "").stdout) == [path]
    assert Path(path).read_text() == ""
    assert lines(Path(path + ".bak").read_bytes()) == ["keep_alive = 600"]


def test_config_path_and_set_work_while_a_value_is_wrong(offline: Command, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".config" / "openjev"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('profile = "fats"\n')
    shown = offline("config", "show")
    assert (shown.returncode, shown.stdout) == (2, b"")
    assert lines(shown.stderr) == [
        (
            f"error: {folder}/config.toml: profile: 'fats' is not one of tiny, fast, balanced, quality, max"
            " (did you mean fast?)"
        ),
        "next: Correct that; `openjev config path` shows the files read.",
    ]
    assert offline("config", "path").returncode == 0
    assert offline("config", "set", "profile", "fast").returncode == 0
    assert offline("config", "show").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("config", "get", "proflie"), 2, "error: unknown setting 'proflie' (did you mean profile?)"),
        (
            ("config", "set", "timing", "maybe"),
            2,
            "error: timing: 'maybe' is neither true nor false; write true",
        ),
        (
            ("config", "show", "-f", "yaml"),
            2,
            "error: --format: 'yaml' is not one of table, json, jsonl, tsv",
        ),
        (("models", "path", "tiny"), 3, "error: the model file of profile tiny is not there: "),
        (("models", "verify", "max"), 3, "error: the model file of profile max is not there: "),
        (("models", "rm", "tiny"), 3, "error: nothing to remove: "),
        (("models", "pull", "[red]"), 3, "error: unknown profile '[red]'"),
    ],
)
def test_errors_are_two_lines_on_stderr(
    arguments: tuple[str, ...], code: int, told: str, offline: Command
) -> None:
    done = offline(*arguments)
    first, second = lines(done.stderr)
    assert (done.returncode, done.stdout) == (code, b"")
    assert first.startswith(told)
    assert second.startswith("next: ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ask", "--proflie", "fast"), "No such option: --proflie (did you mean --profile?)"),
        (("ask", "--qqqq"), "No such option: --qqqq"),
        (("aks",), "No such command 'aks' (did you mean ask?)"),
        (("server", "statsu"), "No such command 'statsu' (did you mean status?)"),
        (("server", "qqqq"), "No such command 'qqqq'."),
        (("models", "pull", "fats"), "unknown profile 'fats' (did you mean fast?)"),
        (("models", "path", "max", "--quant", "q8-0"), "profile max has no 'q8-0' (did you mean Q8_0?)"),
        (("config", "set", "quite", "true"), "unknown setting 'quite' (did you mean quiet?)"),
        (
            ("ask", "--each", "-", "--as", "ndjsn", "-Q", "a?"),
            "--as ndjsn: no such form of records (did you mean ndjson?)",
        ),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest_one(
    arguments: tuple[str, ...], problem: str, offline: Command
) -> None:
    """The same words for options, commands, profiles, settings and values (see test_config for files)."""
    done = offline(*arguments)
    assert (done.stdout, lines(done.stderr)[0]) == (b"", f"error: {problem}")


def test_models_list_names_every_profile(offline: Command, tmp_path: Path) -> None:
    done = offline("models", "list", "-f", "tsv")
    answers = "absent; answers now (no better profile is installed)"
    assert [line.split("\t")[:5] for line in lines(done.stdout)] == [
        ["tiny", "SmolLM2-135M-Instruct-Q4_1", "0.1 GB", "over 0.6 GB", answers],
        ["fast", "Qwen3.5-0.8B-Q4_K_M", "0.7 GB", "over 1.3 GB", "absent"],
        ["balanced", "Qwen3.5-4B-Q4_K_M", "3.4 GB", "over 4.0 GB", "absent"],
        ["quality", "Qwen3.6-35B-A3B-MTP-UD-Q4_K_XL", "24.2 GB", "over 24.7 GB", "absent"],
        ["max", "Qwen3.8-27B-UD-Q4_K_XL", "18.5 GB", "over 19.0 GB", "absent"],
    ]


def test_models_list_tells_the_memory_of_what_is_here(
    offline: Command, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / ".cache" / "openjev" / "models"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / tiny_model.name).symlink_to(tiny_model)
    (folder / "fast").mkdir()
    (folder / "fast" / ".Qwen3.5-0.8B-Q4_K_M.gguf.part").write_bytes(bytes(53_251_712))
    done = offline("models", "list", "-f", "json")
    seen = {row["profile"]: (row["memory"], row["state"]) for row in json.loads(done.stdout)}
    assert (seen["tiny"], seen["fast"]) == (
        ("2.1 GB", "ready; answers now (no better profile is installed)"),
        ("over 1.3 GB", "10% fetched"),
    )


def test_models_verify_path_and_rm_of_tiny(offline: Command, tiny_model: Path, tmp_path: Path) -> None:
    at = tmp_path / "home" / ".cache" / "openjev" / "models" / "tiny" / tiny_model.name
    at.parent.mkdir(parents=True)
    at.symlink_to(tiny_model)
    assert lines(offline("models", "path", "tiny").stdout) == [str(at)]
    digest = profiles.PROFILES["tiny"].weights.sha256
    assert lines(offline("models", "verify", "tiny").stdout) == [f"ok {digest} {at}"]
    assert lines(offline("models", "pull").stdout) == [str(at)]
    assert lines(offline("models", "rm", "tiny").stdout) == [str(at)]
    assert tiny_model.exists()


@pytest.mark.parametrize(
    "command",
    [
        "config",
        "config show",
        "config get",
        "config set",
        "config path",
        "models",
        "models list",
        "models path",
        "models verify",
        "models pull",
        "models rm",
    ],
)
def test_help_of_every_command(command: str, offline: Command) -> None:
    done = offline(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().lstrip().startswith(f"Usage: openjev {command} ")
