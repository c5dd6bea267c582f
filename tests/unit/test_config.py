"""Settings: precedence, where a value came from, and every way a value can be wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openjev_cli import config, errors


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / ".config" / "openjev").mkdir(parents=True)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def user_file(home: Path, text: str) -> Path:
    path = home / ".config" / "openjev" / "config.toml"
    path.write_text(text)
    return path


def project_file(project: Path, text: str) -> Path:
    path = project / ".openjev.toml"
    path.write_text(text)
    return path


def problems(home: Path, cwd: Path, *, flags: dict[str, object] | None = None, **env: str) -> list[str]:
    with pytest.raises(errors.InputError) as caught:
        config.load(flags or {}, env={"HOME": str(home), **env}, cwd=cwd)
    return list(caught.value.problems)


def test_without_files_and_variables_everything_is_default(home: Path, project: Path) -> None:
    loaded = config.load({}, env={"HOME": str(home)}, cwd=project)
    assert set(loaded.sources.values()) == {config.Source("default")}
    assert (loaded.profile, loaded.format, loaded.keep_alive_s, loaded.request_timeout_s) == (
        "tiny",
        None,
        600,
        120,
    )
    assert loaded.models_dir == home / ".cache" / "openjev" / "models"
    assert loaded.builds_dir == home / ".cache" / "openjev" / "llama"


def test_each_layer_overrules_the_ones_below(home: Path, project: Path) -> None:
    seen = []
    env = {"HOME": str(home)}

    def look(flags: dict[str, object]) -> None:
        loaded = config.load(flags, env=env, cwd=project)
        seen.append((loaded.profile, str(loaded.sources["profile"])))

    look({})
    in_home = user_file(home, 'profile = "fast"')
    look({})
    in_project = project_file(project, 'profile = "balanced"')
    look({})
    env["OPENJEV_PROFILE"] = "quality"
    look({})
    look({"profile": "max"})
    assert seen == [
        ("tiny", "default"),
        ("fast", f"user file {in_home}"),
        ("balanced", f"project file {in_project}"),
        ("quality", "environment OPENJEV_PROFILE"),
        ("max", "flag --profile"),
    ]


@pytest.mark.parametrize("row", [row for row in config.SETTINGS if row.env], ids=lambda row: row.key)
def test_an_empty_variable_is_unset_for_every_setting(row: config.Setting, home: Path, project: Path) -> None:
    loaded = config.load({}, env={"HOME": str(home), row.env: ""}, cwd=project)
    assert loaded == config.load({}, env={"HOME": str(home)}, cwd=project)


VALUES: dict[str, tuple[str, str]] = {
    # written in the user file and in the variable; what the variable gives
    "profile": ("fast", "max"),
    "debug": ("false", "true"),
    "llama_server": ("/a/llama-server", "/b/llama-server"),
    "model_source": ("huggingface", "modelscope"),
    "keep_alive": ("1", "90"),
    "cache_dir": ("/a", "/b"),
    "api_key": ("low", "high"),
    "request_timeout": ("1", "90"),
    "response_timing": ("true", "false"),
    "compact_json": ("true", "false"),
    "prime_shared_prefix": ("true", "false"),
    "prime_repeated_state": ("true", "false"),
    "template_cache": ("true", "false"),
}


@pytest.mark.parametrize("row", [row for row in config.SETTINGS if row.env], ids=lambda row: row.key)
def test_the_variable_beats_the_user_file_and_the_empty_one_does_not(
    row: config.Setting, home: Path, project: Path
) -> None:
    low, high = VALUES[row.key]
    path = user_file(home, f'{row.key} = "{low}"')
    with_variable = config.load({}, env={"HOME": str(home), row.env: high}, cwd=project)
    with_empty = config.load({}, env={"HOME": str(home), row.env: ""}, cwd=project)
    assert with_variable.shown(row.key) == ("(hidden)" if row.is_secret else high)
    assert str(with_variable.sources[row.key]) == f"environment {row.env}"
    assert str(with_empty.sources[row.key]) == f"user file {path}"


def test_nonsense_names_the_place_and_what_is_allowed_all_at_once(home: Path, project: Path) -> None:
    path = user_file(home, 'keep_alive = "soon"\nquiet = 3\nmin_confidence = 2.0\nunsure = "0.6..0.4"\n')
    assert problems(
        home, project, flags={"format": "jsn"}, OPENJEV_PROFILE="fats", OPENJEV_COMPACT_JSON="abc"
    ) == [
        (
            f"{path}: keep_alive: 'soon' is not a time; write seconds (600), or a number with s, m, h or d"
            " (10m), up to 365d"
        ),
        f"{path}: quiet: 3 is neither true nor false; write true or false",
        f"{path}: min_confidence: 2.0 is not a number from 0 to 1",
        f"{path}: unsure: '0.6..0.4' is not a band of probabilities; write it as 0.4..0.6",
        "OPENJEV_PROFILE: 'fats' is not one of tiny, fast, balanced, quality, max (did you mean fast?)",
        "OPENJEV_COMPACT_JSON: 'abc' is neither true nor false; write true or false",
        "--format: 'jsn' is not one of table, json, jsonl, tsv, value (did you mean json?)",
    ]


def test_a_bad_value_is_reported_even_where_a_flag_overrules_it(home: Path, project: Path) -> None:
    path = user_file(home, 'profile = "huge"')
    assert problems(home, project, flags={"profile": "tiny"}) == [
        f"{path}: profile: 'huge' is not one of tiny, fast, balanced, quality, max"
    ]


def test_an_unknown_key_is_an_error_with_the_nearest_name(home: Path, project: Path) -> None:
    in_home = user_file(home, 'proflie = "fast"\n[colours]\nred = 1\n')
    in_project = project_file(project, 'fromat = "json"')
    assert problems(home, project) == [
        f"{in_project}: unknown key 'fromat' (did you mean format?)",
        f"{in_home}: unknown key 'proflie' (did you mean profile?)",
        f"{in_home}: unknown key 'colours'",
    ]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'profile = "fast"\nformat json\n', ":2:8: Expected '=' after a key in a key/value pair"),
        (b"profile = 'fast", ':1:16: Expected "\'"'),
        (b"profile = \xff", ": not UTF-8 at byte 10"),
        (b"timing = " + b"[" * 100_000, ": nested too deeply"),
    ],
)
def test_a_bad_toml_file_names_line_and_column(data: bytes, told: str, home: Path, project: Path) -> None:
    path = home / ".config" / "openjev" / "config.toml"
    path.write_bytes(data)
    assert problems(home, project) == [f"{path}{told}"]


def test_a_byte_order_mark_in_a_config_file_is_dropped(home: Path, project: Path) -> None:
    path = home / ".config" / "openjev" / "config.toml"
    path.write_bytes(b'\xef\xbb\xbfprofile = "fast"\r\n')
    assert config.load({}, env={"HOME": str(home)}, cwd=project).profile == "fast"


def test_a_project_file_is_found_in_a_folder_above(home: Path, project: Path) -> None:
    path = project_file(
        project, 'format = "tsv"\ntiming = false\nunsure = "0.4..0.6"\nmin_confidence = 0.2\n'
    )
    below = project / "a" / "b"
    below.mkdir(parents=True)
    loaded = config.load({}, env={"HOME": str(home)}, cwd=below)
    assert loaded.project_file == path
    assert (loaded.format, loaded.timing, loaded.unsure, loaded.min_confidence) == (
        "tsv",
        False,
        (0.4, 0.6),
        0.2,
    )


@pytest.mark.parametrize(
    "row", [row for row in config.SETTINGS if not row.in_project], ids=lambda row: row.key
)
def test_a_project_file_may_not_name_programs_files_urls_keys_or_folders(
    row: config.Setting, home: Path, project: Path
) -> None:
    path = project_file(project, f'{row.key} = "/x"')
    (told,) = problems(home, project)
    assert told.startswith(f"{path}: {row.key} may not be set in a project file; set it with ")
    assert told.endswith(f"openjev config set {row.key}")


def test_question_files_of_a_project_lie_beside_the_file_and_nowhere_else(home: Path, project: Path) -> None:
    (project / "link").symlink_to("/etc")
    project_file(project, 'questions = ["q/a.txt"]')
    below = project / "deep"
    below.mkdir()
    assert config.load({}, env={"HOME": str(home)}, cwd=below).questions == (project / "q" / "a.txt",)
    for outside in ("/etc/passwd", "../x", "link/passwd", "~/.ssh/id_rsa"):
        path = project_file(project, f'questions = "{outside}"')
        assert problems(home, project) == [
            f"{path}: questions: '{outside}' lies outside the folder of the project file"
        ]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("0", 0), ("600", 600), ("10m", 600), ("1.5m", 90), (" 2 h ", 7200), ("0.5s", 1), ("365d", 31536000)],
)
def test_a_time_may_have_a_unit(written: str, seconds: int, home: Path, project: Path) -> None:
    loaded = config.load({"keep_alive_s": written}, env={"HOME": str(home)}, cwd=project)
    assert loaded.keep_alive_s == seconds


@pytest.mark.parametrize("written", ["-1", "1e9", "nan", "366d", "10 minutes", "", True, float("inf"), "١"])
def test_a_time_that_is_none_is_refused(written: object, home: Path, project: Path) -> None:
    (told,) = problems(home, project, flags={"keep_alive_s": written})
    assert told.startswith(f"--keep-alive: {written!r} is not a time")


def test_relative_paths_start_where_they_were_written(home: Path, project: Path) -> None:
    user_file(home, 'llama_server = "bin/llama-server"\nmodel = "~/m.gguf"\n')
    loaded = config.load({"mmproj": "p.gguf"}, env={"HOME": str(home)}, cwd=project)
    assert loaded.llama_server == home / ".config" / "openjev" / "bin" / "llama-server"
    assert loaded.model == home / "m.gguf"
    assert loaded.mmproj == project / "p.gguf"


def test_empty_xdg_variables_are_unset_and_relative_ones_are_ignored(home: Path, project: Path) -> None:
    for value in ("", "relative/cache"):
        env = {"HOME": str(home), "XDG_CACHE_HOME": value, "XDG_CONFIG_HOME": value}
        loaded = config.load({}, env=env, cwd=project)
        assert loaded.cache_dir == home / ".cache" / "openjev"
        assert loaded.user_file == home / ".config" / "openjev" / "config.toml"
    env = {"HOME": str(home), "XDG_CACHE_HOME": "/c", "XDG_CONFIG_HOME": "/k"}
    loaded = config.load({}, env=env, cwd=project)
    assert (loaded.cache_dir, loaded.user_file) == (Path("/c/openjev"), Path("/k/openjev/config.toml"))
    assert str(loaded.sources["cache_dir"]) == "default below XDG_CACHE_HOME"


@pytest.mark.parametrize("name", ["/nonexistent", "/" + "long/" * 30, "/dev/null"])
def test_a_home_that_is_missing_long_or_no_folder_still_gives_settings(name: str, project: Path) -> None:
    loaded = config.load({}, env={"HOME": name}, cwd=project)
    assert loaded.cache_dir == Path(name) / ".cache" / "openjev"


NO_PASSWD_ENTRY = """
import os
from pathlib import Path
from openjev_cli import config, errors
os.setuid(54321)
loaded = config.load({}, env={}, cwd=Path("/"))
assert loaded.profile == "tiny" and loaded.user_file is None
try:
    loaded.cache_dir
