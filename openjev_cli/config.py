"""Settings: flag > environment > project file > user file > default, as one frozen `Config`.

One table, `SETTINGS`, drives parsing, error messages and `openjev config`. This module reads the two TOML
files and the environment it is given; it never creates a folder, except that `set_in_user_file` writes the
user file. What a value means (does the model exist? is the URL reachable?) is for whoever uses it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from openjev_cli import errors

PROFILE_NAMES = ("tiny", "fast", "balanced", "quality", "max")
FORMATS = ("table", "json", "jsonl", "tsv", "value")
LIST_FORMATS = ("table", "json", "jsonl", "tsv")
READOUTS = ("letters", "words")
MODEL_SOURCES = ("huggingface", "modelscope")
PROJECT_FILE_NAME = ".openjev.toml"

# llama-server keeps its timeouts in 32-bit ints; a year fits and nobody means more.
MAX_DURATION_S = 365 * 86400

# The rows of this module are named tuples: a dataclass takes a millisecond to define, at every start.
SourceKind = Literal["flag", "environment", "project file", "user file", "default"]


class Source(NamedTuple):
    """Where a value came from. name: the flag, the variable or the file's path; "" for a plain default."""

    kind: SourceKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class _Place(NamedTuple):
    """Where a value stands: relative paths start at `base`, `~` is `home`."""

    base: Path
    home: Path | None
    confine: bool = False  # a project file may name only files of its own folder


_Parser = Callable[[object, _Place], Any]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _one_of(*names: str) -> _Parser:
    def parse(value: object, place: _Place) -> str:
        if isinstance(value, str) and value in names:
            return value
        hint = errors.nearest(value, names) if isinstance(value, str) else ""
        raise ValueError(f"{_shown(value)} is not one of {', '.join(names)}{hint}")

    return parse


def _truth(value: object, place: _Place) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("true", "1", "yes", "on"):
            return True
        if word in ("false", "0", "no", "off"):
            return False
    raise ValueError(f"{_shown(value)} is neither true nor false; write true or false")


def _text(value: object, place: _Place) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError(f"{_shown(value)} is not a text with at least one character")


def _path(value: object, place: _Place) -> Path:
    text = os.fspath(value) if isinstance(value, Path) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"{_shown(value)} is not a path")
    if text == "~" or text.startswith("~/"):
        if place.home is None:
            raise ValueError(f"{_shown(value)} needs a home folder, and HOME is not set")
        path = place.home / text[2:]
    else:
        path = place.base / text
    if place.confine and not path.resolve().is_relative_to(place.base.resolve()):
        raise ValueError(f"{_shown(value)} lies outside the folder of the project file")
    return path


def _calibration(value: object, place: _Place) -> Path | str:
    # `off` as it is written on the command line, `false` as it comes natural in TOML.
    return "off" if value is False or value == "off" else _path(value, place)


def _paths(value: object, place: _Place) -> tuple[Path, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise ValueError("an empty list names no file")
    return tuple(_path(item, place) for item in items)


def _number(value: object) -> float | None:
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]*\.?[0-9]+\s*", value, re.ASCII):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _duration(*, least_s: int) -> _Parser:
    units_s = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

    def parse(value: object, place: _Place) -> int:
        text = value if isinstance(value, str) else "" if isinstance(value, bool) else str(value)
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([smhd]?)\s*", text, re.ASCII)
        seconds = float(match[1]) * units_s[match[2]] if match else -1.0
        if not least_s <= seconds <= MAX_DURATION_S:
            at_least = f" of at least {least_s} s" if least_s else ""
            raise ValueError(
                f"{_shown(value)} is not a time{at_least}; write seconds (600), or a number with s, m, h or d"
                " (10m), up to 365d"
            )
        return math.ceil(seconds)

    return parse


def _probability(value: object, place: _Place) -> float:
    number = _number(value)
    if number is None or not 0.0 <= number <= 1.0:
        raise ValueError(f"{_shown(value)} is not a number from 0 to 1")
    return number


def _band(value: object, place: _Place) -> tuple[float, float]:
    ends = value.split("..") if isinstance(value, str) else value
    if isinstance(ends, list | tuple) and len(ends) == 2:
        low, high = (_number(end) for end in ends)
        if low is not None and high is not None and 0.0 <= low <= high <= 1.0:
            return low, high
    raise ValueError(f"{_shown(value)} is not a band of probabilities; write it as 0.4..0.6")


class Setting(NamedTuple):
    """One row of the table. key: its name in files and in `openjev config`. flag, env: "" where there
    is none. field: its name in `Config`, which carries the unit."""

    key: str
    parse: _Parser
    default: object
    help: str
    flag: str = ""
    env: str = ""
    in_project: bool = False
    is_secret: bool = False
    field: str = ""

    @property
    def attribute(self) -> str:
        return self.field or self.key


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "profile",
        _one_of(*PROFILE_NAMES),
        "tiny",
        "the pinned model and settings to ask",
        flag="--profile",
        env="OPENJEV_PROFILE",
        in_project=True,
    ),
    Setting("model", _path, None, "a GGUF file to ask instead of a profile's", flag="--model"),
    Setting("mmproj", _path, None, "the image projector that belongs to the model", flag="--mmproj"),
    Setting(
        "readout",
        _one_of(*READOUTS),
        None,
        "how options are read: by a letter each, or by their own text; by default as suits the profile",
        flag="--readout",
    ),
    Setting(
        "prior",
        _probability,
        None,
        "share of what the model would say without the state that is taken off; by default as suits the profile",
    ),
    Setting("connect", _text, None, "URL or socket of a running server to ask", flag="--connect"),
    Setting(
        "format",
        _one_of(*FORMATS),
        None,
        "how answers are printed; by default a table on a terminal, else JSON",
        flag="--format",
        in_project=True,
    ),
    Setting(
        "timing",
        _truth,
        True,
        "show where the time went below a table",
        flag="--timing/--no-timing",
        in_project=True,
    ),
    Setting(
        "unsure",
        _band,
        None,
        "a yes/no probability inside this band is unsure (0.4..0.6)",
        flag="--unsure",
        in_project=True,
    ),
    Setting(
        "min_confidence",
        _probability,
        None,
        "a choice less confident than this is unsure",
        flag="--min-confidence",
        in_project=True,
    ),
    Setting(
        "questions",
        _paths,
        (),
        "question files to use when the command line names none",
        flag="--questions",
        in_project=True,
    ),
    Setting(
        "calibration",
        _calibration,
        None,
        "off, or a calibration to use instead of the one that is stored for the model",
        flag="--calibration",
    ),
    Setting("cache", _truth, True, "read and keep cached work", flag="--no-cache"),
    Setting("quiet", _truth, False, "no notices on stderr", flag="--quiet"),
    Setting(
        "debug", _truth, False, "show tracebacks of expected errors too", flag="--debug", env="OPENJEV_DEBUG"
    ),
    Setting("llama_server", _path, None, "the llama-server binary to run", env="OPENJEV_LLAMA_SERVER"),
    Setting(
        "model_source",
        _one_of(*MODEL_SOURCES),
        "huggingface",
        "the hub models are fetched from",
        flag="--source",
        env="OPENJEV_MODEL_SOURCE",
    ),
    Setting(
        "keep_alive",
        _duration(least_s=0),
        600,
        "how long an idle llama-server stays",
        flag="--keep-alive",
        env="OPENJEV_KEEP_ALIVE",
        field="keep_alive_s",
    ),
    Setting("cache_dir", _path, None, "folder of models and builds", env="OPENJEV_CACHE_DIR"),
    Setting(
        "api_key",
        _text,
        None,
        "key that clients of `openjev serve` must send",
        env="OPENJEV_API_KEY",
        is_secret=True,
    ),
    Setting(
        "request_timeout",
        _duration(least_s=1),
        120,
        "how long `openjev serve` works on a request, queueing included",
        env="OPENJEV_REQUEST_TIMEOUT",
        field="request_timeout_s",
    ),
    Setting("response_timing", _truth, True, "put `timing` into JSON answers", env="OPENJEV_RESPONSE_TIMING"),
    Setting(
        "compact_json", _truth, True, "send JSON states without optional spaces", env="OPENJEV_COMPACT_JSON"
    ),
    Setting(
        "prime_shared_prefix",
        _truth,
        True,
        "read what questions share only once on a stock engine",
        env="OPENJEV_PRIME_SHARED_PREFIX",
    ),
    Setting(
        "prime_repeated_state",
        _truth,
        True,
        "keep a state that is asked about again on a stock engine",
        env="OPENJEV_PRIME_REPEATED_STATE",
    ),
    Setting(
        "template_cache",
        _truth,
        True,
        "render the chat template once per model",
        env="OPENJEV_TEMPLATE_CACHE",
    ),
)
_FIX_FILES = "Correct that; `openjev config path` shows the files read."
_BY_KEY: dict[str, Setting] = {setting.key: setting for setting in SETTINGS}
KEYS: tuple[str, ...] = tuple(_BY_KEY)


