"""What is judged: a text, a JSON value, or a chat.

Says which of the three something is and what of it the model reads. Images come with issue 4's module; until
then bytes that are an image are refused in one line. It does not know questions or prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from openjev_cli import reading

Kind = Literal["text", "json", "chat"]


@dataclass(frozen=True)
class Message:
    """One message of a chat. role: system, user, assistant or tool."""

    role: str
    content: str


@dataclass(frozen=True)
class State:
    """What is judged, as the model reads it: control characters are visible escapes, JSON is compacted.

    text: the whole state as one text; of a chat its JSON form. messages: the chat's, else empty.
    notices: lines for stderr.
    """

    kind: Kind
    text: str
    messages: tuple[Message, ...] = ()
    notices: tuple[str, ...] = field(default=(), compare=False)

    def as_json(self) -> State:
        """Return a chat as a JSON state (for templates that refuse the conversation); others unchanged."""
        raise NotImplementedError


def from_path(path: Path, *, compact: bool = True) -> State:
    """Return the state a file holds, by its suffix: .json, .yaml/.yml, .ndjson/.jsonl, else text."""
    raise NotImplementedError


def from_bytes(data: bytes, *, name: str, compact: bool = True) -> State:
    """Return the state of a file's bytes, by the suffix of its name."""
    raise NotImplementedError


def from_stdin(
    data: bytes, *, form: Literal["json", "text"] | None = None, name: str = "stdin", compact: bool = True
) -> State:
    """Return the state of bytes without a name: JSON if they parse as an object or array, else text.

    form: what the user forces with --json or --text."""
    raise NotImplementedError


def from_text(text: str) -> State:
    """Return the state of a text given literally."""
    raise NotImplementedError


def from_value(value: reading.Value, *, compact: bool = True) -> State:
    """Return the state of a value that was read strictly: text, chat or JSON."""
    raise NotImplementedError
