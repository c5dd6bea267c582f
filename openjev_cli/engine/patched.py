"""Reading labels from the patched llama-server: one POST /decide for all questions of a request.

The engine tokenizes the segments, reads the prefix once (or resumes from what it kept of it), reads all questions
in one batch and gives the labels' logits themselves, with the log-sum-exp over the vocabulary, or the options'
log-probabilities. The interface is described in `tools/server/server-decide.h` (patches/0004, 0011).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from openjev_cli import errors, prompt
from openjev_cli.engine.client import Client, no_words
from openjev_cli.engine.facts import Facts
from openjev_cli.engine.protocol import Caching, Evaluation, Progress, Reading

# What one /decide takes: questions, and readings of them (DECIDE_MAX_READINGS in server-decide.cpp).
MAX_QUESTIONS = 64
MAX_READINGS = 1024
# What it says of options that their tokens do not tell apart: no fault of the engine.
_NOT_TOLD_APART = ("has the end token in it", "has the same tokens as another option")


class Patched:
    """The readout of a server that offers `decide`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def evaluate(
        self, asked: prompt.Prompt, facts: Facts, caching: Caching, progress: Progress | None
    ) -> tuple[Evaluation, Facts]:
        """Have all questions read in one request, or in as few as take them."""
        readings: list[Reading] = []
        queue_ms = inference_ms = 0.0
        prefix_tokens = 0
        if progress is not None:
            progress(0, 1)
        for suffixes in chunks(asked.suffixes):
            reply = self._post(body(asked, suffixes, facts, caching))
            try:
                readings += _readings(reply, suffixes)
                times = reply["timings_ms"]
                queue_ms += float(times["queue"])
                inference_ms += sum(float(times[part]) for part in ("encode", "prefix", "suffixes"))
                prefix_tokens = int(reply["tokens"]["prefix"])
            except (KeyError, IndexError, TypeError, ValueError) as exc:
                raise errors.EngineError(
                    "llama-server's reply to /decide lacks a part of it",
                    next_step="build it again: scripts/build-llama.sh",
                ) from exc
        return Evaluation(tuple(readings), queue_ms, inference_ms, prefix_tokens), facts

    def _post(self, sent: dict[str, Any]) -> Any:
        try:
            return self._client.post("/decide", sent)
        except errors.EngineError as exc:
            why = next((f"an option {one}" for one in _NOT_TOLD_APART if one in exc.message), None)
            if why is None:
                raise
            raise no_words(why) from exc


def chunks(suffixes: Sequence[prompt.Suffix]) -> Iterator[tuple[prompt.Suffix, ...]]:
    """Yield the questions in order, as many at a time as one /decide takes."""
    chunk: list[prompt.Suffix] = []
    readings = 0
    for suffix in suffixes:
        # Labels are one reading. Options are one for each point where they part: a trie of n leaves has n - 1 at
        # most, so that any question fits alone.
        more = len(suffix.options) - 1 if suffix.options else 1
        if chunk and (len(chunk) == MAX_QUESTIONS or readings + more > MAX_READINGS):
            yield tuple(chunk)
            chunk, readings = [], 0
        chunk.append(suffix)
        readings += more
    if chunk:
        yield tuple(chunk)


def body(
    asked: prompt.Prompt, suffixes: Sequence[prompt.Suffix], facts: Facts, caching: Caching
) -> dict[str, Any]:
    """Return the JSON body of a /decide request."""
    prefix: list[dict[str, Any]] = []
    images: list[str] = []
    for segment in asked.prefix:
        if isinstance(segment, prompt.Segment):
            prefix.append({"text": segment.text, "special": segment.special})
        else:
            prefix.append({"image": len(images)})
            images.append(segment.image.base64)
    return {
        "prefix": prefix,
        "suffixes": [
            {
                "segments": [{"text": one.text, "special": one.special} for one in suffix.segments],
                **_answers(suffix, facts),
            }
            for suffix in suffixes
        ],
        **({"images": images} if images else {}),
        "add_bos": bool(facts.bos),
        "cache_prompt": caching.prompts,
    }


def _answers(suffix: prompt.Suffix, facts: Facts) -> dict[str, Any]:
    if suffix.labels:
        return {"labels": [label.token for label in suffix.labels]}
    options = [[{"text": one.text, "special": one.special} for one in option] for option in suffix.options]
    return {"options": options, "end": facts.end}


def _readings(reply: Any, suffixes: Sequence[prompt.Suffix]) -> list[Reading]:
    tokens, results = reply["tokens"], reply["results"]
    if len(results) != len(suffixes):
        raise ValueError
    readings = []
    for i, (result, suffix) in enumerate(zip(results, suffixes, strict=True)):
        scores = tuple(float(score) for score in result["logits" if suffix.labels else "logprobs"])
        if len(scores) != suffix.n_options:
            raise ValueError
        mass = _mass(scores, float(result["logsumexp"])) if suffix.labels else float(result["mass"])
        # The first question pays for what had to be read of the prefix, the others find all of it.
        cached = int(tokens["prefix_cached"] if i == 0 else tokens["prefix"])
        total = int(tokens["prefix"]) + int(result["tokens_suffix"])
        readings.append(Reading(scores, total, cached, label_mass=min(1.0, mass)))
    return readings


def _mass(logits: Sequence[float], logsumexp: float) -> float:
    """Return the share of the whole vocabulary's probability that lies on the labels, 0 to 1."""
    return math.fsum(math.exp(logit - logsumexp) for logit in logits)
