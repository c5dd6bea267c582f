"""What is judged: a text, a JSON value, or a chat, and the images that belong to it.

Says which of the three something is and what of it the model reads. A state may also be nothing but images,
and a chat may hold some among its texts. It does not know questions or prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from openjev_cli import errors, reading
from openjev_cli import images as images_

Kind = Literal["text", "json", "chat"]
Form = Literal["json", "text"]

ROLES = ("system", "user", "assistant", "tool")
# What a message shows, in order.
Part = str | images_.Image


@dataclass(frozen=True)
class Message:
    """One message of a chat. role: system, user, assistant or tool. content: its text. parts: its texts and
    images in order, empty if there is no image."""

    role: str
    content: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class State:
    """What is judged, as the model reads it: control characters are visible escapes, JSON is compacted.

    text: the whole state as one text; of a chat its JSON form. messages: the chat's, else empty. images:
    shown before everything else; a chat's own stay where they are. notices: lines for stderr.
    """

    kind: Kind
    text: str
    messages: tuple[Message, ...] = ()
    notices: tuple[str, ...] = field(default=(), compare=False)
    images: tuple[images_.Image, ...] = ()

    @property
    def all_images(self) -> tuple[images_.Image, ...]:
        """Every image of this state in the order in which the model sees them."""
        held = (part for message in self.messages for part in message.parts if not isinstance(part, str))
        return (*self.images, *held)

    def as_json(self) -> State:
        """Return a chat as a JSON state (for templates that refuse the conversation); others unchanged."""
        if self.kind != "chat":
            return self
        return State("json", self.text, notices=self.notices, images=self.all_images)


def from_path(path: Path, *, compact: bool = True, image_tokens: int = images_.DEFAULT_TOKENS) -> State:
    """Return the state a file holds. Raises as `from_bytes`, and when the file cannot be read."""
    return from_bytes(reading.read_file(path), name=str(path), compact=compact, image_tokens=image_tokens)


def from_bytes(
    data: bytes, *, name: str, compact: bool = True, image_tokens: int = images_.DEFAULT_TOKENS
) -> State:
    """Return the state of a file's bytes: an image by its content, else by the suffix of its name.

    .json, .yaml/.yml, .ndjson/.jsonl (an array of its records, with a notice), anything else text. compact:
    JSON without spaces after comma and colon. image_tokens: what an image may cost.
    """
    suffix = Path(name).suffix.lower()
    if images_.kind(data) is not None or images_.is_named_so(name):
        return with_images(None, [images_.from_bytes(data, name=name, max_tokens=image_tokens)])
    text = _decode(data, name)
    if suffix == ".json":
        value = reading.parse_json(text, name=name)
        return from_value(value, compact=compact, name=name, image_tokens=image_tokens)
    if suffix in (".yaml", ".yml"):
        value = reading.parse_yaml(text, name=name)
        return from_value(value, compact=compact, name=name, image_tokens=image_tokens)
    if suffix in (".ndjson", ".jsonl"):
        records = reading.read_ndjson(text, name=name)
        state = from_value(records, compact=compact, name=name)
        count = f"{len(records)} record" + ("s" if len(records) != 1 else "")
        notice = f"{name}: {count} read as one state, an array; ask --each answers for each of them"
        return replace(state, notices=(notice,))
    return _text_state(text)


def from_stdin(
    data: bytes,
    *,
    form: Form | None = None,
    name: str = "stdin",
    compact: bool = True,
    image_tokens: int = images_.DEFAULT_TOKENS,
) -> State:
    """Return the state of bytes without a name: image, JSON if they parse as an object or array, else text.

    form: what the user forces with --json or --text. JSON that parses but is refused (a key twice, NaN) is
    an error and not text.
    """
    if form is None and images_.kind(data) is not None:
        return with_images(None, [images_.from_bytes(data, name=name, max_tokens=image_tokens)])
    text = _decode(data, name)
    if form == "json":
        value = reading.parse_json(text, name=name)
        return from_value(value, compact=compact, name=name, image_tokens=image_tokens)
    if form is None and text.lstrip(" \t\r\n")[:1] in ("{", "["):
        try:
            value = reading.parse_json(text, name=name)
        except reading.SyntaxFault:
            return _text_state(text)
        return from_value(value, compact=compact, name=name, image_tokens=image_tokens)
    return _text_state(text)


def from_text(text: str, *, name: str = "--text") -> State:
    """Return the state of a text given literally. Raises InputError when the argument is not UTF-8."""
    return _text_state(reading.argument(text, name=name))


def from_value(
    value: reading.Value, *, compact: bool = True, name: str = "", image_tokens: int = images_.DEFAULT_TOKENS
) -> State:
    """Return the state of a value that was read strictly: text, chat or JSON.

    Chat is a list, or exactly {"messages": list}, whose items are exactly role + content. Its images are data
    URLs. Raises InputError with every image that cannot be used (`name` says whose they are).
    """
    if isinstance(value, str):
        return _text_state(value)
    items = _chat(value)
    if items is None:
        return State("json", reading.visible(reading.dumps(value, compact=compact)))
    messages = _messages(items, name, image_tokens)
    notices = tuple(
        notice for message in messages for part in message.parts if isinstance(part, images_.Image)
        for notice in part.notices
    )  # fmt: skip
    text = reading.visible(reading.dumps(_without_images(value), compact=compact))
    return State("chat", text, messages, notices)


def with_images(state: State | None, added: Sequence[images_.Image]) -> State:
    """Return the state with images shown before it; without a state they are all there is to judge.

    Raises InputError if that makes too many.
    """
    state = state or State("text", "")
    notices = (notice for image in added for notice in image.notices)
    whole = replace(state, images=(*state.images, *added), notices=(*state.notices, *notices))
    images_.refuse_too_many(len(whole.all_images))
    return whole


def _text_state(text: str) -> State:
    return State("text", reading.visible(text))


def _decode(data: bytes, name: str) -> str:
    return reading.decode(data, name=name, otherwise="is neither UTF-8 text nor an image")


# Chats


def _chat(value: reading.Value) -> list[tuple[str, list[tuple[str, str]]]] | None:
    """Return (role, parts) of each message, a part being (type, text or URL), or None if it is no chat."""
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
    return items


def _parts(content: reading.Value) -> list[tuple[str, str]] | None:
    """Return (type, text or URL) of each part of a message's content, or None if it is no such content."""
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
            parts.append((kind, _url(part["image_url"])))
        else:
            return None
    return parts


