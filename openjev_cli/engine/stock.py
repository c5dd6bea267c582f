"""Reading labels from any llama-server (b9670 or newer): one completion of one token per question.

All labels of a question get the same bias of +100, so that after a sampler chain of temperature 1 alone their
probabilities are the whole of the distribution; the shared bias cancels. `n_probs` is the number of labels. If one
of them is missing from the reply (labels about 90 nats apart), that is an error, never a zero.

Options read by their own text: a completion for each branching point of their trie (`words`).

Priming. A hybrid model cannot cut its memory back to where two prompts part; llama-server makes a checkpoint 4
tokens before the end of a prompt and can resume there (`tools/server/server-context.cpp`, `checkpoint_offsets`). So
the prefix plus the next 4 tokens is sent first, and each question of the request resumes at the prefix's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from openjev_cli import errors, prompt, words
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client, does_not_fit, no_words
from openjev_cli.engine.facts import Facts, Prefix
from openjev_cli.engine.protocol import Caching, Evaluation, Progress, Reading

LABEL_BIAS = 100.0
# llama-server's last checkpoint lies this many tokens before the end of a prompt.
CHECKPOINT_TAIL = 4
_FIELDS = ["completion_probabilities", "tokens_evaluated", "truncated", "id_slot", "timings"]


@dataclass(frozen=True)
class Tokens:
    """A prompt in token ids: the prefix with BOS, and for each reading its suffix and its label ids. tries: for
    each question None if it is one reading by labels, else the trie with a reading for each branching point."""

    prefix: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[int, ...], ...]
    tries: tuple[words.Trie | None, ...] = ()


def to_tokens(client: Client, asked: prompt.Prompt, facts: Facts) -> tuple[Tokens, Facts]:
    """Return the ids of a prompt without images: frame texts from memory where known, user texts in one
    request. Raises InputError for options that cannot be told by their tokens."""
    prefix = [segment for segment in asked.prefix if isinstance(segment, prompt.Segment)]
    assert len(prefix) == len(asked.prefix), "images are no token ids"
    parts = [prefix, *(suffix.segments for suffix in asked.suffixes)]
    parts += [option for suffix in asked.suffixes for option in suffix.options]
    segments = [segment for part in parts for segment in part]
    user = list(dict.fromkeys(segment.text for segment in segments if not segment.special))
    known = dict(facts.frames)
    new = list(dict.fromkeys(s.text for s in segments if s.special and s.text not in known))
    known.update(zip(new, facts_.tokenize(client, new, special=True), strict=True))
    literal = dict(zip(user, facts_.tokenize(client, user, special=False), strict=True))

    def ids(part: Sequence[prompt.Segment]) -> tuple[int, ...]:
        return tuple(i for s in part for i in (known[s.text] if s.special else literal[s.text]))

    suffixes: list[tuple[int, ...]] = []
    labels: list[tuple[int, ...]] = []
    tries: list[words.Trie | None] = []
    for suffix in asked.suffixes:
        read = ids(suffix.segments)
        trie = None
        if suffix.options:
            try:
                trie = words.build([ids(option) for option in suffix.options], facts.end)
            except ValueError as exc:
                raise no_words(str(exc)) from exc
        tries.append(trie)
        if trie is None:
            suffixes.append(read)
            labels.append(tuple(label.token for label in suffix.labels))
        else:
            suffixes += [read + branching.path for branching in trie.branchings]
            labels += [branching.tokens for branching in trie.branchings]
    tokens = Tokens(facts.bos + ids(prefix), tuple(suffixes), tuple(labels), tuple(tries))
    return tokens, (replace(facts, frames=known) if new else facts)


def by_question(tokens: Tokens, readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Return one reading a question out of one for each branching point."""
    rest = iter(readings)
    found = []
    for trie in tokens.tries:
        first = next(rest)
        if trie is not None:
            scores = [first.scores, *(next(rest).scores for _ in trie.branchings[1:])]
            first = replace(first, scores=words.log_probabilities(trie, scores))
        found.append(first)
    return tuple(found)


