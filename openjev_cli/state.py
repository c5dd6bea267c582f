"""What is judged: a text, a JSON value, or a chat.

Says which of the three something is and what of it the model reads. Images have their place here (a state may
be one, a chat part may hold one) but are not read yet: until then they are refused in one line. It does not
know questions or prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from openjev_cli import errors, reading

Kind = Literal["text", "json", "chat"]
Form = Literal["json", "text"]

ROLES = ("system", "user", "assistant", "tool")
IMAGE_SUFFIXES = (
    ".png",
    ".jpg",
    ".jpeg",
    ".webp",
    ".gif",
    ".heic",
    ".heif",
    ".avif",
    ".bmp",
    ".tif",
    ".tiff",
)


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
        return self if self.kind != "chat" else State("json", self.text, notices=self.notices)


def from_path(path: Path, *, compact: bool = True) -> State:
    """Return the state a file holds. Raises as `from_bytes`, and when the file cannot be read."""
    return from_bytes(reading.read_file(path), name=str(path), compact=compact)


def from_bytes(data: bytes, *, name: str, compact: bool = True) -> State:
    """Return the state of a file's bytes: an image by its content, else by the suffix of its name.

    .json, .yaml/.yml, .ndjson/.jsonl (an array of its records, with a notice), anything else text. compact:
    JSON without spaces after comma and colon.
    """
    suffix = Path(name).suffix.lower()
    text = _decode(data, name)
    if suffix in IMAGE_SUFFIXES:
        what = "is empty" if not data else "is no image but text"
        raise errors.InputError(
            f"{name}: named as an image, but it {what}", next_step="Check the file, or rename it to .txt."
        )
    if suffix == ".json":
        return from_value(reading.parse_json(text, name=name), compact=compact, name=name)
    if suffix in (".yaml", ".yml"):
        return from_value(reading.parse_yaml(text, name=name), compact=compact, name=name)
    if suffix in (".ndjson", ".jsonl"):
        records = reading.read_ndjson(text, name=name)
        state = from_value(records, compact=compact, name=name)
        count = f"{len(records)} record" + ("s" if len(records) != 1 else "")
        notice = f"{name}: {count} read as one state, an array; ask --each answers for each of them"
        return State(state.kind, state.text, state.messages, (notice,))
    return _text_state(text)


def from_stdin(data: bytes, *, form: Form | None = None, name: str = "stdin", compact: bool = True) -> State:
    """Return the state of bytes without a name: JSON if they parse as an object or array, else text.

    form: what the user forces with --json or --text. JSON that parses but is refused (a key twice, NaN) is
    an error and not text.
    """
    text = _decode(data, name)
    if form == "json":
        return from_value(reading.parse_json(text, name=name), compact=compact, name=name)
    if form is None and text.lstrip(" \t\r\n")[:1] in ("{", "["):
        try:
            return from_value(reading.parse_json(text, name=name), compact=compact, name=name)
        except reading.SyntaxFault:
            pass
    return _text_state(text)


def from_text(text: str, *, name: str = "--text") -> State:
    """Return the state of a text given literally. Raises InputError when the argument is not UTF-8."""
    return _text_state(reading.argument(text, name=name))


def from_value(value: reading.Value, *, compact: bool = True, name: str = "") -> State:
    """Return the state of a value that was read strictly: text, chat or JSON.

    Chat is a list, or exactly {"messages": list}, whose items are exactly role + content. Raises InputError
    for a chat that holds an image (`name` says whose it is).
    """
    if isinstance(value, str):
        return _text_state(value)
    text = reading.visible(reading.dumps(value, compact=compact))
    messages = _messages(value, name)
    return State("json", text) if messages is None else State("chat", text, messages)


def _text_state(text: str) -> State:
    return State("text", reading.visible(text))


def _decode(data: bytes, name: str) -> str:
    kind = image_kind(data)
    if kind is not None:
        raise errors.InputError(
            f"{name}: is an image ({kind}); this version does not read images yet",
            next_step="Give the state as text or JSON.",
        )
    return reading.decode(data, name=name, otherwise="is neither UTF-8 text nor an image")


def image_kind(data: bytes) -> str | None:
    """Return the format that the first bytes of an image name, or None."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"):
        return "HEIC"
    if data[4:8] == b"ftyp" and data[8:12] in (b"avif", b"avis"):
        return "AVIF"
    return None


# Chats


def _messages(value: reading.Value, name: str) -> tuple[Message, ...] | None:
    """Return the messages of a chat, or None if the value is no chat."""
    if isinstance(value, dict) and list(value) == ["messages"]:
        value = value["messages"]
    if not isinstance(value, list) or not value:
        return None
    items: list[tuple[str, list[tuple[str, str]]]] = []
    for item in value:
        if not isinstance(item, dict) or item.keys() != {"role", "content"}:
            return None
        role, parts = item["role"], _parts(item["content"])
        if not isinstance(role, str) or role not in ROLES or parts is None:
            return None
        items.append((role, parts))
    if any(kind != "text" for _, parts in items for kind, _ in parts):
        raise errors.InputError(
            (f"{name}: " if name else "") + "the chat holds an image; this version does not read images yet",
            next_step="Leave the image parts out of the messages.",
        )
    # llama.cpp joins the text parts of a message with a line end too (common/chat.cpp, b11434).
    return tuple(
        Message(role, reading.visible("\n".join(text for _, text in parts))) for role, parts in items
    )


def _parts(content: reading.Value) -> list[tuple[str, str]] | None:
    """Return (type, text) of each part of a message's content, or None if it is no such content."""
    if isinstance(content, str):
        return [("text", content)]
    if not isinstance(content, list) or not content:
        return None
    parts: list[tuple[str, str]] = []
    for part in content:
        if not isinstance(part, dict):
            return None
        kind, text = part.get("type"), part.get("text")
        if kind == "text" and part.keys() == {"type", "text"} and isinstance(text, str):
            parts.append((kind, text))
        elif kind == "image_url" and part.keys() == {"type", "image_url"}:
            parts.append((kind, ""))
        else:
            return None
    return parts
