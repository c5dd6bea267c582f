"""A Llama with low-rank adapters, in plain torch: as little as training a readout needs.

The weights are those of a GGUF, dequantized once and frozen. Q and K rows stay in the order of the file, so RoPE
turns neighbouring pairs as llama.cpp does for this architecture (`LLAMA_ROPE_TYPE_NORM`), and an adapter trained
here fits the file without being permuted.

What makes it quick on a CPU: the adapter is added into the weights after every step, so that the forward pass
multiplies once; q, k, v and gate, up are one product each; no gradient of a frozen weight is formed; what all
rows of a batch begin with is read once; the last layer and the vocabulary are computed only where logits count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from readout_data import Example, shared_prefix

# The products of a layer: its name here, the tensors of the file that are stacked in it, in their order.
PRODUCTS: dict[str, tuple[str, ...]] = {
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "out": ("attn_output",),
    "gate_up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
}


@dataclass(frozen=True)
class Shape:
    """The numbers of a model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    theta: float
    eps: float

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


@dataclass
class Weights:
    """The frozen weights. products: for each layer and product (out, in); norms: attention and FFN of each
    layer."""

    shape: Shape
    embedding: Any
    products: list[dict[str, Any]]
    norms: list[tuple[Any, Any]]
    last_norm: Any


def read_gguf(path: Path, *, device: str = "cpu", dtype: Any = torch.float32) -> Weights:
    """Return the weights of a llama-architecture GGUF with tied embeddings, dequantized."""
    import gguf

    reader = gguf.GGUFReader(str(path))

    def number(key: str) -> float:
        return float(reader.fields[f"llama.{key}"].contents())

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "output.weight" in tensors:
        raise SystemExit(f"{path.name}: its output is not its embedding")

    def matrix(name: str) -> Any:
        tensor = tensors[f"{name}.weight"]
        return torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))).float()

    shape = Shape(
        layers=int(number("block_count")),
        width=int(number("embedding_length")),
        heads=int(number("attention.head_count")),
        kv_heads=int(number("attention.head_count_kv")),
        theta=number("rope.freq_base"),
        eps=number("attention.layer_norm_rms_epsilon"),
    )
    products, norms = [], []
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        products.append(
            {
                name: torch.cat([matrix(at + part) for part in parts]).to(device, dtype).contiguous()
                for name, parts in PRODUCTS.items()
            }
        )
        norms.append((matrix(at + "attn_norm").to(device, dtype), matrix(at + "ffn_norm").to(device, dtype)))
    embedding = matrix("token_embd").to(device, dtype)
    return Weights(shape, embedding, products, norms, matrix("output_norm").to(device, dtype))


class _Product(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """x @ merged.T, whose backward pass knows that merged = frozen + scale * b @ a for each stacked part."""

    @staticmethod
    def forward(ctx: Any, x: Any, merged: Any, a: Any, b: Any, sizes: Any, scale: float) -> Any:
        ctx.save_for_backward(x, merged, a, b)
        ctx.sizes, ctx.scale = sizes, scale
        return x @ merged.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,) = gradients
        x, merged, a, b = ctx.saved_tensors
        rank = b.shape[1]
        down = x @ a.t().to(x.dtype)
        ups, dbs = [], []
        start = 0
        for part, size in enumerate(ctx.sizes):
            piece = dy[:, start : start + size]
            ups.append(piece @ b[start : start + size].to(dy.dtype))
            dbs.append(piece.t() @ down[:, part * rank : (part + 1) * rank])
            start += size
        up = torch.cat(ups, dim=1) if len(ups) > 1 else ups[0]
        da = (up.t() @ x).to(a.dtype) * ctx.scale
        db = (torch.cat(dbs) if len(dbs) > 1 else dbs[0]).to(b.dtype) * ctx.scale
        dx = dy @ merged if ctx.needs_input_grad[0] else None
        return dx, None, da, db, None, None


