"""The generated hybrid: the same bytes everywhere, a file other readers understand, a usable vocabulary."""

from __future__ import annotations

import hashlib
import string
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import generate_model

# Change these with any change of the generator: the known answers of prove-llama.py belong to these bytes.
SHA256 = {
    False: "7d2c43cc67a0577042f1787ae524c2d30490c91d02921ac10a32e28ee4672800",
    True: "35e3ac97dab1a82ca7e18bf8fce61eb667d25d7c037a75ddc965688b60f3f8ce",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    generate_model.write_model(path)
    return path


@pytest.mark.parametrize("decision", [False, True])
def test_same_arguments_give_the_same_bytes(tmp_path: Path, decision: bool) -> None:
    path = tmp_path / "models" / "tiny.gguf"
    generate_model.write_model(path, decision=decision)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[decision]
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]


def test_another_seed_gives_other_weights_of_the_same_size(tmp_path: Path, model: Path) -> None:
    other = tmp_path / "other.gguf"
    generate_model.write_model(other, seed=2)
    assert other.stat().st_size == model.stat().st_size
    assert other.read_bytes() != model.read_bytes()


def test_gguf_library_reads_the_shape_that_was_meant(model: Path) -> None:
    reader = GGUFReader(model)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    shape = generate_model.SHAPES["tiny"]
    assert fields["general.architecture"] == "qwen35"
    assert fields["qwen35.block_count"] == shape.layers
    assert fields["qwen35.rope.dimension_sections"] == [3, 3, 2, 0]
    assert "qwen35.decision.type" not in fields
    attention = [tensor.name for tensor in reader.tensors if tensor.name.endswith("attn_k.weight")]
    assert attention == ["blk.3.attn_k.weight"]


def test_weights_have_the_spread_that_was_meant(model: Path) -> None:
    tensors = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    for name, spread in [
        ("token_embd.weight", 0.03),
        ("blk.0.attn_qkv.weight", 256**-0.5),
        ("blk.0.ffn_up.weight", 256**-0.5),
    ]:
        values = dequantize(tensors[name].data, tensors[name].tensor_type)
        assert np.std(values) == pytest.approx(spread, rel=0.02)
        assert np.mean(values) == pytest.approx(0.0, abs=0.02 * spread)


def test_decision_model_has_the_same_weights_and_its_tag(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "decision.gguf"
    generate_model.write_model(path, decision=True)
    plain, tagged = GGUFReader(model), GGUFReader(path)
    assert tagged.fields["qwen35.decision.type"].contents() == "openjev"
    for one, other in zip(plain.tensors, tagged.tensors, strict=True):
        assert (one.name, bytes(one.data)) == (other.name, bytes(other.data))


def test_vocabulary_has_every_byte_once_and_enough_labels() -> None:
    vocab = generate_model.vocabulary()
    assert [token for token, count in Counter(vocab.tokens).items() if count > 1] == []
    assert set(generate_model.byte_symbols()) <= set(vocab.tokens)
    letters = string.ascii_uppercase
    labels = [*letters, *(a + b for a in letters for b in letters)]
    # 255 options need 255 labels; some pairs are missing, as in real vocabularies.
    assert sum(label in vocab.tokens for label in labels) == 640
    assert "BX" not in vocab.tokens


def test_every_merge_joins_tokens_into_a_token() -> None:
    vocab = generate_model.vocabulary()
    known = set(vocab.tokens)
    pairs = [merge.split(" ") for merge in vocab.merges]
    assert [pair for pair in pairs if not {*pair, "".join(pair)} <= known] == []


def test_common_words_are_one_token() -> None:
    tokens = set(generate_model.vocabulary().tokens)
    assert {"Ġthe", "Ġcustomer", "Ġrefund", "Ġquestion", "question", "ĊĊ"} <= tokens


def test_large_shapes_have_the_sizes_of_the_models_they_stand_for() -> None:
    weights = {}
    for name in ("0.8B", "4B"):
        shape = generate_model.SHAPES[name]
        tensors = generate_model.tensors(shape, shape.vocabulary or 0, generate_model.Q8_0)
        weights[name] = sum(int(np.prod(tensor.dims)) for tensor in tensors)
    assert weights == {"0.8B": pytest.approx(0.75e9, rel=0.02), "4B": pytest.approx(4.2e9, rel=0.02)}
