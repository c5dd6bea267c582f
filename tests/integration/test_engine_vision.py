"""Pictures in the prefix of POST /decide: read once, never mixed up, refused by name."""

from __future__ import annotations

import base64
import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as pil

from tests.integration.decide_server import TOLERANCE, Server, difference, some_questions, some_tokens

SLOTS = 3


@pytest.fixture(scope="module")
def engine(llama_server: Path, tiny_hybrid: Path, tiny_projector: Path) -> Iterator[Server]:
    extra: list[str | Path] = ["--mmproj", tiny_projector, "--image-max-tokens", "256"]
    with Server(llama_server, tiny_hybrid, *extra, slots=SLOTS, context=2048) as server:
        yield server


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.nodeid)


def picture(rng: random.Random, width: int = 128, height: int = 96) -> str:
    """Return a random PNG as base64."""
    out = io.BytesIO()
    pil.frombytes("RGB", (width, height), rng.randbytes(3 * width * height)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


class Asker:
    """Asks about prefixes given as segments."""

    def __init__(self, engine: Server, rng: random.Random, count: int) -> None:
        self._engine = engine
        self.questions = some_questions(rng, count, most=10)
        self.read = sum(len(ids) for ids, _ in self.questions)

    def __call__(self, prefix: list[Any], images: list[str], **fields: object) -> dict[str, Any]:
        suffixes = [{"segments": [{"tokens": ids}], "labels": labels} for ids, labels in self.questions]
        body = {"prefix": prefix, "images": images, "suffixes": suffixes, **fields}
        status, reply = self._engine.call("POST", "/decide", body)
        assert status == 200, reply
        assert isinstance(reply, dict)
        return reply

    def lone(self, prefix: list[Any], images: list[str]) -> list[Any]:
        results = []
        kept = self.questions
        for question in kept:
            self.questions = [question]
            results += self(prefix, images, cache_prompt=False)["results"]
        self.questions = kept
        return results


def around(rng: random.Random, before: int, after: int, image: int = 0) -> list[Any]:
    return [
        {"tokens": some_tokens(rng, before)},
        {"image": image},
        {"tokens": some_tokens(rng, after)},
    ]


@pytest.mark.parametrize(("before", "after"), [(0, 1), (40, 30), (500, 600), (505, 1), (1000, 20)])
def test_a_picture_is_read_once(engine: Server, rng: random.Random, before: int, after: int) -> None:
    """The lengths put the picture at the start, across a multiple of 512 and directly before one."""
    ask, images, prefix = Asker(engine, rng, 7), [picture(rng)], around(rng, before, after)
    lone = ask.lone(prefix, images)
    cold = ask(prefix, images)
    assert cold["timings_ms"]["encode"] > 0
    assert cold["tokens"]["evaluated"] == cold["tokens"]["prefix"] + ask.read
    warm = ask(prefix, images)
    assert warm["timings_ms"]["encode"] == 0
    assert warm["tokens"]["prefix_cached"] == warm["tokens"]["prefix"]
    assert warm["tokens"]["evaluated"] == ask.read
    for reply in (cold, warm):
        assert difference(lone, reply["results"]) <= TOLERANCE


def test_another_picture_of_the_same_size_gets_its_own_answers(engine: Server, rng: random.Random) -> None:
    ask, prefix = Asker(engine, rng, 2), around(rng, 30, 30)
    pictures = [picture(rng), picture(rng)]
    lone = [ask.lone(prefix, [one]) for one in pictures]
    assert difference(*lone) > 1e-3
    for i in range(10):
        assert difference(lone[i % 2], ask(prefix, [pictures[i % 2]])["results"]) <= TOLERANCE


def test_two_pictures_and_one_shown_twice(engine: Server, rng: random.Random) -> None:
    ask, pictures = Asker(engine, rng, 4), [picture(rng), picture(rng, 64, 160)]
    prefix = [*around(rng, 5, 5, 0), {"image": 1}, *around(rng, 5, 5, 0)]
    lone = ask.lone(prefix, pictures)
    for _ in range(2):
        assert difference(lone, ask(prefix, pictures)["results"]) <= TOLERANCE


def test_the_text_behind_a_picture_may_change(engine: Server, rng: random.Random) -> None:
    ask, images, prefix = Asker(engine, rng, 2), [picture(rng, 384, 384)], around(rng, 10, 400)
    ask(prefix, images, checkpoints=[100])
    edited = [*prefix[:2], {"tokens": [*prefix[2]["tokens"][:200], *some_tokens(rng, 50)]}]
    reply = ask(edited, images)
    assert difference(ask.lone(edited, images), reply["results"]) <= TOLERANCE
    # 10 tokens, vision start, 12 x 12 of the picture; the point inside it moved behind the next token, vision end
    assert reply["tokens"]["prefix_cached"] == 10 + 1 + 144 + 1
    assert reply["timings_ms"]["encode"] == 0


def test_pictures_in_rotation_come_back_from_memory(
    llama_server: Path, tiny_hybrid: Path, tiny_projector: Path, rng: random.Random
) -> None:
    with Server(llama_server, tiny_hybrid, "--mmproj", tiny_projector, slots=1, context=1024) as server:
        ask = Asker(server, rng, 3)
        states = [(around(rng, 20, 20), [picture(rng)]) for _ in range(3)]
        lone = [ask.lone(*state) for state in states]
        for turn in range(3):
            for state, expected in zip(states, lone, strict=True):
                reply = ask(*state)
                assert difference(expected, reply["results"]) <= TOLERANCE
                if turn > 0:
                    assert reply["tokens"]["evaluated"] == ask.read


def test_bad_pictures_name_their_field(engine: Server, rng: random.Random) -> None:
    good = picture(rng)
    truncated = base64.b64encode(base64.b64decode(good)[:60]).decode()
    sound = base64.b64encode(b"RIFF\x24\0\0\0WAVEfmt " + bytes(40)).decode()
    text = {"tokens": [30]}
    image = {"image": 0}
    refused = [
        ([text], [good], "images[0]: is not used in the prefix"),
        ([{"image": 1}, text], [good], "prefix[0].image: must be in 0..0"),
        ([{"image": -1}, text], [good], "prefix[0].image: must be in 0..0"),
        ([image, text], ["%%%"], "images[0]: is not base64"),
        ([image, text], [""], "images[0]: is not a PNG, JPEG or BMP file"),
        ([image, text], [sound], "images[0]: is not a PNG, JPEG or BMP file"),
        ([image, text], [truncated], "images[0]: cannot be decoded"),
        ([image, text], [7], "images[0]: must be a base64 string"),
    ]
    for prefix, images, message in refused:
        body = {"prefix": prefix, "images": images, "suffixes": [{"segments": [text], "labels": [40, 41]}]}
        status, reply = engine.call("POST", "/decide", body)
        assert status == 400, (message, reply)
        assert reply["error"]["message"].startswith(message)
    assert engine.is_alive()


def test_a_picture_that_does_not_decode_is_handed_to_no_other_program(
    llama_server: Path,
    tiny_hybrid: Path,
    tiny_projector: Path,
    rng: random.Random,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ffmpeg", "ffprobe"):
        (tmp_path / name).write_text('#!/bin/sh\n: > "$0.ran"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    broken = base64.b64encode(base64.b64decode(picture(rng))[:60]).decode()
    body = {
        "prefix": [{"image": 0}, {"tokens": [30]}],
        "images": [broken],
        "suffixes": [{"segments": [{"tokens": [31]}], "labels": [40, 41]}],
    }
    with Server(llama_server, tiny_hybrid, "--mmproj", tiny_projector, slots=1, context=256) as server:
        status, reply = server.call("POST", "/decide", body)
    assert (status, reply["error"]["message"]) == (400, "images[0]: cannot be decoded")
    assert not list(tmp_path.glob("*.ran"))
