"""The generated projector: the same bytes everywhere, and sizes like the real ones'."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import generate_model
import generate_projector

SHA256 = "4d078032d0d5836a52d8de0e3e67e10e68638b536307d8f2e8a7c4caf78e8abd"


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "projector.gguf"
    generate_projector.write_projector(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256


def test_it_fits_the_model_of_its_shape(tmp_path: Path) -> None:
    path = tmp_path / "projector.gguf"
    generate_projector.write_projector(path)
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["clip.projector_type"] == "qwen3vl_merger"
    assert fields["clip.vision.projection_dim"] == generate_model.SHAPES["tiny"].width
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = tensors["v.blk.1.ffn_up.weight"].data
    assert weights.dtype == np.float16
    assert np.std(weights) == pytest.approx(128**-0.5, rel=0.02)


@pytest.mark.parametrize(("shape", "real_bytes"), [("0.8B", 204_987_232), ("4B", 672_423_616)])
def test_the_large_shapes_weigh_what_the_real_files_do(shape: str, real_bytes: int) -> None:
    vision = generate_projector.VISION[shape]
    wanted = generate_projector.tensors(vision, generate_model.SHAPES[shape].width)
    assert sum(tensor.size_bytes for tensor in wanted) == pytest.approx(real_bytes, rel=0.003)