@dataclass(frozen=True)
class Config:
    """Every setting with its value, and in `sources` (by key) where the value came from.

    format is None when the terminal decides. Paths are absolute whenever the `cwd` given to `load` was.
    """

    profile: str
    model: Path | None
    mmproj: Path | None
    readout: str | None
    prior: float | None
    connect: str | None
    format: str | None
    timing: bool
    unsure: tuple[float, float] | None
    min_confidence: float | None
    questions: tuple[Path, ...]
    calibration: Path | str | None  # "off", or a file; None = the one that is stored for the model
    cache: bool
    quiet: bool
    debug: bool
    llama_server: Path | None
    model_source: str
    keep_alive_s: int
    api_key: str | None = field(repr=False)
    request_timeout_s: int
    response_timing: bool
    compact_json: bool
    prime_shared_prefix: bool
    prime_repeated_state: bool
    template_cache: bool
    known_cache_dir: Path | None  # None only when no home folder is known
    home: Path | None
    user_file: Path | None  # where it is or would be
    project_file: Path | None  # None when there is none
    sources: Mapping[str, Source]

    @property
    def cache_dir(self) -> Path:
        """The folder of everything that can be made again. It may not exist.

        Raises InputError when no home folder is known and none was set.
        """
        if self.known_cache_dir is None:
            raise errors.InputError(
                "no cache folder is known: HOME is not set and this user has no home folder",
                next_step="Set OPENJEV_CACHE_DIR to a folder that you can write to.",
            )
        return self.known_cache_dir

    @property
    def models_dir(self) -> Path:
        """Where the files of profiles lie."""
        return self.cache_dir / "models"

    @property
    def builds_dir(self) -> Path:
        """Where scripts/build-llama.sh puts its builds; `current` in it is the one in use."""
        return self.cache_dir / "llama"

    def calibration_file(self, model: str, key: str) -> Path | None:
        """Where the calibration of a profile or model file is stored; None when no home folder is known.

        key: 8 hex digits of what it is made for; one name can stand for several models and readouts.
        """
        if self.user_file is None:
            return None
        return self.user_file.parent / "calibration" / f"{_calibration_stem(model)}-{key}.json"

    def calibration_files(self, model: str) -> tuple[Path, ...]:
        """The calibrations that are stored for a profile or model file, whatever else they are made for."""
        if self.user_file is None:
            return ()
        try:
            paths = sorted((self.user_file.parent / "calibration").iterdir())
        except OSError:
            return ()
        own = re.compile(re.escape(_calibration_stem(model)) + r"-[0-9a-f]{8}\.json")
        return tuple(path for path in paths if own.fullmatch(path.name))

    def value(self, key: str) -> object:
        """The value of one setting by its key in files. Raises InputError with the nearest name."""
        attribute = setting(key).attribute
        return self.known_cache_dir if attribute == "cache_dir" else getattr(self, attribute)

    def shown(self, key: str) -> str:
        """One setting's value as `openjev config` prints it: as it would be written, secrets hidden."""
        value = self.value(key)
        if value is None or value == ():
            return ""
        return "(hidden)" if setting(key).is_secret else _written(value)


def _calibration_stem(model: str) -> str:
    # Short enough for a file name in any script, with what is added to it.
    return re.sub(r"[^\w.-]", "_", model).lstrip(".")[:48] or "_"


def setting(key: str) -> Setting:
    """The row of the table for `key`. Raises InputError that names the nearest key."""
    if key not in _BY_KEY:
        raise errors.InputError(
            f"unknown setting {_shown(key)}{errors.nearest(key, KEYS)}",
            next_step="See all settings: openjev config show",
        )
    return _BY_KEY[key]


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple) and value and isinstance(value[0], float):
        return "..".join(f"{end:g}" for end in value)
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def home_dir(env: Mapping[str, str]) -> Path | None:
    """The user's home folder: HOME if it is an absolute path, else the passwd entry, else None."""
    home = env.get("HOME", "")
    if home.startswith("/"):
        return Path(home)
    import pwd

    try:
        entry = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
    return Path(entry) if entry.startswith("/") else None


def _xdg(env: Mapping[str, str], variable: str, home: Path | None, below_home: str) -> Path | None:
    """openjev's folder of one kind. An empty XDG_* is unset and a relative one is ignored (XDG Base Directory
    Specification 0.8, "Environment variables")."""
    folder = env.get(variable, "")
    if folder.startswith("/"):
        return Path(folder) / "openjev"
    return home / below_home / "openjev" if home else None


def user_file_path(env: Mapping[str, str]) -> Path | None:
    """Where the user's config.toml is or would be; None when no home folder is known."""
    folder = _xdg(env, "XDG_CONFIG_HOME", home_dir(env), ".config")
    return folder / "config.toml" if folder else None


def find_project_file(cwd: Path) -> Path | None:
    """The nearest `.openjev.toml` in `cwd` or above it. A folder that cannot be searched has none."""
    for folder in (cwd, *cwd.parents):
        path = folder / PROJECT_FILE_NAME
        try:
            if path.is_file():
                return path
        except OSError:
            continue
    return None


def load(flags: Mapping[str, object], *, env: Mapping[str, str], cwd: Path) -> Config:
    """Return every setting's value by precedence. flags: by `Config` field name; None means not given.

    Raises InputError with all problems of all places at once.
    """
    problems: list[str] = []
    home = home_dir(env)
    user_file, project_file = user_file_path(env), find_project_file(cwd)
    layers: list[tuple[SourceKind, Mapping[str, object], Path | None, _Place]] = [
        ("flag", _from_flags(flags), None, _Place(cwd, home)),
        ("environment", _from_env(env), None, _Place(cwd, home)),
    ]
    if project_file:
        found = _project_values(project_file, problems)
        layers.append(("project file", found, project_file, _Place(project_file.parent, home, confine=True)))
    if user_file:
        layers.append(
            ("user file", _file_values(user_file, problems), user_file, _Place(user_file.parent, home))
        )

    values: dict[str, Any] = {row.attribute: row.default for row in SETTINGS}
    sources = {row.key: Source("default") for row in SETTINGS}
    # Lowest first, so that a higher layer overwrites; a bad value is reported even where it is overruled.
    for kind, written, path, place in reversed(layers):
        for key, raw in written.items():
            row = _BY_KEY[key]
            name = str(path) if path else row.flag if kind == "flag" else row.env
            try:
                values[row.attribute] = row.parse(raw, place)
            except ValueError as exc:
                problems.append(f"{name}: {key}: {exc}" if path else f"{name}: {exc}")
            else:
                sources[key] = Source(kind, name)
    if problems:
        is_flags = all(problem.startswith("--") for problem in problems)
        next_step = "Correct that; --help shows the options." if is_flags else _FIX_FILES
        raise errors.collect(problems, next_step=next_step)

    cache_dir = values.pop("cache_dir")
    if cache_dir is None:
        cache_dir = _xdg(env, "XDG_CACHE_HOME", home, ".cache")
        if env.get("XDG_CACHE_HOME", "").startswith("/"):
            sources["cache_dir"] = Source("default", "below XDG_CACHE_HOME")
    return Config(
        **values,
        known_cache_dir=cache_dir,
        home=home,
        user_file=user_file,
        project_file=project_file,
        sources=sources,
    )


def load_from_process(flags: Mapping[str, object]) -> Config:
    """`load` with this process's environment and working directory."""
    return load(flags, env=os.environ, cwd=working_directory())


def working_directory() -> Path:
    """The current folder, or `/` when it was deleted under us: no project file, and nothing to crash on."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def list_format(name: str) -> str:
    """Check the `-f` of a command that prints a list. Raises InputError."""
    try:
        return str(_one_of(*LIST_FORMATS)(name, _Place(Path("/"), None)))
    except ValueError as exc:
        raise errors.InputError(f"--format: {exc}", next_step="Leave --format out for a table.") from exc


def _from_flags(flags: Mapping[str, object]) -> dict[str, object]:
    keys = {row.attribute: row.key for row in SETTINGS}
    return {keys[name]: value for name, value in flags.items() if value is not None}


def _from_env(env: Mapping[str, str]) -> dict[str, object]:
    return {row.key: env[row.env] for row in SETTINGS if row.env and env.get(row.env)}


def _project_values(path: Path, problems: list[str]) -> dict[str, object]:
    """The values of a project file, which may come with a stranger's repository: only harmless settings."""
    values = _file_values(path, problems)
    for key in [key for key in values if not _BY_KEY[key].in_project]:
        del values[key]
        problems.append(f"{path}: {key} may not be set in a project file; set it with {_elsewhere(key)}")
    return values


def _elsewhere(key: str) -> str:
    row = _BY_KEY[key]
    ways = [way for way in (row.flag, row.env) if way]
    return " or ".join([*ways, f"openjev config set {key}"])


def _file_values(path: Path, problems: list[str]) -> dict[str, object]:
    """The known keys of one TOML file; {} when there is no such file. What is wrong goes to `problems`."""
    try:
        path.stat()
    except OSError:
        return {}  # absent, or in a folder this user cannot even look into (a foreign HOME)
    try:
        table = read_toml(path)
    except errors.InputError as exc:
        problems.extend(exc.problems)
        return {}
    for key in [key for key in table if key not in _BY_KEY]:
        del table[key]
        problems.append(f"{path}: unknown key {_shown(key)}{errors.nearest(key, KEYS)}")
    return table


def read_toml(path: Path) -> dict[str, object]:
    """The values of a TOML file. Raises InputError with line and column, or with what the system says."""
    import tomllib

    try:
        text = path.read_bytes().decode("utf-8-sig")
        return tomllib.loads(text)
    except OSError as exc:
        problem = f"{path}: cannot be read: {exc.strerror}"
    except UnicodeDecodeError as exc:
        problem = f"{path}: not UTF-8 at byte {exc.start}"
    except tomllib.TOMLDecodeError as exc:
        problem = f"{path}:{_toml_fault(str(exc), text)}"
    except RecursionError:
        problem = f"{path}: nested too deeply"
    raise errors.InputError(problem, next_step=f"Correct the file, or move it away: {path}")


def _toml_fault(message: str, text: str) -> str:
    """`line:column: what`, out of tomllib's message, whose wording has been the same since Python 3.11."""
    what, _, where = message.rpartition(" (at ")
    match = re.match(r"line (\d+), column (\d+)", where)
    if match:
        return f"{match[1]}:{match[2]}: {what}"
    lines = text.split("\n")
    return f"{len(lines)}:{len(lines[-1]) + 1}: {what or message}"


def set_in_user_file(key: str, text: str, *, env: Mapping[str, str], cwd: Path) -> Path:
    """Write one setting into the user file, and keep the file before as `.bak`. An empty `text` removes it.

    Comments in the file are not kept; the `.bak` has them. Returns the file's path. Raises InputError.
    """
    row = setting(key)
    path = user_file_path(env)
    if path is None:
        raise no_home_error()
    try:
        value = row.parse(text, _Place(cwd, home_dir(env))) if text else None
    except ValueError as exc:
        raise errors.InputError(f"{key}: {exc}", next_step=f"openjev config set {key} VALUE") from exc
    try:
        _rewrite(path, row.key, value)
    except OSError as exc:
        raise errors.InputError(
            f"cannot write {exc.filename or path}: {exc.strerror}",
            next_step="Set XDG_CONFIG_HOME to a folder that you can write to.",
        ) from exc
    return path


def no_home_error() -> errors.InputError:
    """The error when there is no place for the user file."""
    return errors.InputError(
        "no place for the config file: HOME is not set and this user has no home folder",
        next_step="Set XDG_CONFIG_HOME to a folder that you can write to.",
    )


def _rewrite(path: Path, key: str, value: object) -> None:
    import tomli_w

    before = path.read_bytes() if path.exists() else None
    table = read_toml(path) if before is not None else {}
    table.pop(key, None)
    if value is not None:
        table[key] = _as_toml(value)
    replace_file(path, tomli_w.dumps(table).encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of the user's config folder in one step, and keep the one before as `.bak`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _write_private(path.with_name(path.name + ".bak"), path.read_bytes())
    _write_private(path, data)


def _write_private(path: Path, data: bytes) -> None:
    """Replace the file in one step. 0600, because the user file may hold a key."""
    # A link stays a link: people keep their config in a repository of dotfiles.
    path = path.resolve()
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.touch(mode=0o600)
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _as_toml(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple) and value and isinstance(value[0], float):
        return _written(value)
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return value
