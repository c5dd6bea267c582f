"""The command line: one file a command, each of which parses, calls one function and prints what it returns.

Only the command that is called is imported: what all of them would load takes longer than a warm answer.
"""

from __future__ import annotations

import errno
import re
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main
from typer.exceptions import TyperException

from openjev_cli import __version__, errors
from openjev_cli.cli import common

# name: (module, attribute, first sentence of its help). A function is a command, a Typer app a group.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "ask": ("ask", "ask", "Answer questions about one state."),
    "is": ("ask", "is_", "Answer one yes/no question: exit code 0 for yes, 1 for no."),
    "pick": ("ask", "pick", "Choose one of the options and print its name."),
    "check": ("check", "check", "Compare answer sets with what they expect and with their locks."),
    "record": (
        "check",
        "record",
        "Answer the cases of answer sets and write the answers, with what produced them, into their locks.",
    ),
    "calibrate": (
        "calibrate",
        "calibrate",
        "Fit the probabilities of a model to labelled rows, and tell how far they can be trusted.",
    ),
    "serve": ("serve", "serve", "Answer over HTTP: POST /v1/systemone, as TypeSafe's API does."),
    "server": (
        "server",
        "app",
        "The llama-server that all calls share: it starts by itself and goes when idle.",
    ),
    "models": ("models", "app", "List, fetch, check and remove model files."),
    "config": ("config", "app", "Show and change settings, and where each came from."),
    "doctor": (
        "doctor",
        "doctor",
        "Check the engine, the models and this machine, ask a known question, and name what to fix.",
    ),
}


class _Lazy(typer.core.TyperGroup):
    """A group that imports a command when it is called, and lists all of them without importing any."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[2]) for name, row in COMMANDS.items()])


def command(name: str) -> Any:
    """Return the parser of one of `COMMANDS`, after importing its module."""
    module, attribute, _ = COMMANDS[name]
    found = getattr(import_module(f"openjev_cli.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(found)
        found = single
    found._add_completion = False
    parser = typer.main.get_command(found)
    parser.name = name
    return parser


app = typer.Typer(
    name="openjev",
    cls=_Lazy,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"openjev {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Typed decisions from a local model: a state and questions in, answers with probabilities out."""


def run(arguments: list[str], *, began_at_s: float) -> int:
    """Run one command line and return its exit code; errors that a user can cause are printed."""
    common.began_at_s = began_at_s
    try:
        # Not app(...): its main() turns a closed pipe into exit code 1, which only a verdict may be.
        command = typer.main.get_command(app)
        with command.make_context("openjev", arguments) as context:
            result = command.invoke(context)
    except typer.Exit as exc:
        return exc.exit_code
    except errors.OpenjevError as exc:
        if common.wants_debug(arguments):
            import traceback

            traceback.print_exc()
        return _failed(exc)
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        from openjev_cli import output

        return _failed(output.unwritable(exc.strerror or "no space left"))
    except typer.Abort as exc:
        raise KeyboardInterrupt from exc
    except TyperException as exc:
        # Usage errors of the parser, in the shape of all our errors.
        message = _usage_message(exc)
        if message.startswith("Usage: "):  # a group that was called without a command
            print(message, file=sys.stderr)
            return int(errors.Exit.INPUT)
        path = getattr(getattr(exc, "ctx", None), "command_path", None) or "openjev"
        return _failed(errors.InputError(" ".join(message.split()), next_step=f"{path} --help"))
    return result if isinstance(result, int) else 0


def _usage_message(exc: TyperException) -> str:
    """Return what the parser says, with the nearest name as all our errors tell it."""
    message = str(exc.format_message())
    options = getattr(exc, "possibilities", None)
    if options:  # best first; the parser would list all of them, sorted
        return f"{exc.message} (did you mean {options[0]}?)"
    unknown = re.match(r"(No such command '(.*?)')\.", message)
    context = getattr(exc, "ctx", None)
    if unknown and context is not None:
        hint = errors.nearest(unknown[2], context.command.list_commands(context))
        return unknown[1] + hint if hint else f"{unknown[1]}."
    return message


def _failed(exc: errors.OpenjevError) -> int:
    from openjev_cli import output

    output.error(exc)
    return int(exc.exit_code)
