"""Images on the way that works with every llama-server: one text with markers to /completion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from openjev_cli import errors, images, labels, prompt, questions, server
from openjev_cli import state as states
from openjev_cli.binary import find_binary
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client
from openjev_cli.engine.facts import Facts
from openjev_cli.engine.protocol import Caching, Evaluation
from openjev_cli.engine.stock_images import StockImages
from tests.conftest import CASES

ASKED = questions.load(
    [
        questions.inline("Is it red?"),
        questions.inline("Which colour is it? [red | green | blue: like the sky]"),
        questions.inline("How large is it? [small < large < huge]"),
    ]
)


@dataclass
class Asker:
    """Asks on the stock way, whatever the engine could do beyond it."""

    client: Client
    facts: Facts

    def evaluate(
        self, state: states.State, which: slice = slice(None), *, is_cached: bool = True
    ) -> Evaluation:
        frame, _ = facts_.frame_for(self.client, self.facts, state)
        asked = prompt.build(frame, state, ASKED[which], self.facts.labels, self.facts.markup)
        caching = Caching(is_cached, is_cached, is_cached)
        evaluation, self.facts = StockImages(self.client).evaluate(asked, self.facts, caching, None)
        return evaluation

    def answers(
        self, state: states.State, which: slice = slice(None), *, is_cached: bool = True
    ) -> list[float]:
        readings = self.evaluate(state, which, is_cached=is_cached).readings
        return [p for reading in readings for p in labels.probabilities(reading.scores)]


@pytest.fixture
def asker(
    llama_server: Path, tiny_hybrid: Path, tiny_projector: Path, runtime_dir: Path, tmp_path: Path
) -> Iterator[Asker]:
    environ = {"XDG_RUNTIME_DIR": str(runtime_dir), "PATH": ""}
    spec = server.Spec(find_binary(llama_server, tmp_path, environ), tiny_hybrid, tiny_projector)
    with Client(server.ensure(spec, environ=environ).connect) as client:
        yield Asker(client, facts_.learn(client))


def seen(name: str, text: str = "") -> states.State:
    image = images.from_bytes((CASES / name).read_bytes(), name=name)
    return states.with_images(states.from_text(text), [image])


def test_primed_alone_and_uncached_answers_are_the_same(asker: Asker) -> None:
    state = seen("C05_plain.png", "A sign.")
    cold = asker.answers(state, is_cached=False)
    assert asker.answers(state) == pytest.approx(cold, abs=1e-5)
    assert asker.answers(state) == pytest.approx(cold, abs=1e-5)
    alone = [p for at in range(3) for p in asker.answers(state, slice(at, at + 1))]
    assert alone == pytest.approx(cold, abs=1e-5)


def test_a_swapped_picture_is_not_answered_from_the_old_one(asker: Asker) -> None:
    go, void = seen("C01_plain.png", "One."), seen("C05_plain.png", "One.")
    cold = [asker.answers(state, is_cached=False) for state in (go, void)]
    assert max(abs(p - q) for p, q in zip(*cold, strict=True)) > 1e-3
    for _ in range(3):
        assert asker.answers(go) == pytest.approx(cold[0], abs=1e-5)
        assert asker.answers(void) == pytest.approx(cold[1], abs=1e-5)


def test_the_picture_is_read_once_for_all_questions_and_again_for_none(asker: Asker) -> None:
    state = seen("C04_plain.png", "To be counted.")
    first = asker.evaluate(state)
    again = asker.evaluate(state)
    for reading in (*first.readings, *again.readings):
        # The few tokens between the checkpoint and the end of the prefix are read again.
        assert reading.cached >= first.prefix_tokens - 4
        assert reading.n_tokens > first.prefix_tokens


@pytest.mark.parametrize("text", ["<|im_end|>", "a <|im_start|>b", "<|vision_start|>", "so <think> it"])
def test_a_text_that_would_become_special_tokens_is_refused(asker: Asker, text: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        asker.evaluate(seen("C05_plain.png", text))
    assert "special tokens" in caught.value.message
    assert caught.value.next_step == "use the patched build, which can: scripts/build-llama.sh"


def test_a_text_that_holds_the_engines_image_marker_is_refused(asker: Asker) -> None:
    with pytest.raises(errors.InputError):
        asker.evaluate(seen("C05_plain.png", f"see {asker.facts.media_marker} here"))


def test_a_state_that_does_not_fit_is_refused_with_both_numbers(asker: Asker) -> None:
    with pytest.raises(errors.InputError, match=r"need \d+ tokens, but \d+ are available"):
        asker.evaluate(seen("C05_plain.png", "word " * 9000))
