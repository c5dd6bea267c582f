"""Writes and reads an adapter as llama.cpp's `--lora` reads it. numpy and gguf; no torch.

The layout is that of convert_lora_to_gguf.py and llama-adapter.cpp (b11434): a file of type "adapter" and kind
"lora" for the same architecture, and for each adapted tensor NAME two more, NAME.lora_a of shape (rank, in) and
NAME.lora_b of shape (out, rank), in numpy's order. llama.cpp adds alpha / rank * b @ a.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Pair = tuple[Any, Any]


def write(
    path: Path,
    pairs: Mapping[str, Pair],
    *,
    architecture: str,
    alpha: float,
    name: str,
    description: str,
    license_: str,
) -> None:
    """Write the adapter. pairs: (a, b) by the name of the adapted tensor, for example "blk.0.attn_q.weight"."""
    import gguf

    ranks = {a.shape[0] for a, _ in pairs.values()} | {b.shape[1] for _, b in pairs.values()}
    if len(ranks) != 1:
        raise SystemExit(f"an adapter has one rank, not {sorted(ranks)}")
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    writer.add_name(name)
    writer.add_description(description)
    writer.add_license(license_)
    for tensor, (a, b) in pairs.items():
        writer.add_tensor(f"{tensor}.lora_a", np.ascontiguousarray(a, dtype=np.float16))
        writer.add_tensor(f"{tensor}.lora_b", np.ascontiguousarray(b, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path: Path) -> tuple[float, dict[str, Pair]]:
    """Return alpha and the pairs of an adapter that `write` made, as float32."""
    import gguf

    reader = gguf.GGUFReader(str(path))
    held = {tensor.name: np.asarray(tensor.data, dtype=np.float32) for tensor in reader.tensors}
    names = [name.removesuffix(".lora_a") for name in held if name.endswith(".lora_a")]
    alpha = float(reader.fields[gguf.Keys.Adapter.LORA_ALPHA].contents())
    return alpha, {name: (held[f"{name}.lora_a"], held[f"{name}.lora_b"]) for name in names}
