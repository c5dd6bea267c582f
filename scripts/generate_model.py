#!/usr/bin/env python3
"""Write a seeded random model of the `qwen35` architecture (hybrid: linear and full attention) as GGUF.

    scripts/generate_model.py OUT.gguf [--shape tiny|0.8B|4B] [--decision] [--seed N] [--type Q8_0|Q4_0]

The tests and the proof of scripts/build-llama.sh need a hybrid model, and no real one is small enough
to ship. What it answers does not matter there, only that shape, tokenizer and template are real ones.
The same arguments give the same bytes on every machine and Python: weights are drawn as the quantized bytes
themselves, without floating-point rounding, so only the standard library is needed.

`--decision` tags the same weights as a native decision model (llama.cpp's `openjev` type), which the server
answers through its own POST /v1/systemone.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

ALIGNMENT = 32
BLOCK = 32
CHUNK_BLOCKS = 1 << 18  # blocks drawn at a time: 8 MiB of weights
# ggml type numbers (ggml.h) and the bytes one block of 32 weights takes
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
TYPES = {"Q4_0": Q4_0, "Q8_0": Q8_0}
FILE_TYPES = {"Q4_0": 2, "Q8_0": 7}  # llama_ftype, shown by the server only
BLOCK_BYTES = {F16: 64, Q4_0: 18, Q8_0: 34}
# token types of llama.h
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


@dataclass(frozen=True)
class Shape:
    """Sizes of one qwen35 model; the names follow src/models/qwen35.cpp of llama.cpp."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    rope_sections: tuple[int, int, int, int]
    linear_k_heads: int
    linear_v_heads: int
    linear_dim: int
    vocabulary: int | None  # None: as many as the tokenizer has
    context: int
    output_gain: float  # weight of the last norm: spreads the logits of a narrow model


SHAPES: dict[str, Shape] = {
    "tiny": Shape(
        layers=4, width=256, ffn=512, heads=4, kv_heads=2, head_dim=64, rope_dim=16,
        rope_sections=(3, 3, 2, 0), linear_k_heads=4, linear_v_heads=8, linear_dim=32,
        vocabulary=None, context=32768, output_gain=2.5,
    ),
    "0.8B": Shape(
        layers=24, width=1024, ffn=3584, heads=8, kv_heads=2, head_dim=256, rope_dim=64,
        rope_sections=(11, 11, 10, 0), linear_k_heads=16, linear_v_heads=16, linear_dim=128,
        vocabulary=248320, context=262144, output_gain=1.25,
    ),
    "4B": Shape(
        layers=32, width=2560, ffn=9216, heads=16, kv_heads=4, head_dim=256, rope_dim=64,
        rope_sections=(11, 11, 10, 0), linear_k_heads=16, linear_v_heads=32, linear_dim=128,
        vocabulary=248320, context=262144, output_gain=1.0,
    ),
}  # fmt: skip
FULL_ATTENTION_EVERY = 4
CONV_KERNEL = 4

# --- tokenizer ---

# In rank order: earlier words weigh more when the merges are learnt.
WORDS = (Path(__file__).with_name("generate_words.txt")).read_text(encoding="ascii").split()