class Stock:
    """The readout that works on every llama-server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def evaluate(
        self, asked: prompt.Prompt, facts: Facts, caching: Caching, progress: Progress | None
    ) -> tuple[Evaluation, Facts]:
        """Read the questions one after the other on one slot, after priming the prefix where that pays."""
        tokens, facts = to_tokens(self._client, asked, facts)
        longest = len(tokens.prefix) + max(len(suffix) for suffix in tokens.suffixes)
        available = facts.n_ctx - 1  # the answer needs a place too
        if longest > available:
            raise does_not_fit(longest, available)

        run = _Run(self._client, tokens, caching, progress)
        if progress is not None:
            progress(0, run.total)
        digest = facts.digest(tokens.prefix)
        before = facts.prefix(digest)
        is_kept = before is not None and before.is_kept
        if caching.prompts and not facts.can_cut and not is_kept:
            is_shared = caching.shared_prefix and len(tokens.suffixes) > 1
            is_repeated = caching.repeated_state and before is not None
            if is_shared or is_repeated:
                run.prime()
                is_kept = True
        readings: list[Reading] = []
        for i in range(len(tokens.suffixes)):
            reading = run.ask(i)
            readings.append(reading)
            if run.was_primed and facts.can_cut is None:
                # Cut right where the priming tokens ended, not at the checkpoint before them.
                facts = replace(facts, can_cut=reading.cached > len(tokens.prefix))
            lost = reading.cached < len(tokens.prefix) and i + 1 < len(tokens.suffixes)
            if lost and is_kept and caching.prompts and caching.shared_prefix and not facts.can_cut:
                # Another state has taken the slot since; make the checkpoint again for the rest.
                run.prime()
        if caching.prompts:
            is_kept = is_kept and readings[-1].cached >= len(tokens.prefix)
            facts = facts.with_prefix(Prefix(digest, is_kept))
        evaluation = Evaluation(by_question(tokens, readings), 0.0, run.inference_ms, len(tokens.prefix))
        return evaluation, facts


class _Run:
    """One request's completions, kept on one slot so that they resume from each other."""

    def __init__(self, client: Client, tokens: Tokens, caching: Caching, progress: Progress | None) -> None:
        self._client = client
        self._tokens = tokens
        self._caching = caching
        self._progress = progress
        self._slot = -1
        self._done = 0
        self.total = len(tokens.prefix) + sum(len(suffix) for suffix in tokens.suffixes)
        self.inference_ms = 0.0
        self.was_primed = False

    def prime(self) -> None:
        """Let the engine read the prefix and keep a checkpoint exactly at its end."""
        tail = self._tokens.suffixes[0][:CHECKPOINT_TAIL]
        if len(tail) == CHECKPOINT_TAIL:
            # The last of them is another than the first question's: what goes on where a prompt ended needs no
            # cut, and would not tell whether the memory can be cut.
            other = next(label for label in self._tokens.labels[0] if label != tail[-1])
            self._complete((*self._tokens.prefix, *tail[:-1], other), labels=())
            self.was_primed = True

    def ask(self, i: int) -> Reading:
        """Read question `i`."""
        ids = self._tokens.prefix + self._tokens.suffixes[i]
        labels = self._tokens.labels[i]
        reply = self._complete(ids, labels)
        self._done += len(self._tokens.suffixes[i])
        if self._progress is not None:
            self._progress(len(self._tokens.prefix) + self._done, self.total)
        cached = int((reply.get("timings") or {}).get("cache_n") or 0)
        return Reading(label_scores(reply, labels), len(ids), cached)

    def _complete(self, ids: Sequence[int], labels: Sequence[int]) -> dict[str, Any]:
        body = completion_body(list(ids), labels, is_cached=self._caching.prompts, slot=self._slot)
        reply = self._client.post("/completion", body)
        if not isinstance(reply, dict):
            raise nonsense("/completion gave no JSON object")
        # An answer on a cut prompt is no answer.
        if reply.get("truncated") or reply.get("tokens_evaluated") != len(ids):
            raise nonsense(
                f"{len(ids)} prompt tokens were sent and {reply.get('tokens_evaluated')} were read"
            )
        slot = reply.get("id_slot")
        self._slot = slot if isinstance(slot, int) else -1
        timings = reply.get("timings") or {}
        self.inference_ms += float(timings.get("prompt_ms") or 0.0) + float(
            timings.get("predicted_ms") or 0.0
        )
        return reply


def completion_body(
    sent: list[int] | dict[str, Any], labels: Sequence[int], *, is_cached: bool, slot: int
) -> dict[str, Any]:
    """Return a /completion request that reads a prompt and gives the probabilities of `labels` (ids)."""
    return {
        "prompt": sent,
        "n_predict": 1,
        "samplers": ["temperature"],
        "temperature": 1.0,
        "logit_bias": [[label, LABEL_BIAS] for label in labels],
        "n_probs": len(labels),
        "post_sampling_probs": True,
        "cache_prompt": is_cached,
        "id_slot": slot,
        "seed": 0,
        "response_fields": _FIELDS,
    }


def label_scores(reply: dict[str, Any], labels: Sequence[int]) -> tuple[float, ...]:
    """Return log-probabilities of `labels` (ids) from a /completion reply, in order.

    Raises ReadoutError if the reply lacks one of them, or gives one no probability at all.
    """
    try:
        top = reply["completion_probabilities"][0]["top_probs"]
        found = {int(entry["id"]): float(entry["prob"]) for entry in top}
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise nonsense("/completion gave no probabilities") from exc
    missing = [label for label in labels if not found.get(label, 0.0) > 0.0]
    if missing:
        raise errors.ReadoutError(
            f"llama-server gave no probability for {len(missing)} of {len(labels)} labels; their logits lie too "
            "far apart for it to show",
            next_step="use the patched build, which reads logits: scripts/build-llama.sh",
        )
    return tuple(math.log(found[label]) for label in labels)


def nonsense(what: str) -> errors.EngineError:
    """Return the error for a reply that cannot be what was asked for."""
    return errors.EngineError(
        f"llama-server's reply makes no sense: {what}",
        next_step="use llama-server b9670 or newer, or build ours: scripts/build-llama.sh",
    )