def _attended(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Return the attention of (sequence, position, head, width) as (token, all heads)."""
    sequences, length, heads, head = q.shape
    kv = k.shape[2]
    # Instead of repeating keys: the queries of a key's heads are rows of one product.
    q = q.view(sequences, length, kv, heads // kv, head).permute(0, 2, 3, 1, 4)
    found = F.scaled_dot_product_attention(
        q.reshape(sequences, kv, -1, head), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
    )
    found = found.view(sequences, kv, heads // kv, length, head).permute(0, 3, 1, 2, 4)
    return found.reshape(sequences * length, heads * head)


@dataclass
class Batch:
    """Examples as tensors. ids: the shared prefix, then the rest of each row, padded to `length`. need: where
    in that list logits count; row: whose; children: padded with the first, `real` says which are; right: the
    right child."""

    ids: Any
    positions: Any
    shared: int
    rows: int
    length: int
    need: Any
    row: Any
    children: Any
    real: Any
    right: Any
    n_tokens: int


def to_batch(examples: Sequence[Example], device: str = "cpu") -> Batch:
    """Return examples as one batch."""
    shared = shared_prefix(examples)
    rests = [one.ids[shared:] for one in examples]
    length = max(len(rest) for rest in rests)
    ids = list(examples[0].ids[:shared])
    for rest in rests:
        ids += rest + [0] * (length - len(rest))
    need, row, kids, right = [], [], [], []
    for at, one in enumerate(examples):
        for position, children, which in one.steps:
            need.append(shared + at * length + position - shared)
            row.append(at)
            kids.append(children)
            right.append(which)
    widest = max(len(children) for children in kids)
    padded = [[*children, *[children[0]] * (widest - len(children))] for children in kids]
    real = [[at < len(children) for at in range(widest)] for children in kids]
    positions = torch.cat([torch.arange(shared), torch.arange(shared, shared + length).repeat(len(examples))])

    def tensor(values: Any) -> Any:
        return torch.tensor(values, device=device)

    return Batch(
        ids=tensor(ids),
        positions=positions.to(device),
        shared=shared,
        rows=len(examples),
        length=length,
        need=tensor(need),
        row=tensor(row),
        children=tensor(padded),
        real=tensor(real),
        right=tensor(right),
        n_tokens=sum(len(one.ids) for one in examples),
    )


class Model:
    """The frozen weights and an adapter. a, b: its trained tensors, for each layer and product; the parts of a
    stacked product have their own rows of `a` and of `b`."""

    def __init__(
        self,
        weights: Weights,
        *,
        rank: int,
        alpha: float,
        seed: int = 0,
        device: str = "cpu",
        most_positions: int = 8192,
    ) -> None:
        self.weights, self.rank, self.scale, self.device = weights, rank, alpha / rank, device
        shape = weights.shape
        head = shape.head
        self.sizes = {
            "qkv": (shape.width, shape.kv_heads * head, shape.kv_heads * head),
            "out": (shape.width,),
            "gate_up": (weights.products[0]["gate_up"].shape[0] // 2,) * 2,
            "down": (shape.width,),
        }
        generator = torch.Generator().manual_seed(seed)
        self.a: list[dict[str, Any]] = []
        self.b: list[dict[str, Any]] = []
        self.merged: list[dict[str, Any]] = []
        for products in weights.products:
            a, b = {}, {}
            for name, weight in products.items():
                # Uniform within 1 / sqrt(in), as torch's Linear and PEFT begin; b zero: at first nothing changes.
                bound = 1.0 / math.sqrt(weight.shape[1])
                begun = torch.rand(len(self.sizes[name]) * rank, weight.shape[1], generator=generator)
                a[name] = ((begun * 2.0 - 1.0) * bound).to(device).requires_grad_()
                b[name] = torch.zeros(weight.shape[0], rank, device=device, requires_grad=True)
            self.a.append(a)
            self.b.append(b)
            self.merged.append({name: weight.clone() for name, weight in products.items()})
        frequencies = shape.theta ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
        angles = torch.arange(most_positions, dtype=torch.float64)[:, None] * frequencies
        self._turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64).to(device)

    def parameters(self) -> list[Any]:
        """Return the trained tensors."""
        return [one for layer in (*self.a, *self.b) for one in layer.values()]

    def merge(self) -> None:
        """Bring the weights that are multiplied with up to date with the adapter."""
        with torch.no_grad():
            for products, merged, a, b in zip(
                self.weights.products, self.merged, self.a, self.b, strict=True
            ):
                for name, weight in products.items():
                    start = 0
                    for part, size in enumerate(self.sizes[name]):
                        rows = slice(start, start + size)
                        low = a[name][part * self.rank : (part + 1) * self.rank]
                        added = (self.scale * (b[name][rows] @ low)).to(weight.dtype)
                        torch.add(weight[rows], added, out=merged[name][rows])
                        start += size

    def pairs(self) -> dict[str, tuple[Any, Any]]:
        """Return (a, b) as numpy arrays by the name of the adapted tensor of the file."""
        found: dict[str, tuple[Any, Any]] = {}
        for layer, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
            for name, parts in PRODUCTS.items():
                lows = a[name].detach().float().cpu().split(self.rank)
                ups = b[name].detach().float().cpu().split(self.sizes[name])
                for part, low, up in zip(parts, lows, ups, strict=True):
                    found[f"blk.{layer}.{part}.weight"] = (low.numpy(), up.numpy())
        return found

    def begin_with(self, pairs: dict[str, tuple[Any, Any]]) -> None:
        """Take these pairs, as `pairs` gives them, in place of the first ones. Raises SystemExit if they are of
        another rank or model."""
        if missing := sorted(set(self.pairs()) - set(pairs)):
            raise SystemExit(f"--begin: nothing in it for {missing[0]}")
        with torch.no_grad():
            for layer, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
                for name, parts in PRODUCTS.items():
                    held = [pairs[f"blk.{layer}.{part}.weight"] for part in parts]
                    low = np.concatenate([pair[0] for pair in held])
                    up = np.concatenate([pair[1] for pair in held])
                    if low.shape != tuple(a[name].shape) or up.shape != tuple(b[name].shape):
                        raise SystemExit(
                            f"--begin: blk.{layer}.{name} has another shape than --rank asks for"
                        )
                    a[name].copy_(torch.from_numpy(low))
                    b[name].copy_(torch.from_numpy(up))

    def _mask(self, queries: int, keys: int, dtype: Any) -> Any:
        mask = torch.full((queries, keys), -math.inf, device=self.device, dtype=dtype)
        return torch.triu(mask, diagonal=keys - queries + 1)

    def _product(self, layer: int, name: str, x: Any) -> Any:
        return _Product.apply(
            x,
            self.merged[layer][name],
            self.a[layer][name],
            self.b[layer][name],
            self.sizes[name],
            self.scale,
        )

    def _turned(self, x: Any, turns: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)

    def hidden(self, batch: Batch) -> Any:
        """Return what the vocabulary is multiplied with, at the positions that count."""
        shape = self.weights.shape
        heads, kv, head = shape.heads, shape.kv_heads, shape.head
        shared, rows, length = batch.shared, batch.rows, batch.length
        group = heads // kv
        turns = self._turns[batch.positions][:, None, :]
        x = self.weights.embedding[batch.ids]
        # Row tokens see the shared prefix and what precedes them; padding stands behind everything. The query
        # heads that share a key head stand one below the other.
        mask = self._mask(length, shared + length, x.dtype).repeat(group, 1)
        first_mask = self._mask(shared, shared, x.dtype).repeat(group, 1)
        last = shape.layers - 1
        for layer in range(shape.layers):
            norm, ffn_norm = self.weights.norms[layer]
            y = self._product(layer, "qkv", F.rms_norm(x, (shape.width,), norm, shape.eps))
            qk, v = y.split([(heads + kv) * head, kv * head], dim=1)
            q, k = self._turned(qk.view(-1, heads + kv, head), turns).split([heads, kv], dim=1)
            # Each is the shared prefix once, then the rows: (sequence, position, head, width).
            (first_q, q), (first_k, k), (first_v, v) = (
                (first[None], rest.view(rows, length, -1, head))
                for first, rest in (
                    one.split([shared, rows * length]) for one in (q, k, v.view(-1, kv, head))
                )
            )
            k, v = (
                torch.cat([first.expand(rows, shared, kv, head), rest], dim=1)
                for first, rest in ((first_k, k), (first_v, v))
            )
            attended = _attended(q, k, v, mask)
            if shared:
                attended = torch.cat([_attended(first_q, first_k, first_v, first_mask), attended])
            if layer == last:
                attended, x = attended[batch.need], x[batch.need]
            x = x + self._product(layer, "out", attended)
            y = self._product(layer, "gate_up", F.rms_norm(x, (shape.width,), ffn_norm, shape.eps))
            gate, up = y.chunk(2, dim=1)
            x = x + self._product(layer, "down", F.silu(gate) * up)
        return F.rms_norm(x, (shape.width,), self.weights.last_norm, shape.eps)

    def losses(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Return, for every branching point that counts: -log P(right child) among its children, -log P(any
        child) among the whole vocabulary, and whether the right child is the likeliest."""
        logits = (self.hidden(batch) @ self.weights.embedding.t()).float()
        among = logits.gather(1, batch.children).masked_fill(~batch.real, -math.inf)
        mass = among.logsumexp(dim=1)
        right = among.gather(1, batch.right[:, None]).squeeze(1)
        return mass - right, logits.logsumexp(dim=1) - mass, among.argmax(dim=1) == batch.right
