#!/usr/bin/env python3
"""Check readout_model.py against the same model written out plainly (extra `train`): losses and gradients.

    python scripts/check_readout_model.py          prints the largest differences; exit 1 if one is too large

Apart from the unit tests because those do without torch.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import torch.nn.functional as F
from readout_data import Example
from readout_model import Model, Shape, Weights, to_batch

SHAPE = Shape(layers=2, width=24, heads=3, kv_heads=1, theta=10000.0, eps=1e-5)
FFN, VOCABULARY, RANK = 40, 50, 2
EXAMPLES = (
    Example([1, 2, 3, 4, 5, 6, 7], [(5, (8, 9, 10), 1), (6, (3, 4), 0)], "a"),
    Example([1, 2, 3, 9, 9], [(4, (7, 8), 1)], "a"),
    Example([1, 2, 3, 4, 4, 4], [(5, (7, 8, 11, 12), 3)], "b"),
)


def weights() -> Weights:
    """Return random weights."""
    width, kv = SHAPE.width, SHAPE.kv_heads * SHAPE.head

    def random(*size: int) -> Any:
        return torch.randn(*size) * 0.3

    products = [
        {
            "qkv": random(width + 2 * kv, width),
            "out": random(width, width),
            "gate_up": random(2 * FFN, width),
            "down": random(width, FFN),
        }
        for _ in range(SHAPE.layers)
    ]
    norms = [(torch.rand(width) + 0.5, torch.rand(width) + 0.5) for _ in range(SHAPE.layers)]
    return Weights(SHAPE, torch.randn(VOCABULARY, width), products, norms, torch.rand(width) + 0.5)


def rope(x: Any) -> Any:
    """Turn neighbouring pairs of (position, head, width)."""
    angle = torch.arange(x.shape[0])[:, None] * SHAPE.theta ** (-torch.arange(0, SHAPE.head, 2) / SHAPE.head)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    turned = torch.empty_like(x)
    turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    turned[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return turned


def plain_logits(model: Model, ids: list[int]) -> Any:
    """Return the logits of one sequence, nothing shared, the adapter added as llama.cpp does."""
    frozen, width, head = model.weights, SHAPE.width, SHAPE.head

    def product(layer: int, name: str, x: Any) -> Any:
        found, start = [], 0
        for part, size in enumerate(model.sizes[name]):
            a = model.a[layer][name][part * RANK : (part + 1) * RANK]
            b = model.b[layer][name][start : start + size]
            weight = frozen.products[layer][name][start : start + size]
            found.append(x @ weight.t() + model.scale * (x @ a.t()) @ b.t())
            start += size
        return torch.cat(found, dim=1)

    def norm(x: Any, weight: Any) -> Any:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + SHAPE.eps) * weight

    x = frozen.embedding[torch.tensor(ids)]
    kv = SHAPE.kv_heads * head
    for layer in range(SHAPE.layers):
        y = product(layer, "qkv", norm(x, frozen.norms[layer][0]))
        q = rope(y[:, :width].reshape(-1, SHAPE.heads, head))
        k = rope(y[:, width : width + kv].reshape(-1, SHAPE.kv_heads, head))
        v = y[:, width + kv :].reshape(-1, SHAPE.kv_heads, head)
        attended = []
        for one in range(SHAPE.heads):
            at = one * SHAPE.kv_heads // SHAPE.heads
            scores = q[:, one] @ k[:, at].t() / math.sqrt(head)
            scores = scores + torch.triu(torch.full_like(scores, -math.inf), 1)
            attended.append(scores.softmax(-1) @ v[:, at])
        x = x + product(layer, "out", torch.cat(attended, dim=-1))
        y = product(layer, "gate_up", norm(x, frozen.norms[layer][1]))
        x = x + product(layer, "down", F.silu(y[:, :FFN]) * y[:, FFN:])
    return norm(x, frozen.last_norm) @ frozen.embedding.t()


def main() -> int:
    """Compare; return the exit code."""
    torch.manual_seed(0)
    model = Model(weights(), rank=RANK, alpha=4.0, seed=1)
    with torch.no_grad():
        for layer in model.b:
            for one in layer.values():
                one.normal_(0.0, 0.3)
    model.merge()
    ce, mass, _ = model.losses(to_batch(EXAMPLES))
    (ce.sum() + 0.3 * mass.sum()).backward()
    gradients = [one.grad for one in model.parameters()]
    for one in model.parameters():
        one.grad = None
    plain_ce, plain_mass = [], []
    for example in EXAMPLES:
        logits = plain_logits(model, example.ids)
        for position, children, right in example.steps:
            among = logits[position][list(children)]
            plain_ce.append(among.logsumexp(0) - among[right])
            plain_mass.append(logits[position].logsumexp(0) - among.logsumexp(0))
    (sum(plain_ce) + 0.3 * sum(plain_mass)).backward()
    pairs = ((torch.stack(plain_ce), ce), (torch.stack(plain_mass), mass))
    loss = max(float((plain - mine).detach().abs().max()) for plain, mine in pairs)
    gradient = max(
        float((mine - one.grad).abs().max() / one.grad.abs().max())
        for mine, one in zip(gradients, model.parameters(), strict=True)
    )
    print(f"losses differ by {loss:.1e} at most, gradients by {gradient:.1e} of their largest")
    return int(loss > 1e-4 or gradient > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
