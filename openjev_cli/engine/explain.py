"""What `ask --explain` shows: the exact prompt, its token ids, what was cached, and the mass on the labels."""

from __future__ import annotations

from collections.abc import Sequence

from openjev_cli import prompt
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client
from openjev_cli.engine.facts import Facts
from openjev_cli.engine.protocol import Evaluation


def lines(
    client: Client, asked: prompt.Prompt, ids: Sequence[str], evaluation: Evaluation, facts: Facts
) -> tuple[str, ...]:
    """Return the explanation of one request as lines. ids: the questions' ids, in order."""
    shown = [
        f"engine {facts.build}, {facts.n_ctx} tokens a request",
        f"prefix of {evaluation.prefix_tokens} tokens, read once for all questions:",
        *_segments(client, asked.prefix),
    ]
    for name, suffix, reading in zip(ids, asked.suffixes, evaluation.readings, strict=True):
        mass = "unknown" if reading.label_mass is None else f"{reading.label_mass:.4f}"
        shown += [
            f"question {name}: {reading.n_tokens} tokens, {reading.cached} of them cached, label mass {mass}",
            *_segments(client, suffix.segments),
            *_answers(client, suffix),
        ]
    return tuple(shown)


def _answers(client: Client, suffix: prompt.Suffix) -> tuple[str, ...]:
    """Return the lines that say what may follow: labels and their ids, or the options as they are read."""
    if suffix.labels:
        return ("  labels " + " ".join(f"{one.text}={one.token}" for one in suffix.labels),)
    return tuple(
        line.replace("user ", "option", 1) for option in suffix.options for line in _segments(client, option)
    )


def _segments(client: Client, segments: Sequence[prompt.Segment | prompt.ImageSegment]) -> tuple[str, ...]:
    """Return one line a segment: whose text it is, the text, and its token ids."""
    texts = {
        special: [s.text for s in segments if isinstance(s, prompt.Segment) and s.special is special]
        for special in (True, False)
    }
    read = {
        special: iter(facts_.tokenize(client, found, special=special)) for special, found in texts.items()
    }
    shown = []
    for segment in segments:
        if isinstance(segment, prompt.Segment):
            kind = "frame" if segment.special else "user"
            shown.append(f"  {kind:5} {segment.text!r} {list(next(read[segment.special]))}")
        else:
            picture = segment.image
            shown.append(f"  image {picture.width}x{picture.height} px, {picture.n_tokens} tokens")
    return tuple(shown)
