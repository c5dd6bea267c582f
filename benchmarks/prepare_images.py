"""What preparing an image costs, as ratios to decoding it whole and resizing it, measured side by side.

    python -m benchmarks.prepare_images [--trials 15] [--output benchmarks/prepare_images.json]

`before` decodes the whole picture, turns it upright and resizes it to the size that is sent. `after` is
`images.from_bytes`. Of each the median of the trials counts, in rotating order. Peak memory is that of a fresh
process that does nothing else, Pillow's own memory taken off. The photos are made here, with the grain and the
size in bytes of a camera's, and have to be turned.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import PIL
from PIL import Image as pil
from PIL import ImageChops, ImageOps, ImageStat

from openjev_cli import images

PHOTOS = {"2048x1536": (2048, 1536), "4032x3024": (4032, 3024), "20 million pixels": (5160, 3870)}
GOAL = 0.5
_MEMORY = """
import sys
from pathlib import Path
import PIL.ImageOps, PIL.JpegImagePlugin
from benchmarks import prepare_images
def peak_mb():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
data = Path(sys.argv[2]).read_bytes()
before = peak_mb()
getattr(prepare_images, sys.argv[1])(data)
print(peak_mb() - before)
"""


def photo(width: int, height: int) -> bytes:
    """Return a JPEG with large soft shapes and fine grain, stored on its side (EXIF orientation 6)."""
    source = random.Random(5)
    shapes = pil.frombytes("RGB", (24, 18), source.randbytes(3 * 24 * 18)).resize((width, height))
    grain = pil.frombytes("L", (512, 512), source.randbytes(512 * 512)).point(lambda value: value // 8)
    tiled = pil.new("L", (width, height))
    for left in range(0, width, 512):
        for top in range(0, height, 512):
            tiled.paste(grain, (left, top))
    exif = pil.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    noisy = ImageChops.add(shapes, tiled.convert("RGB"))
    noisy.save(out, "JPEG", quality=90, exif=exif.tobytes())
    return out.getvalue()


def before(data: bytes) -> bytes:
    """Decode whole, turn, resize."""
    picture = ImageOps.exif_transpose(pil.open(io.BytesIO(data))).convert("RGB")
    size, _ = images.sent_size(*picture.size, images.DEFAULT_TOKENS)
    return picture.resize(size, pil.Resampling.BICUBIC).tobytes()


def after(data: bytes) -> bytes:
    """Prepare as openjev does."""
    return images.from_bytes(data, name="photo").data


def medians(data: bytes, trials: int) -> dict[str, float]:
    """Return the median milliseconds of both ways, after one unmeasured run of each."""
    ways: list[Callable[[bytes], bytes]] = [before, after]
    spent: dict[str, list[float]] = {way.__name__: [] for way in ways}
    for trial in range(trials + 1):
        for way in ways if trial % 2 else reversed(ways):
            began_at_s = time.perf_counter()
            way(data)
            if trial:
                spent[way.__name__].append((time.perf_counter() - began_at_s) * 1000.0)
    return {name: statistics.median(taken) for name, taken in spent.items()}


def peak_mb(way: str, path: Path) -> float:
    """Return by how much a way raises the peak memory of a process, in MiB (Linux)."""
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", _MEMORY, way, str(path)]
    done = subprocess.run(command, capture_output=True, check=True, cwd=root)
    return float(done.stdout)


def apart(data: bytes) -> float:
    """Return the mean difference of what both ways send, of 255."""
    sent = pil.open(io.BytesIO(after(data)))
    other = pil.frombytes("RGB", sent.size, before(data))
    return statistics.mean(ImageStat.Stat(ImageChops.difference(sent, other)).mean)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what preparing an image costs.")
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--output", type=Path, help="write a receipt (JSON)")
    args = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    for name, size in PHOTOS.items():
        data = photo(*size)
        row = {"bytes": float(len(data)), **{f"{k}_ms": v for k, v in medians(data, args.trials).items()}}
        row["ratio"] = row["after_ms"] / row["before_ms"]
        row["mean_difference_of_255"] = apart(data)
        path = Path(f"photo-{os.getpid()}.jpg").resolve()
        path.write_bytes(data)
        try:
            row.update({f"{way}_peak_mib": peak_mb(way, path) for way in ("before", "after")})
        finally:
            path.unlink()
        rows[name] = row
        print(f"{name}: {json.dumps({k: round(v, 3) for k, v in row.items()})}")
    receipt = {
        "what": "preparing a JPEG, openjev against decode + full resize",
        "goal": {"ratio": GOAL},
        "trials": args.trials,
        "image_tokens": images.DEFAULT_TOKENS,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "rows": {name: {k: round(v, 4) for k, v in row.items()} for name, row in rows.items()},
    }
    if args.output:
        args.output.write_text(json.dumps(receipt, indent=2) + "\n")
    return int(any(row["ratio"] > GOAL for name, row in rows.items() if name != "20 million pixels"))


if __name__ == "__main__":
    sys.exit(main())
