"""What several commands share: the common options, and how a state and questions are picked from a call."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openjev_cli import errors

if TYPE_CHECKING:
    from openjev_cli import config, images, questions
    from openjev_cli import state as states

# Set by the entry: when the process began, so that `parse` includes the start of the interpreter's work.
began_at_s = 0.0

Profile = Annotated[str | None, typer.Option("-p", "--profile", help="Pinned model and settings to ask.")]
ModelFile = Annotated[str | None, typer.Option("--model", metavar="FILE.gguf", help="Ask this model file.")]
Mmproj = Annotated[str | None, typer.Option("--mmproj", metavar="FILE", help="The model's image projector.")]
ReadoutFlag = Annotated[
    str | None,
    typer.Option("--readout", metavar="WAY", help="Read options by `letters` or by their own `words`."),
]
ConnectTo = Annotated[
    str | None,
    typer.Option("--connect", metavar="URL|SOCKET", help="Ask a llama-server that already runs."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="table|json|jsonl|tsv|value",
        help="Output format. Default: a table on a terminal, else JSON.",
    ),
]
PlainFormat = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="table|json|jsonl|tsv|value",
        help="Output format. Default: the bare answer.",
    ),
]
Timing = Annotated[
    bool | None, typer.Option("--timing/--no-timing", help="Show where the time went below a table.")
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration", metavar="FILE|off", help="Use this calibration (default: the model's stored one)."
    ),
]
Orders = Annotated[
    int,
    typer.Option(
        "--orders",
        metavar="N",
        min=1,
        max=64,
        help="Read each question in N orders of its options, and average them.",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor keep anything cached.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No notices on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")]
KeepAlive = Annotated[
    str | None, typer.Option("--keep-alive", metavar="TIME", help="How long an idle server stays (10m).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Read the state as JSON, whatever its name.")]
Text = Annotated[
    str | None,
    typer.Option("--text", metavar="TEXT", help="The state itself, as text; `-` reads it from stdin."),
]
StateArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[STATE]",
        help="A file (an image too), or `-` for stdin (the default if it is a pipe or file).",
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Option(
        "-i", "--image", metavar="IMG", help="An image of the state: PNG, JPEG or WebP; `-` is stdin."
    ),
]
ImageTokens = Annotated[
    int | None,
    typer.Option(
        "--image-tokens", metavar="N", help="Tokens an image may cost; a larger one is resized (512)."
    ),
]


def wants_debug(arguments: Sequence[str]) -> bool:
    """Return whether errors should show their traceback, also when the settings themselves are wrong."""
    return "--debug" in arguments or os.environ.get("OPENJEV_DEBUG", "").lower() in ("1", "true", "yes", "on")


def load_config(**flags: Any) -> config.Config:
    """Return the settings of this call. flags: by field name; None and False switches mean not given."""
    from openjev_cli import config

    has_no_cache = flags.pop("no_cache", False)
    given = {name: value for name, value in flags.items() if value is not None and value is not False}
    if has_no_cache:
        given["cache"] = False
    if flags.get("timing") is False:
        given["timing"] = False
    return config.load_from_process(given)


def refuse_format_of_answers(settings: config.Config) -> None:
    """Raise InputError when a call that prints a report names a format that only answers have. A config file may:
    it is for all commands."""
    if settings.format in ("tsv", "value") and settings.sources["format"].kind == "flag":
        raise errors.InputError(
            f"--format {settings.format}: a report is printed as table, json or jsonl",
            next_step="leave --format out, or give one of these",
        )


def read_stdin(what: str) -> bytes:
    """Return all of stdin. Says on stderr that it waits when somebody would have to type."""
    from openjev_cli import reading

    if sys.stdin is not None and sys.stdin.isatty():
        print(f"reading {what} from the terminal; end it with Ctrl-D", file=sys.stderr)
    return reading.read_stdin()


def stdin_is_piped() -> bool:
    """Return whether stdin is a pipe, a socket or a file that somebody meant to be read."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def one_reader_of_stdin(
    files: Sequence[str], argument: str | None, text: str | None, images: Sequence[str] = ()
) -> None:
    """Refuse a call in which two things would read stdin, or no state is left. Reads nothing."""
    if "-" in images and (images.count("-") > 1 or "-" in (*files, argument, text)):
        raise errors.InputError(
            "-i - reads the image from stdin, and something else would read it too",
            next_step="give the others as files",
        )
    if files.count("-") > 1:
        raise errors.InputError("-q - is given twice, but stdin can be read once", next_step="drop one -q -")
    if "-" in files and "-" in (argument, text):
        raise errors.InputError(
            "the state and the questions cannot both be read from stdin",
            next_step="give one of them as a file",
        )
    if "-" in files and argument is None and text is None and not images:
        raise errors.InputError(
            "no state: stdin holds the questions", next_step="name the state's file before -q -"
        )


