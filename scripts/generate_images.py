#!/usr/bin/env python3
"""The pictures of the measurements: a page as a screenshot, and a photo with the detail of one.

    scripts/generate_images.py FOLDER

The same Pillow gives the same bytes.
"""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter


def screenshot(width: int, height: int) -> bytes:
    """Return a PNG of a form: title bar, labelled fields, a button."""
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, width, 44), fill="#1f3a5f")
    draw.text((16, 15), "Checkout", fill="white")
    labels = ("Email", "Phone", "Street and number", "City", "Card number", "Security code")
    for i, label in enumerate(labels):
        top = 70 + i * 84
        draw.text((16, top), label, fill="#333333")
        draw.rectangle((16, top + 18, width - 16, top + 52), outline="#888888")
        if i not in (1, 4, 5):
            draw.text((26, top + 29), f"{label} of Mara Lind", fill="black")
    draw.rectangle((16, height - 70, width - 16, height - 26), fill="#2a7f3f")
    draw.text((width // 2 - 30, height - 54), "Place order", fill="white")
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def photo(width: int, height: int, *, quality: int = 92) -> bytes:
    """Return a JPEG with soft shapes, edges and grain, about as costly to decode as a camera's."""
    rng = random.Random(f"photo {width} {height}")
    small = Image.frombytes("RGB", (32, 24), rng.randbytes(32 * 24 * 3))
    picture = small.resize((width, height), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(8))
    draw = ImageDraw.Draw(picture)
    for _ in range(60):
        x, y = rng.randrange(width), rng.randrange(height)
        size = rng.randrange(width // 40, width // 8)
        colour = tuple(rng.randrange(256) for _ in range(3))
        draw.ellipse((x, y, x + size, y + size), fill=colour, outline="black")
    grain = Image.frombytes("L", (width, height), rng.randbytes(width * height))
    noisy = Image.merge("RGB", (grain, grain, grain))
    out = io.BytesIO()
    Image.blend(picture, noisy, 0.06).save(out, "JPEG", quality=quality)
    return out.getvalue()


def main() -> None:
    """Write all pictures into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "screenshot.png").write_bytes(screenshot(448, 672))
    for width, height in ((2048, 1536), (4032, 3024)):
        (folder / f"photo-{width}x{height}.jpg").write_bytes(photo(width, height))


if __name__ == "__main__":
    main()