# What JSON and prompts are made of, in the pieces the pre-tokenizer leaves whole.
SYMBOLS = [
    "\n\n", '":', '","', '":"', '{"', '"}', '"},{"', '":{"', '":[', '":[{"', '["', '"]', '"]}', '"}]',
    '"}]}', "}}", "},", "],", ',"', '", "', '": "', ' "', " {", " [", ".\n", ",\n", "?\n", ":\n", ":\n\n",
    ".\n\n", "]\n", "...", "--", "://", "  ", "    ", "\n  ", "\n    ", " -", " (", " |", "->", "/>", "</",
    "==", " =",
]  # fmt: skip
# The order and kinds of Qwen's own added tokens: think and tool tags are user-defined, not control.
SPECIALS: list[tuple[str, int]] = [
    ("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL),
    ("<|vision_start|>", CONTROL), ("<|vision_end|>", CONTROL), ("<|vision_pad|>", CONTROL),
    ("<|image_pad|>", CONTROL), ("<|video_pad|>", CONTROL), ("<tool_call>", USER_DEFINED),
    ("</tool_call>", USER_DEFINED),
    ("<tool_response>", USER_DEFINED), ("</tool_response>", USER_DEFINED), ("<think>", USER_DEFINED),
    ("</think>", USER_DEFINED),
]  # fmt: skip
WORD_MERGES = 1400


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order with their types, and the merges that build them, strongest first."""

    tokens: list[str]
    types: list[int]
    merges: list[str]

    def id(self, token: str) -> int:
        return self.tokens.index(token)


def byte_symbols() -> list[str]:
    """Return the printable character that stands for each byte (the table GPT-2's byte-level BPE uses)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def is_label_pair(first: str, second: str) -> bool:
    """Whether the two capitals together are one token: about one in eleven is not, as in real ones."""
    return (7 * ord(first) + 3 * ord(second)) % 11 != 0


@cache
def vocabulary() -> Vocabulary:
    """Return the tokenizer of the generated models: 256 bytes, common words, label pairs, special tokens."""
    table = byte_symbols()

    def symbols(text: str) -> tuple[str, ...]:
        return tuple(table[byte] for byte in text.encode())

    weights: Counter[tuple[str, ...]] = Counter()
    for rank, word in enumerate(WORDS):
        weight = 4000 // (rank + 20)
        weights[symbols(" " + word)] += 3 * weight + 3
        weights[symbols(word)] += weight + 2
        if rank < 250:
            weights[symbols(word.capitalize())] += weight // 2 + 1
    for symbol in SYMBOLS:
        weights[symbols(symbol)] += 60
    merges = learn_merges(weights, WORD_MERGES)

    letters = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    pairs = [(a, b) for a in letters for b in letters if is_label_pair(a, b) and (a, b) not in merges]
    merges += pairs
    tokens = list(table) + ["".join(merge) for merge in merges]
    # The same token can be reached by two merges; it has one id.
    tokens = list(dict.fromkeys(tokens))
    types = [NORMAL] * len(tokens) + [kind for _, kind in SPECIALS]
    tokens += [token for token, _ in SPECIALS]
    return Vocabulary(tokens, types, [" ".join(merge) for merge in merges])


def learn_merges(weights: Counter[tuple[str, ...]], limit: int) -> list[tuple[str, str]]:
    """Return up to `limit` byte-pair merges of the weighted words, most frequent first, ties by text."""
    words = [list(word) for word in weights]
    counts = list(weights.values())
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for index, word in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += counts[index]
            where[pair].add(index)
    merges: list[tuple[str, str]] = []
    while pairs and len(merges) < limit:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] <= 0:
            break
        merges.append(best)
        for index in where.pop(best):
            word, weight = words[index], counts[index]
            for pair in pairwise(word):
                pairs[pair] -= weight
            words[index] = word = merged(word, best)
            for pair in pairwise(word):
                pairs[pair] += weight
                where[pair].add(index)
        del pairs[best]
    return merges


def merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    """Return the word with every occurrence of the pair joined, from the left."""
    out: list[str] = []
    for symbol in word:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return out


# --- templates ---

# ChatML with the switches of Qwen3.5: contents are trimmed, thinking is on unless it is switched off, a
# system message may only come first, and a conversation without a user message is refused.
CHAT_TEMPLATE = r"""
{%- macro body(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content is iterable -%}
{%- for part in content -%}
{%- if part.type == 'text' or 'text' in part -%}{{- part.text -}}
{%- elif part.type == 'image' or 'image' in part or 'image_url' in part -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- raise_exception('Unknown kind of content.') -}}{%- endif -%}
{%- endfor -%}
{%- elif content is none or content is undefined -%}
{%- else -%}{{- raise_exception('Unknown kind of content.') -}}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(asked=false) -%}
{%- for message in messages -%}
{%- set text = body(message.content) | trim -%}
{%- if message.role == 'system' -%}
{%- if not loop.first -%}{{- raise_exception('System message must be at the beginning.') -}}{%- endif -%}
{{- '<|im_start|>system\n' + text + '<|im_end|>\n' -}}
{%- elif message.role == 'user' -%}
{%- set ns.asked = true -%}
{{- '<|im_start|>user\n' + text + '<|im_end|>\n' -}}
{%- elif message.role == 'assistant' -%}
{%- if '</think>' in text -%}{%- set text = text.split('</think>')[-1] | trim -%}{%- endif -%}
{{- '<|im_start|>assistant\n' + text + '<|im_end|>\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>user\n<tool_response>\n' + text + '\n</tool_response><|im_end|>\n' -}}
{%- else -%}{{- raise_exception('Unexpected message role.') -}}{%- endif -%}
{%- endfor -%}
{%- if not ns.asked -%}{{- raise_exception('No user query found in messages.') -}}{%- endif -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}
{%- else -%}{{- '<think>\n' -}}{%- endif -%}
{%- endif -%}
""".strip()

# The server fills this for POST /v1/systemone. The state comes first, so that all questions share it.
SYSTEMONE_TEMPLATE = r"""
{%- set letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz' -%}
{{- '<|im_start|>user\n' -}}
{%- for image in images -%}{{- image -}}{%- endfor -%}
{%- if state is string -%}{{- state -}}{%- else -%}{{- state | tojson -}}{%- endif -%}
{{- '\n\nQuestion: ' -}}
{%- if instructions is string -%}{{- instructions -}}{%- else -%}{{- instructions | tojson -}}{%- endif -%}
{{- '\nOptions:\n' -}}
{%- for o in options -%}
{{- letters[loop.index0] + ': ' + o.key -}}
{%- if o.description is string -%}{{- ': ' + o.description -}}
{%- elif o.description -%}{{- ': ' + (o.description | tojson) -}}{%- endif -%}
{{- '\n' -}}
{%- endfor -%}
{{- 'Answer with one letter.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n' -}}
""".strip()


# --- weights ---


@dataclass(frozen=True)
class Tensor:
    """One tensor: dimensions in ggml order (the row length first), and how its values are drawn.

    Quantized and F16: uniform with standard deviation `scale`. F32: uniform between `low` and `high`.
    """

    name: str
    dims: tuple[int, ...]
    type: int = F32
    scale: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def size_bytes(self) -> int:
        count = 1
        for dim in self.dims:
            count *= dim
        return 4 * count if self.type == F32 else count // BLOCK * BLOCK_BYTES[self.type]


def tensors(shape: Shape, n_vocab: int, quant: int) -> Iterator[Tensor]:
    """Yield every tensor of the model (create_tensor calls of src/models/qwen35.cpp), embeddings tied."""
    key_dim = shape.linear_k_heads * shape.linear_dim
    value_dim = shape.linear_v_heads * shape.linear_dim
    conv_dim = 2 * key_dim + value_dim
    width = shape.width

    def matrix(name: str, n_in: int, n_out: int, gain: float = 1.0, type: int = quant) -> Tensor:
        return Tensor(f"{name}.weight", (n_in, n_out), type, gain * n_in**-0.5)

    def norm(name: str, size: int, gain: float = 1.0) -> Tensor:
        return Tensor(f"{name}.weight", (size,), low=0.8 * gain, high=1.2 * gain)

    # A larger scale would let the embedding of the last token alone decide (the logits are its products).
    yield Tensor("token_embd.weight", (width, n_vocab), Q8_0, 0.03)
    yield norm("output_norm", width, shape.output_gain)
    for layer in range(shape.layers):
        blk = f"blk.{layer}."
        yield norm(blk + "attn_norm", width)
        yield norm(blk + "post_attention_norm", width)
        if (layer + 1) % FULL_ATTENTION_EVERY == 0:
            q_dim = shape.heads * shape.head_dim
            kv_dim = shape.kv_heads * shape.head_dim
            yield matrix(blk + "attn_q", width, 2 * q_dim)  # the query and its output gate
            yield matrix(blk + "attn_k", width, kv_dim)
            yield matrix(blk + "attn_v", width, kv_dim)
            yield matrix(blk + "attn_output", q_dim, width, 2.0)
            yield norm(blk + "attn_q_norm", shape.head_dim, 1.5)
            yield norm(blk + "attn_k_norm", shape.head_dim, 1.5)
        else:
            yield matrix(blk + "attn_qkv", width, conv_dim)
            yield matrix(blk + "attn_gate", width, value_dim)
            yield Tensor(blk + "ssm_conv1d.weight", (CONV_KERNEL, conv_dim), low=-0.8, high=0.8)
            # Decays between about 0.8 and 0.999 a token: the state is remembered over a whole prompt.
            yield Tensor(blk + "ssm_dt.bias", (shape.linear_v_heads,), low=-6.0, high=-2.5)
            yield Tensor(blk + "ssm_a", (shape.linear_v_heads,), low=-2.0, high=-0.2)
            yield matrix(blk + "ssm_beta", width, shape.linear_v_heads)
            yield matrix(blk + "ssm_alpha", width, shape.linear_v_heads, 0.5)
            yield norm(blk + "ssm_norm", shape.linear_dim)
            yield matrix(blk + "ssm_out", value_dim, width, 1.5)
        # Q8_0 and Q4_0 kernels are then in use whatever the main type is.
        ffn_type = Q4_0 if shape is SHAPES["tiny"] else quant
        yield matrix(blk + "ffn_gate", width, shape.ffn, type=ffn_type)
        yield matrix(blk + "ffn_up", width, shape.ffn, type=ffn_type)
        yield matrix(blk + "ffn_down", shape.ffn, width, 1.5, type=ffn_type)


def draw(tensor: Tensor, seed: int) -> Iterator[bytes]:
    """Yield the tensor's bytes in chunks. The numbers depend only on the seed and the tensor's name."""
    source = random.Random(f"{seed}:{tensor.name}")
    if tensor.type == F32:
        count = tensor.size_bytes // 4
        span = tensor.high - tensor.low
        yield struct.pack(f"<{count}f", *(tensor.low + span * source.random() for _ in range(count)))
        return
    blocks = tensor.size_bytes // BLOCK_BYTES[tensor.type]
    while blocks > 0:
        count = min(blocks, CHUNK_BLOCKS)
        blocks -= count
        yield draw_blocks(tensor, count, source)


def draw_blocks(tensor: Tensor, count: int, source: random.Random) -> bytes:
    """Return `count` blocks: 32 half-precision values, or one such factor and 32 quants, drawn uniformly."""
    if tensor.type == F16:
        # 256 values in equal steps; their std is 73.9 of them.
        table = b"".join(struct.pack("<e", (step - 127.5) * tensor.scale / 73.9) for step in range(256))
        drawn = source.randbytes(32 * count)
        values = bytearray(64 * count)
        values[0::2] = drawn.translate(table[0::2])
        values[1::2] = drawn.translate(table[1::2])
        return bytes(values)
    if tensor.type == Q8_0:
        # std of a uniform -127..127 is 73.6; -128 is left out, as quantizers do.
        heads = [struct.pack("<e", tensor.scale / 73.6)] * 2
        quants = source.randbytes(32 * count).replace(b"\x80", b"\x81")
        step = 32
    else:
        # std of a uniform -8..7 is 4.61, its mean -0.5: a random sign of the factor cancels that.
        heads = [struct.pack("<e", sign * tensor.scale / 4.61) for sign in (1, -1)]
        quants = source.randbytes(16 * count)
        step = 16
    signs = source.getrandbits(count)
    bits = f"{signs:0{count}b}"
    return b"".join(
        heads[bit == "1"] + quants[at : at + step]
        for bit, at in zip(bits, range(0, len(quants), step), strict=True)
    )


# --- file ---


def pack_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


class Metadata:
    """The key-value part of a GGUF file (ggml/docs/gguf.md), in the order the keys are added."""

    def __init__(self) -> None:
        self.count = 0
        self.data = bytearray()

    def _add(self, key: str, type_number: int, value: bytes) -> None:
        self.count += 1
        self.data += pack_string(key) + struct.pack("<I", type_number) + value

    def uint(self, key: str, value: int) -> None:
        self._add(key, 4, struct.pack("<I", value))

    def real(self, key: str, value: float) -> None:
        self._add(key, 6, struct.pack("<f", value))

    def flag(self, key: str, value: bool) -> None:
        self._add(key, 7, struct.pack("<?", value))

    def text(self, key: str, value: str) -> None:
        self._add(key, 8, pack_string(value))

    def reals(self, key: str, values: list[float]) -> None:
        self._add(key, 9, struct.pack(f"<IQ{len(values)}f", 6, len(values), *values))

    def ints(self, key: str, values: list[int]) -> None:
        self._add(key, 9, struct.pack(f"<IQ{len(values)}i", 5, len(values), *values))

    def texts(self, key: str, values: list[str]) -> None:
        self._add(key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(pack_string, values)))