def _url(value: reading.Value) -> str:
    """Return the URL of an image part, {"url": ...} or the bare URL; "" (refused later) if there is none."""
    if isinstance(value, dict):
        value = value.get("url")
    return value if isinstance(value, str) else ""


def _messages(
    items: list[tuple[str, list[tuple[str, str]]]], name: str, image_tokens: int
) -> tuple[Message, ...]:
    """Return the messages of a chat, its images read. Raises InputError with all that cannot be."""
    # Counted first: reading pictures is work that a request of hundreds should not get.
    images_.refuse_too_many(sum(kind == "image_url" for _, parts in items for kind, _ in parts))
    faults: list[errors.InputError] = []
    messages: list[Message] = []
    for at, (role, parts) in enumerate(items):
        # llama.cpp joins the text parts of a message with a line end too (common/chat.cpp, b11434).
        content = reading.visible("\n".join(text for kind, text in parts if kind == "text"))
        shown: list[Part] = []
        for position, (kind, text) in enumerate(parts):
            if kind == "text":
                # No line end beside an image, there as here.
                follows_text = bool(shown) and isinstance(shown[-1], str)
                shown.append(("\n" if follows_text else "") + reading.visible(text))
                continue
            where = f"{name}: " if name else ""
            where += f"messages[{at}].content[{position}]"
            try:
                shown.append(images_.from_data_url(text, name=where, max_tokens=image_tokens))
            except errors.InputError as exc:
                faults.append(exc)
        has_image = any(kind != "text" for kind, _ in parts)
        messages.append(Message(role, content, tuple(shown) if has_image else ()))
    if faults:
        raise errors.collect([fault.message for fault in faults], next_step=faults[0].next_step)
    return tuple(messages)


def _without_images(value: reading.Value) -> reading.Value:
    """Return a chat's value with {"type": "image"} where its images are: as text their bytes say nothing."""
    if isinstance(value, list):
        return [_without_images(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "image_url":
        return {"type": "image"}
    return {key: _without_images(item) for key, item in value.items()}
