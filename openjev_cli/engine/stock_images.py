"""Reading labels from any llama-server about a prompt with images.

Its /completion takes images only beside a text with a marker for each, and reads that whole text with special
tokens. So the segments cannot be kept apart: a user's text that would become a special token is refused. The
tokens of a text are those of the whole, not of its segments.

Priming: the prefix is sent alone; the checkpoint that llama-server makes `CHECKPOINT_TAIL` tokens before its
end lies behind the images, since a prefix never ends with one. Each question reads those few tokens again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openjev_cli import errors, prompt
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client
from openjev_cli.engine.facts import Facts, Prefix
from openjev_cli.engine.protocol import Caching, Evaluation, Progress, Reading
from openjev_cli.engine.stock import CHECKPOINT_TAIL, completion_body, label_scores, nonsense

# Beside its tokens an image has one that opens and one that closes it (qwen3vl).
_FRAME_TOKENS = 2


@dataclass(frozen=True)
class Texts:
    """A prompt as texts with markers, and how long its parts are (answers show the engine's own counts)."""

    prefix: str
    suffixes: tuple[str, ...]
    prefix_tokens: int
    suffix_tokens: tuple[int, ...]


class StockImages:
    """The readout for prompts with images that works on every llama-server with a projector."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def evaluate(
        self, asked: prompt.Prompt, facts: Facts, caching: Caching, progress: Progress | None
    ) -> tuple[Evaluation, Facts]:
        """Read the questions one after the other on one slot, after priming the prefix where that pays."""
        texts = to_texts(self._client, asked, facts)
        run = _Run(self._client, asked, texts, caching)
        total = texts.prefix_tokens + sum(texts.suffix_tokens)
        done = 0
        if progress is not None:
            progress(done, total)
        # Pixels are part of what a prefix is: the same text with another image is another prefix.
        digest = facts.digest(texts.prefix.encode() + "".join(i.digest for i in asked.images).encode())
        before = facts.prefix(digest)
        is_kept = before is not None and before.is_kept
        if caching.prompts and not facts.can_cut and not is_kept:
            is_shared = caching.shared_prefix and len(texts.suffixes) > 1
            if is_shared or (caching.repeated_state and before is not None):
                run.prime()
                is_kept = True
        readings: list[Reading] = []
        done = texts.prefix_tokens
        for i, suffix_tokens in enumerate(texts.suffix_tokens):
            readings.append(run.ask(i, facts))
            done += suffix_tokens
            if progress is not None:
                progress(done, total)
            lost = readings[-1].cached < texts.prefix_tokens - CHECKPOINT_TAIL
            is_kept = is_kept and not lost
            if lost and run.was_primed and caching.shared_prefix and i + 1 < len(texts.suffixes):
                # Another state has taken the slot since; make the checkpoint again for the rest.
                run.prime()
                is_kept = True
        if caching.prompts:
            facts = facts.with_prefix(Prefix(digest, is_kept))
        return Evaluation(tuple(readings), 0.0, run.inference_ms, texts.prefix_tokens), facts


def to_texts(client: Client, asked: prompt.Prompt, facts: Facts) -> Texts:
    """Return the prompt's texts. Raises InputError if a user's text would be read as special tokens."""
    parts = (asked.prefix, *(suffix.segments for suffix in asked.suffixes))
    user = list(dict.fromkeys(text for part in parts for text in _user_texts(part)))
    literal = facts_.tokenize(client, user, special=False)
    parsed = facts_.tokenize(client, user, special=True)
    forbidden = (facts.media_marker, *facts.markup)
    if literal != parsed or any(one in text for text in user for one in forbidden):
        raise errors.InputError(
            "this llama-server would read a part of the state or the questions as special tokens, because it "
            "cannot keep texts apart when there are images",
            next_step="use the patched build, which can: scripts/build-llama.sh",
        )
    pieces = [""]
    for one in asked.prefix:
        if isinstance(one, prompt.ImageSegment):
            pieces.append("")
        else:
            pieces[-1] += one.text
    suffixes = tuple("".join(one.text for one in suffix.segments) for suffix in asked.suffixes)
    counts = [len(ids) for ids in facts_.tokenize(client, [*pieces, *suffixes], special=True)]
    seen = sum(image.n_tokens + _FRAME_TOKENS for image in asked.images)
    return Texts(
        prefix=facts.media_marker.join(pieces),
        suffixes=suffixes,
        prefix_tokens=len(facts.bos) + sum(counts[: len(pieces)]) + seen,
        suffix_tokens=tuple(counts[len(pieces) :]),
    )


def _user_texts(segments: Sequence[prompt.Segment | prompt.ImageSegment]) -> list[str]:
    """Return the texts of the user as the engine will read them: pieces that follow each other (a text is cut
    inside markup) are one again."""
    texts: list[str] = []
    is_open = False
    for one in segments:
        if isinstance(one, prompt.ImageSegment) or one.special:
            is_open = False
        elif is_open:
            texts[-1] += one.text
        else:
            texts.append(one.text)
            is_open = True
    return texts


class _Run:
    """One request's completions, kept on one slot so that they resume from each other."""

    def __init__(self, client: Client, asked: prompt.Prompt, texts: Texts, caching: Caching) -> None:
        self._client = client
        self._asked = asked
        self._texts = texts
        self._caching = caching
        self._files = [image.base64 for image in asked.images]
        self._slot = -1
        self.inference_ms = 0.0
        self.was_primed = False

    def prime(self) -> None:
        """Let the engine read the prefix and keep a checkpoint behind its images."""
        self._complete(self._texts.prefix, ())
        self.was_primed = True

    def ask(self, i: int, facts: Facts) -> Reading:
        """Read question `i`."""
        labels = [label.token for label in self._asked.suffixes[i].labels]
        reply = self._complete(self._texts.prefix + self._texts.suffixes[i], labels)
        cached = int((reply.get("timings") or {}).get("cache_n") or 0)
        return Reading(label_scores(reply, labels), int(reply["tokens_evaluated"]), cached)

    def _complete(self, text: str, labels: Sequence[int]) -> dict[str, Any]:
        sent = {"prompt_string": text, "multimodal_data": self._files}
        body = completion_body(sent, labels, is_cached=self._caching.prompts, slot=self._slot)
        reply = self._client.post("/completion", body)
        if not isinstance(reply, dict) or not isinstance(reply.get("tokens_evaluated"), int):
            raise nonsense("/completion does not say what it has read")
        # Fewer tokens than the images alone have: they were not seen.
        n_seen = sum(image.n_tokens for image in self._asked.images)
        if reply.get("truncated") or reply["tokens_evaluated"] <= n_seen:
            raise nonsense(f"images of {n_seen} tokens were sent and {reply['tokens_evaluated']} were read")
        slot = reply.get("id_slot")
        self._slot = slot if isinstance(slot, int) else -1
        timings = reply.get("timings") or {}
        self.inference_ms += sum(float(timings.get(name) or 0.0) for name in ("prompt_ms", "predicted_ms"))
        return reply