def metadata(name: str, shape: Shape, n_vocab: int, quant: str, *, decision: bool) -> Metadata:
    """Return the metadata of a generated model: sizes, tokenizer, templates, the decision tag if asked."""
    meta = Metadata()
    meta.text("general.architecture", "qwen35")
    meta.text("general.name", name)
    meta.uint("general.file_type", FILE_TYPES[quant])
    meta.uint("general.quantization_version", 2)
    meta.uint("qwen35.block_count", shape.layers)
    meta.uint("qwen35.context_length", shape.context)
    meta.uint("qwen35.embedding_length", shape.width)
    meta.uint("qwen35.feed_forward_length", shape.ffn)
    meta.uint("qwen35.attention.head_count", shape.heads)
    meta.uint("qwen35.attention.head_count_kv", shape.kv_heads)
    meta.uint("qwen35.attention.key_length", shape.head_dim)
    meta.uint("qwen35.attention.value_length", shape.head_dim)
    meta.real("qwen35.attention.layer_norm_rms_epsilon", 1e-6)
    meta.real("qwen35.rope.freq_base", 1e7)
    meta.uint("qwen35.rope.dimension_count", shape.rope_dim)
    meta.ints("qwen35.rope.dimension_sections", list(shape.rope_sections))
    meta.uint("qwen35.full_attention_interval", FULL_ATTENTION_EVERY)
    meta.uint("qwen35.ssm.conv_kernel", CONV_KERNEL)
    meta.uint("qwen35.ssm.inner_size", shape.linear_v_heads * shape.linear_dim)
    meta.uint("qwen35.ssm.state_size", shape.linear_dim)
    meta.uint("qwen35.ssm.time_step_rank", shape.linear_v_heads)
    meta.uint("qwen35.ssm.group_count", shape.linear_k_heads)
    if decision:
        meta.text("qwen35.decision.type", "openjev")
    add_tokenizer(meta, n_vocab)
    meta.text("tokenizer.chat_template", CHAT_TEMPLATE)
    if decision:
        meta.texts("tokenizer.chat_templates", ["systemone"])
        meta.text("tokenizer.chat_template.systemone", SYSTEMONE_TEMPLATE)
    return meta