def read_state(
    argument: str | None,
    *,
    text: str | None,
    as_json: bool,
    settings: config.Config,
    images: Sequence[str] = (),
    image_tokens: int | None = None,
) -> states.State:
    """Return the state of a call with its images: the argument's file, stdin, or the literal text; stdin only
    if there are no images. Raises InputError."""
    from openjev_cli import images as images_
    from openjev_cli import state as states

    tokens = images_.DEFAULT_TOKENS if image_tokens is None else images_.budget(image_tokens)
    if not images:
        return _not_blank(_read_state(argument, text, as_json, settings, tokens))
    shown = _read_images(images, tokens)
    is_alone = argument is None and text is None
    state = None if is_alone else _read_state(argument, text, as_json, settings, tokens)
    return states.with_images(state, shown)


def _read_images(names: Sequence[str], tokens: int) -> list[images.Image]:
    """Return the images of -i. Raises one InputError with all that cannot be used."""
    from openjev_cli import images, reading

    images.refuse_too_many(len(names))
    shown: list[images.Image] = []
    faults: list[errors.InputError] = []
    for name in names:
        try:
            data = read_stdin("the image") if name == "-" else reading.read_file(Path(name))
            shown.append(images.from_bytes(data, name="stdin" if name == "-" else name, max_tokens=tokens))
        except errors.InputError as exc:
            faults.append(exc)
    if faults:
        problems = [problem for fault in faults for problem in fault.problems]
        raise errors.collect(problems, next_step=faults[0].next_step)
    return shown


def _read_state(
    argument: str | None, text: str | None, as_json: bool, settings: config.Config, tokens: int
) -> states.State:
    from openjev_cli import reading
    from openjev_cli import state as states

    compact = settings.compact_json
    if text is not None and text != "-":
        _refuse_both(argument, text)
        if as_json:
            value = reading.parse_json(text, name="--text")
            return states.from_value(value, compact=compact, name="--text", image_tokens=tokens)
        return states.from_text(text)
    wants_stdin = argument == "-" or text == "-"
    if argument is not None and argument != "-":
        if text == "-":
            raise errors.InputError(f"two states: {argument} and --text -", next_step="give one of them")
        path = Path(argument)
        if as_json:
            data = reading.read_file(path)
            return states.from_stdin(data, form="json", name=argument, compact=compact, image_tokens=tokens)
        return states.from_path(path, compact=compact, image_tokens=tokens)
    if not wants_stdin and not stdin_is_piped():
        raise errors.InputError(
            "no state to ask about", next_step="name a file, pipe it in, or give it with --text"
        )
    form: states.Form | None = "json" if as_json else "text" if text == "-" else None
    data = read_stdin("the state")
    return states.from_stdin(data, form=form, compact=compact, image_tokens=tokens)


def _not_blank(state: states.State) -> states.State:
    """Refuse a state that holds nothing: an answer about it would only hide that a command before failed."""
    if state.kind == "text" and not state.images and not state.text.strip():
        raise errors.InputError("the state is empty", next_step="check the file, or what is piped in")
    return state


def _refuse_both(argument: str | None, text: str) -> None:
    if argument is not None:
        raise errors.InputError(f"two states: {argument} and --text", next_step="give one of them")
    if len(text) < 256 and "\n" not in text and os.path.isfile(text):  # noqa: PTH113 - any text may be here
        raise errors.InputError(
            f"--text takes the text itself, and {text} is a file",
            next_step=f"to read the file as text: --text - < {text}",
        )


def question_sources(files: Sequence[str], inline: Sequence[str]) -> list[questions.Source]:
    """Return the sources of a call's questions in order: files (`-` is stdin), then inline."""
    from openjev_cli import questions, reading

    sources = []
    for name in files:
        if name == "-":
            sources.append(questions.Source("stdin", read_stdin("the questions"), is_stdin=True))
        else:
            sources.append(questions.Source(name, reading.read_file(Path(name))))
    sources.extend(questions.inline(text) for text in inline)
    return sources


def environment() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ
