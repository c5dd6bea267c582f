"""What can be completed: commands, options, values. Nothing is started, no setting read.

The scripts in `completions/` are generated from this and need no call of openjev at all. `candidates` answers
shells that do call it, with _OPENJEV_COMPLETE set (the protocol of Typer's own completion).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openjev_cli import cli, config, records

_VALUES: Mapping[str, tuple[str, ...]] = {
    "--profile": config.PROFILE_NAMES,
    "--format": config.FORMATS,
    "--as": records.FORMS,
}
_ARGUMENT_VALUES: Mapping[str, tuple[str, ...]] = {
    "PROFILE": config.PROFILE_NAMES,
    "[PROFILE]": config.PROFILE_NAMES,
    "KEY": config.KEYS,
}
_FILE_METAVARS = ("FILE", "IMG", "[STATE]", "URL|SOCKET")
_FILE_OPTIONS = ("--socket",)


@dataclass(frozen=True)
class Option:
    """One option. names: every spelling. values: what it can be, if that is a fixed list. takes_file: a path."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...] = ()
    takes_file: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class Command:
    """One command. path: its words behind `openjev`. subcommands: (name, help). values, takes_file: of its
    arguments."""

    path: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    subcommands: tuple[tuple[str, str], ...] = ()
    values: tuple[str, ...] = ()
    takes_file: bool = False


def commands() -> list[Command]:
    """Return every command, groups before what is in them."""
    found = [_root()]
    for name in cli.COMMANDS:
        found += _below((name,), _parser(name), cli.COMMANDS[name][2])
    return found


def candidates(words: Sequence[str], index: int) -> list[str]:
    """Return what the word at `index` can be, words[0] being `openjev`. Files are left to the shell."""
    current = words[index] if index < len(words) else ""
    before = list(words[1:index])
    command = _root()
    if before and before[0] in cli.COMMANDS:
        name = before[0]
        inside = _below((name,), _parser(name), "")
        command = next(
            (one for one in reversed(inside) if list(one.path) == before[: len(one.path)]), inside[0]
        )
    previous = before[-1] if before else ""
    for option in command.options:
        if previous in option.names and option.takes_value:
            return [value for value in option.values if value.startswith(current)]
    if current.startswith("-"):
        names = [name for option in command.options for name in option.names]
    else:
        names = [name for name, _ in command.subcommands] or list(command.values)
    return [name for name in names if name.startswith(current)]


def answer(environ: Mapping[str, str]) -> str:
    """Return the candidates that a shell asks for by its environment, one a line; nothing for nonsense."""
    import shlex

    text = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote is still open
        words = text.split()
    try:
        index = int(environ.get("COMP_CWORD", ""))
    except ValueError:
        index = len(words) if text.endswith((" ", "\n")) else max(0, len(words) - 1)
    return "".join(f"{one}\n" for one in candidates(words or ["openjev"], max(1, index)))


def _root() -> Command:
    options = (Option(("--version",), "Show the version and exit.", False), _HELP)
    return Command((), "", options, tuple((name, row[2]) for name, row in cli.COMMANDS.items()))


_HELP = Option(("-h", "--help"), "Show this message and exit.", False)


def _parser(name: str) -> Any:
    return cli.command(name)


def _below(path: tuple[str, ...], parser: Any, help: str) -> list[Command]:
    inner: dict[str, Any] = getattr(parser, "commands", {})
    options = [_option(one) for one in parser.params if one.param_type_name == "option" and not one.hidden]
    arguments = [one for one in parser.params if one.param_type_name == "argument"]
    found = Command(
        path,
        help or parser.get_short_help_str(90),
        (*(one for one in options if one.names != _HELP.names), _HELP),
        tuple((name, one.get_short_help_str(90)) for name, one in inner.items()),
        next((_ARGUMENT_VALUES[one.metavar] for one in arguments if one.metavar in _ARGUMENT_VALUES), ()),
        any((one.metavar or "").startswith(_FILE_METAVARS) for one in arguments),
    )
    below = [each for name, one in inner.items() for each in _below((*path, name), one, "")]
    return [found, *below]


def _option(one: Any) -> Option:
    names = (*one.opts, *one.secondary_opts)
    takes_file = (one.metavar or "").startswith(_FILE_METAVARS) or any(
        name in _FILE_OPTIONS for name in names
    )
    values = next((_VALUES[name] for name in names if name in _VALUES), ())
    if "--format" in names and "|" in (one.metavar or ""):
        values = tuple(one.metavar.split("|"))  # not every command has every format
    help = " ".join((one.help or "").split())
    return Option(names, help, not one.is_flag, values, takes_file and not one.is_flag, bool(one.multiple))