except errors.InputError as exc:
    print(exc.message, exc.next_step, sep="|")
print(config.load({}, env={"OPENJEV_CACHE_DIR": "/c"}, cwd=Path("/")).models_dir)
"""


def test_a_user_without_home_and_passwd_entry_is_told_which_variable_to_set() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user without a passwd entry")
    done = subprocess.run(
        [sys.executable, "-c", NO_PASSWD_ENTRY], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout.splitlines() == [
        (
            "no cache folder is known: HOME is not set and this user has no home folder"
            "|Set OPENJEV_CACHE_DIR to a folder that you can write to."
        ),
        "/c/models",
    ]


def test_the_key_is_never_shown(home: Path, project: Path) -> None:
    loaded = config.load({}, env={"HOME": str(home), "OPENJEV_API_KEY": "s3cret"}, cwd=project)
    assert loaded.api_key == "s3cret"
    assert "s3cret" not in repr(loaded) + "".join(loaded.shown(key) for key in config.KEYS)


def test_set_writes_the_user_file_and_keeps_the_one_before(home: Path, project: Path) -> None:
    before = '# mine\nprofile = "fast"\n'
    path = user_file(home, before)
    env = {"HOME": str(home)}
    assert config.set_in_user_file("keep_alive", "1h", env=env, cwd=project) == path
    assert path.with_name("config.toml.bak").read_text() == before
    config.set_in_user_file("unsure", "0.4..0.6", env=env, cwd=project)
    config.set_in_user_file("quiet", "yes", env=env, cwd=project)
    config.set_in_user_file("llama_server", "bin/x", env=env, cwd=project)
    config.set_in_user_file("profile", "", env=env, cwd=project)
    loaded = config.load({}, env=env, cwd=project)
    assert (loaded.profile, loaded.keep_alive_s, loaded.unsure, loaded.quiet, loaded.llama_server) == (
        "tiny",
        3600,
        (0.4, 0.6),
        True,
        project / "bin" / "x",
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == ["config.toml", "config.toml.bak"]


def test_set_makes_the_folder_and_follows_a_link(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "new")}
    path = config.set_in_user_file("profile", "fast", env=env, cwd=tmp_path)
    dotfile = path.rename(tmp_path / "dotfile.toml")
    path.symlink_to(dotfile)
    config.set_in_user_file("profile", "max", env=env, cwd=tmp_path)
    assert (path.is_symlink(), dotfile.read_text()) == (True, 'profile = "max"\n')


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("proflie", "fast", "unknown setting 'proflie' (did you mean profile?)"),
        ("profile", "fats", "profile: 'fats' is not one of tiny, fast, balanced, quality, max"),
    ],
)
def test_set_refuses_what_load_would_refuse(key: str, value: str, told: str, home: Path) -> None:
    with pytest.raises(errors.InputError) as caught:
        config.set_in_user_file(key, value, env={"HOME": str(home)}, cwd=home)
    assert caught.value.message.startswith(told)
    assert not (home / ".config" / "openjev" / "config.toml").exists()


def test_set_where_nothing_can_be_written_names_path_and_variable(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(errors.InputError) as caught:
        config.set_in_user_file("profile", "fast", env={"HOME": str(blocked)}, cwd=tmp_path)
    assert caught.value.message == f"cannot write {blocked}/.config/openjev: Not a directory"
    assert caught.value.next_step == "Set XDG_CONFIG_HOME to a folder that you can write to."


def test_toml_is_only_imported_when_there_is_a_file(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from openjev_cli import config\n"
        "config.load({}, env={'HOME': sys.argv[1]}, cwd=Path(sys.argv[1]))\n"
        "print(sorted({'tomllib', 'tomli_w', 'difflib', 'subprocess'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_every_config_field_of_the_table_exists() -> None:
    fields = set(config.Config.__dataclass_fields__)
    assert {row.attribute for row in config.SETTINGS} - fields == {"cache_dir"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [('"off"', "off"), ("false", "off"), ('"mine.json"', "{folder}/mine.json"), ('"/a/b.json"', "/a/b.json")],
)
def test_a_calibration_is_off_or_a_file(text: str, expected: str, home: Path, project: Path) -> None:
    folder = user_file(home, f"calibration = {text}\n").parent
    loaded = config.load({}, env={"HOME": str(home)}, cwd=project)
    assert str(loaded.calibration) == expected.format(folder=folder)
    flagged = config.load({"calibration": "x.json"}, env={"HOME": str(home)}, cwd=project)
    assert flagged.calibration == project / "x.json"


def test_a_calibration_is_stored_beside_the_user_file_under_a_safe_name(home: Path, project: Path) -> None:
    loaded = config.load({}, env={"HOME": str(home)}, cwd=project)
    folder = home / ".config" / "openjev" / "calibration"
    key = "0123abcd"
    assert loaded.calibration_file("fast", key) == folder / f"fast-{key}.json"
    assert (
        loaded.calibration_file("../../My model-Q4_K.v2", key) == folder / f"_.._My_model-Q4_K.v2-{key}.json"
    )
    assert loaded.calibration_file("..", key) == folder / f"_-{key}.json"
    long = loaded.calibration_file("模" * 80, key)
    assert long is not None
    assert len(long.name.encode()) < 200


def test_the_calibrations_of_a_model_are_found_whatever_they_were_made_for(home: Path, project: Path) -> None:
    loaded = config.load({}, env={"HOME": str(home)}, cwd=project)
    assert loaded.calibration_files("fast") == ()
    folder = home / ".config" / "openjev" / "calibration"
    folder.mkdir(parents=True)
    own = ["fast-0000000a.json", "fast-fffffff0.json"]
    others = ["fast.json", "fast-0000000a.json.bak", "fast-8b-0000000a.json", "xfast-0000000a.json"]
    for name in (*own, *others):
        (folder / name).touch()
    assert loaded.calibration_files("fast") == tuple(folder / name for name in own)
    assert loaded.calibration_files("fast-8b") == (folder / "fast-8b-0000000a.json",)
