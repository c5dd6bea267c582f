#!/usr/bin/env python3
"""Write a seeded random vision projector (`qwen3vl_merger`) as GGUF, to go with a model of generate_model.py.

    scripts/generate_projector.py OUT.gguf [--shape tiny|0.8B|4B] [--seed N]

Its pictures mean nothing, but they go through the real encoder: preprocessing, token counts, positions, cost.
The same arguments give the same bytes everywhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from generate_model import F16, SHAPES, Metadata, Tensor, write_file

PATCH = 16
MERGE = 2


@dataclass(frozen=True)
class Vision:
    """Sizes of one encoder, named as in llama.cpp's clip metadata. image: side of the position grid, px."""

    layers: int
    width: int
    ffn: int
    heads: int
    image: int


VISION: dict[str, Vision] = {
    "tiny": Vision(layers=2, width=128, ffn=256, heads=4, image=256),
    # Both come within 0.3 % of the size of the real F16 file.
    "0.8B": Vision(layers=12, width=768, ffn=3072, heads=12, image=768),
    "4B": Vision(layers=24, width=1024, ffn=4096, heads=16, image=768),
}


def tensors(vision: Vision, n_out: int) -> Iterator[Tensor]:
    """Yield every tensor of the projector (clip_graph_qwen3vl in tools/mtmd/models/qwen3vl.cpp)."""
    width = vision.width
    merged = MERGE * MERGE * width

    def matrix(name: str, n_in: int, n_out: int, gain: float = 1.0) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (n_in, n_out), F16, gain * n_in**-0.5)
        yield Tensor(f"{name}.bias", (n_out,), low=-0.02 * gain, high=0.02 * gain)

    def norm(name: str) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (width,), low=0.8, high=1.2)
        yield Tensor(f"{name}.bias", (width,), low=-0.05, high=0.05)

    patch = (PATCH, PATCH, 3, width)
    # Two kernels: one for each frame of a pair, and a picture is both. Pixels lie between -1 and 1.
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        yield Tensor(name, patch, F16, (2 * PATCH * PATCH * 3) ** -0.5)
    yield Tensor("v.patch_embd.bias", (width,), low=-0.1, high=0.1)
    yield Tensor("v.position_embd.weight", (width, (vision.image // PATCH) ** 2), low=-0.5, high=0.5)
    for layer in range(vision.layers):
        blk = f"v.blk.{layer}."
        yield from norm(blk + "ln1")
        yield from matrix(blk + "attn_qkv", width, 3 * width)
        yield from matrix(blk + "attn_out", width, width)
        yield from norm(blk + "ln2")
        yield from matrix(blk + "ffn_up", width, vision.ffn)
        yield from matrix(blk + "ffn_down", vision.ffn, width)
    yield from norm("v.post_ln")
    yield from matrix("mm.0", merged, merged)
    # What comes out stands beside token embeddings, whose scale is 0.03.
    yield from matrix("mm.2", merged, n_out, 0.08)


def metadata(name: str, vision: Vision, n_out: int) -> Metadata:
    """Return the metadata of a projector: its kind, sizes, and how pixels are normalized."""
    meta = Metadata()
    meta.text("general.architecture", "clip")
    meta.text("general.type", "mmproj")
    meta.text("general.name", name)
    meta.uint("general.file_type", 1)
    meta.flag("clip.has_vision_encoder", True)
    meta.text("clip.projector_type", "qwen3vl_merger")
    meta.flag("clip.use_gelu", True)
    meta.uint("clip.vision.image_size", vision.image)
    meta.uint("clip.vision.patch_size", PATCH)
    meta.uint("clip.vision.spatial_merge_size", MERGE)
    meta.uint("clip.vision.embedding_length", vision.width)
    meta.uint("clip.vision.feed_forward_length", vision.ffn)
    meta.uint("clip.vision.block_count", vision.layers)
    meta.uint("clip.vision.attention.head_count", vision.heads)
    meta.real("clip.vision.attention.layer_norm_epsilon", 1e-6)
    meta.uint("clip.vision.projection_dim", n_out)
    meta.reals("clip.vision.image_mean", [0.5, 0.5, 0.5])
    meta.reals("clip.vision.image_std", [0.5, 0.5, 0.5])
    return meta


def write_projector(path: Path, *, shape: str = "tiny", seed: int = 1) -> None:
    """Write the projector of the generated model of the same shape to `path`."""
    vision, n_out = VISION[shape], SHAPES[shape].width
    meta = metadata(f"openjev generated projector {shape}", vision, n_out)
    write_file(path, meta, list(tensors(vision, n_out)), seed)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a seeded random qwen3vl projector as GGUF.")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--shape", choices=sorted(VISION), default="tiny")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    write_projector(args.out, shape=args.shape, seed=args.seed)
    print(f"{args.out}: {args.out.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
