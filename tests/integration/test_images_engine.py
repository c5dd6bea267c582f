"""What the engine makes of the pictures it is sent: their sizes and token counts, by its own log."""

from __future__ import annotations

import base64
import io
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as pil

from openjev_cli import images
from openjev_cli.engine.client import Client


@dataclass
class Engine:
    """A llama-server with a projector, its debug log, and what it has counted."""

    client: Client
    log: Path

    def tokens(self, media: str, data: str) -> tuple[int, tuple[int, int]]:
        """Return how long a prompt with this picture is, and its grid as the engine's log gives it."""
        before = self.log.stat().st_size
        url = {"url": f"data:{media};base64,{data}"}
        content = [{"type": "image_url", "image_url": url}]
        reply: Any = self.client.post(
            "/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": content}]}
        )
        found: dict[str, str] = {}
        deadline_s = time.monotonic() + 10
        while len(found) < 2 and time.monotonic() < deadline_s:  # the log is written by a thread of its own
            with self.log.open(encoding="utf-8", errors="replace") as lines:
                lines.seek(before)
                found = dict(re.findall(r"image_tokens->(n[xy]) = (\d+)", lines.read()))
        return int(reply["input_tokens"]), (int(found["nx"]), int(found["ny"]))


@pytest.fixture(scope="module")
def engine(llama_server: Path, tiny_hybrid: Path, tiny_projector: Path) -> Iterator[Engine]:
    """The engine under test with the budget as its own limit, so that it shows the size it would choose."""
    folder = Path(tempfile.mkdtemp(prefix="oji-", dir="/tmp"))
    address, log = folder / "s.sock", folder / "log"
    argv = [
        llama_server, "--model", tiny_hybrid, "--mmproj", tiny_projector, "--image-max-tokens", "512",
        "-np", "1", "-c", "8192", "-t", "1", "--jinja", "-lv", "5", "--host", address,
    ]  # fmt: skip

    def connect() -> socket.socket:
        opened = socket.socket(socket.AF_UNIX)
        opened.connect(str(address))
        return opened

    with (
        log.open("wb") as out,
        subprocess.Popen([str(word) for word in argv], stdout=out, stderr=out) as child,
    ):
        try:
            deadline_s = time.monotonic() + 60
            while not address.exists() and child.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
            with Client(connect) as client:
                client.get("/props")
                yield Engine(client, log)
        finally:
            child.terminate()
    shutil.rmtree(folder)


def flat_png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    pil.new("RGB", (width, height), (90, 120, 150)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def gradient_png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    rows, columns = (
        pil.linear_gradient("L").resize((width, height)),
        pil.radial_gradient("L").resize((width, height)),
    )
    pil.merge("RGB", (rows, columns, rows.rotate(180))).save(out, "PNG")
    return out.getvalue()


def random_sizes(count: int) -> list[tuple[int, int]]:
    """Sizes of all shapes, from icons to photos."""
    source = random.Random(11)
    sizes = [(1, 1), (16, 16), (448, 672), (2048, 1536), (1, 3000), (700, 740)]
    while len(sizes) < count:
        sizes.append((int(2 ** source.uniform(0, 11.5)), int(2 ** source.uniform(0, 11.5))))
    return sizes


def test_the_engine_resizes_nothing_and_counts_the_tokens_we_count(engine: Engine) -> None:
    frame: set[int] = set()
    for width, height in random_sizes(200):
        image = images.from_bytes(flat_png(width, height), name="x")
        tokens, grid = engine.tokens("image/bmp", image.base64)
        # Its grid times 32 px is the size it brings a picture to; where that is the size it got, it copies.
        assert grid == (image.width // 32, image.height // 32), (width, height)
        frame.add(tokens - image.n_tokens)
    assert len(frame) == 1, "every other token belongs to the template"


def test_encoder_size_is_what_the_engine_chooses(engine: Engine) -> None:
    for width, height in random_sizes(60):
        _, grid = engine.tokens("image/png", base64.b64encode(flat_png(width, height)).decode())
        chosen = images.encoder_size(width, height, 512)
        assert (grid[0] * 32, grid[1] * 32) == chosen, (width, height)


def test_what_is_sent_has_the_pixels_of_the_file(engine: Engine) -> None:
    """The engine reads the same numbers from a screenshot and from what openjev makes of it."""
    marker = engine.client.get("/props")["media_marker"]
    screenshot = gradient_png(448, 672)

    def read(data: str) -> list[tuple[int, float]]:
        body = {
            "prompt": {"prompt_string": f"<|im_start|>user\n{marker}What is it?", "multimodal_data": [data]},
            **{"n_predict": 1, "n_probs": 20, "samplers": [], "cache_prompt": False},
        }
        (first,) = engine.client.post("/completion", body)["completion_probabilities"]
        return [(top["id"], top["logprob"]) for top in first["top_logprobs"]]

    sent = read(images.from_bytes(screenshot, name="x").base64)
    assert sent == read(base64.b64encode(screenshot).decode())
    assert sent != read(base64.b64encode(flat_png(448, 672)).decode())
