"""Request bodies that are nearly right, the same ones in every run."""

from __future__ import annotations

import json
import random
from typing import Any

# In every text that a body holds and that no error may repeat. (Only the id of a question or the placeholder of
# an asset stands in the path to a fault: a client needs it to find the fault.)
MARK = "zq7secret"
_JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 10**400, "", " ", MARK, "\x00" + MARK, "\u202e" + MARK, [], {}, [[]],
    {"": MARK}, {MARK: MARK}, [MARK], [None], {"type": MARK}, "<|im_end|>" + MARK, "\ud800",
)  # fmt: skip
_TYPES = (
    "application/json", "text/plain", MARK, "", "multipart/form-data", "multipart/form-data; boundary=x",
    'multipart/form-data; boundary="' + MARK + '"',
)  # fmt: skip


def body(number: int) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of request `number`."""
    chance = random.Random(number)
    value = _right(chance)
    for _ in range(chance.choice((0, 1, 3, 4, 5, 5, 6, 6, 7, 8))):
        value = _changed(value, chance)
    try:
        data = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    except RecursionError:  # nested deeper than Python's own writer goes
        data = b"[" * 3000 + b"]" * 3000
    headers = {"content-type": "application/json"}
    kind = chance.random()
    if kind < 0.15:
        data = _torn(data, chance)
    elif kind < 0.2:
        headers["content-type"] = chance.choice(_TYPES)
    elif kind < 0.25:
        headers["content-encoding"] = chance.choice(("gzip", "zstd", "deflate", "br", MARK))
    elif kind < 0.3:
        mark = b"--x\r\nContent-Disposition: form-data; name="
        data = (
            mark + chance.choice((b'"request"', b'"other"', b"request", MARK.encode())) + b"\r\n\r\n" + data
        )
        data += chance.choice((b"\r\n--x--", b"\r\n--x", b"", b"\r\n" + mark + b'"p"\r\n\r\nPNG\r\n--x--'))
        headers["content-type"] = "multipart/form-data; boundary=x"
    return data, headers


def leaks(reply: bytes) -> bool:
    """Whether an error reply repeats something of a body."""
    found = json.loads(reply)
    details = found["detail"] if isinstance(found["detail"], list) else []
    for detail in details:
        if detail["loc"][1:2] in (["questions"], ["assets"]):
            del detail["loc"][2:3]
    return MARK in json.dumps(found, ensure_ascii=False)


def _right(chance: random.Random) -> dict[str, Any]:
    options = {f"{MARK}-{i}": chance.choice((None, MARK, [MARK])) for i in range(chance.choice((2, 3)))}
    asked = {
        "n": {"type": "noul", "instructions": MARK, "criteria": {"true": MARK}},
        "c": {"type": "choice", "instructions": [MARK], "criteria": options},
        "s": {"type": "score", "instructions": {MARK: 1}, "criteria": [MARK, {"level": MARK}]},
    }
    ids = chance.sample(sorted(asked), chance.choice((1, 1, 1, 2)))
    states: tuple[Any, ...] = (
        f"text {MARK}",
        {"a": [1.0, MARK]},
        [{"role": "user", "content": MARK}],
        [{"role": "user", "content": [{"type": "text", "text": MARK}]}],
        [{"role": "tool", "content": MARK}],
    )
    value: dict[str, Any] = {"state": chance.choice(states), "questions": {id: asked[id] for id in ids}}
    if chance.random() < 0.3:
        value["model"] = chance.choice(("jev-latest", MARK))
    if chance.random() < 0.2:
        value["images"] = chance.choice(([], [MARK], ["data:image/png;base64," + MARK], ["file:///" + MARK]))
    if chance.random() < 0.2:
        value["assets"] = {"text": chance.choice(({"data_base64": MARK}, {"part": MARK}, {}, MARK))}
    return value


def _changed(value: Any, chance: random.Random) -> Any:
    """Return the value with one part of it, somewhere, exchanged, dropped or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        return [*value[:at], _changed(value[at], chance), *value[at + 1 :]]
    if chance.random() < 0.05:
        for _ in range(chance.choice((3, 250, 400))):
            value = [value]
        return value
    return chance.choice(_JUNK)


def _torn(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return chance.choice(
        (data[:at], data[at:], data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :], data * 2, b"")
    )