def add_tokenizer(meta: Metadata, n_vocab: int) -> None:
    """Add the tokenizer, filled up with unused tokens to `n_vocab` (the speed of a model depends on it)."""
    vocab = vocabulary()
    spare = n_vocab - len(vocab.tokens)
    meta.text("tokenizer.ggml.model", "gpt2")
    meta.text("tokenizer.ggml.pre", "qwen35")
    meta.texts("tokenizer.ggml.tokens", vocab.tokens + [f"[unused{index}]" for index in range(spare)])
    meta.ints("tokenizer.ggml.token_type", vocab.types + [UNUSED] * spare)
    meta.texts("tokenizer.ggml.merges", vocab.merges)
    meta.uint("tokenizer.ggml.eos_token_id", vocab.id("<|im_end|>"))
    meta.uint("tokenizer.ggml.padding_token_id", vocab.id("<|endoftext|>"))
    meta.flag("tokenizer.ggml.add_bos_token", False)


def write_model(
    path: Path, *, shape: str = "tiny", seed: int = 1, quant: str = "Q8_0", decision: bool = False
) -> None:
    """Write the model to `path`.

    shape: a key of SHAPES. quant: type of the matrices, Q8_0 or Q4_0 (embeddings are always Q8_0).
    """
    sizes = SHAPES[shape]
    # 32 is the narrowest tile of rows any kernel works on.
    n_vocab = sizes.vocabulary or -(-len(vocabulary().tokens) // 32) * 32
    meta = metadata(f"openjev generated {shape}", sizes, n_vocab, quant, decision=decision)
    write_file(path, meta, list(tensors(sizes, n_vocab, TYPES[quant])), seed)


def write_file(path: Path, meta: Metadata, wanted: list[Tensor], seed: int) -> None:
    """Write a GGUF file to `path`, atomically: it is there whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as out:
            write_gguf(out, meta, wanted, seed)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_gguf(out: BinaryIO, meta: Metadata, wanted: list[Tensor], seed: int) -> None:
    """Write a GGUF file, version 3: header, metadata, tensor table, tensors aligned to 32 bytes."""
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(wanted), meta.count) + meta.data)
    offset = 0
    for tensor in wanted:
        out.write(pack_string(tensor.name) + struct.pack("<I", len(tensor.dims)))
        out.write(struct.pack(f"<{len(tensor.dims)}QIQ", *tensor.dims, tensor.type, offset))
        offset += -(-tensor.size_bytes // ALIGNMENT) * ALIGNMENT
    for tensor in wanted:
        pad(out)
        for chunk in draw(tensor, seed):
            out.write(chunk)
    pad(out)


def pad(out: BinaryIO) -> None:
    out.write(b"\0" * (-out.tell() % ALIGNMENT))


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a seeded random qwen35 model as GGUF.")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--type", choices=sorted(TYPES), default="Q8_0", help="type of the matrices")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decision", action="store_true", help="tag it as a native decision model")
    args = parser.parse_args()
    write_model(args.out, shape=args.shape, seed=args.seed, quant=args.type, decision=args.decision)
    print(f"{args.out}: {args.out.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
