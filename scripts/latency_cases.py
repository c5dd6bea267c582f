"""What scripts/latency.py asks: states and questions from benchmarks/cases/, in the order a case asks them.

A case is a list of steps. One endpoint takes all steps of a case in a row (its turn); then the next endpoint
does. Steps with the same label are added up to one row of the results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import generate_images

from openjev_cli import images, reading
from openjev_cli import questions as questions_
from openjev_cli import state as states

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks" / "cases"
FILLED_NODE, FILLED_VALUE = "Card number", "4111 1111 1111 1111"
PICTURES: dict[str, Callable[[], bytes]] = {
    "screenshot": lambda: generate_images.screenshot(448, 672),
    "photo": lambda: generate_images.photo(2048, 1536),
}


@dataclass(frozen=True)
class Step:
    """One request. state: a name that `Library.state` knows. asked: positions in the question list of that
    state."""

    label: str
    state: str
    asked: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A few requests in order. goals: by label, what the row is held against (see latency_numbers.GOALS).
    is_heavy: fewer trials. is_counted: one trial, since its goal is a number of tokens, which never differs.
    once: endpoints that take it a single time, since it costs them minutes and always the same work. only: the
    endpoints it is for, none = all."""

    name: str
    steps: tuple[Step, ...]
    goals: dict[str, str]
    is_heavy: bool = False
    is_counted: bool = False
    once: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def needs_images(self) -> bool:
        """Whether a state of it is a picture."""
        return any(step.state in PICTURES for step in self.steps)


def _single(name: str, state: str, count: int, goal: str, *, is_heavy: bool = False) -> Case:
    return Case(name, (Step(name, state, tuple(range(count))),), {name: goal}, is_heavy=is_heavy)


def _rotation(count: int) -> Case:
    name = f"rotation_{count}q"
    steps = []
    for round_ in range(2):
        asked = tuple(range(count)) if count > 1 else (round_,)
        label = f"{name}_{'later' if round_ else 'first'}"
        steps += [Step(label, f"rotation_{i}", asked) for i in (1, 2, 3, 4)]
    goals = {f"{name}_first": "", f"{name}_later": "counted"}
    return Case(name, tuple(steps), goals, is_counted=True)


CASES: tuple[Case, ...] = (
    _single("ticket_1q", "ticket", 1, "one"),
    _single("policy_1q", "policy", 1, "one"),
    _single("screenshot_1q", "screenshot", 1, "one"),
    _single("photo_1q", "photo", 1, "one"),
    _single("ticket_4q", "ticket", 4, "ideal"),
    _single("policy_4q", "policy", 4, "ideal"),
    _single("screenshot_4q", "screenshot", 4, "ideal"),
    _single("page_12q", "page", 12, "ideal", is_heavy=True),
    Case(
        "page_12q_spaced",
        (Step("page_12q_spaced", "page:spaced", tuple(range(12))),),
        {"page_12q_spaced": ""},
        is_heavy=True,
        once=("after",),
        only=("after",),
    ),
    Case(
        "repeat",
        (
            Step("repeat_cold", "policy", (0,)),
            Step("repeat_new", "policy", (1,)),
            Step("repeat_again", "policy", (1,)),
        ),
        {"repeat_cold": "", "repeat_new": "repeat", "repeat_again": "repeat"},
        once=("before", "native"),
    ),
    _rotation(1),
    _rotation(4),
    Case(
        "page_edit",
        (
            Step("page_edit_cold", "page", (0,)),
            Step("page_edit_filled", "page:filled", (0,)),
            Step("page_edit_no_history", "page:no_history", (0,)),
        ),
        {"page_edit_cold": "", "page_edit_filled": "resumed", "page_edit_no_history": "resumed"},
        is_counted=True,
    ),
    Case(
        "game",
        tuple(Step("game", "game", (i,)) for i in range(16)),
        {"game": ""},
        is_heavy=True,
        once=("before", "native"),
    ),
)
# The states whose one question is asked twice of `before` at the start.
AA_CASES = ("ticket_1q", "policy_1q", "screenshot_1q", "photo_1q")
EACH_STATES = "each.ndjson"


class Library:
    """The case texts, read once; states with a fresh identifier at their start."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._values: dict[str, reading.Value] = {}
        self._questions: dict[str, tuple[questions_.Question, ...]] = {}
        self._pictures: dict[str, bytes] = {}

    def state(self, name: str, identifier: str) -> states.State:
        """Return the state `name` (BASE or BASE:VARIANT). identifier: digits, so that it always has as many
        tokens; of a picture's state it is the text below the picture."""
        base, _, variant = name.partition(":")
        if base in PICTURES:
            return states.with_images(states.from_text(f"Request {identifier}"), [self._picture(base)])
        value = self._value(base)
        if isinstance(value, str):
            return states.from_text(f"Request {identifier}\n\n{value}")
        assert isinstance(value, dict)
        changed: dict[str, reading.Value] = {"request": identifier, **value}
        if variant == "filled":
            changed["nodes"] = _filled(changed["nodes"])
        elif variant == "no_history":
            del changed["history"]
        return states.from_value(changed, compact=variant != "spaced")

    def questions(self, name: str) -> tuple[questions_.Question, ...]:
        """Return the question list of a state."""
        base = name.partition(":")[0]
        # The four texts in rotation share a list; pictures are asked what a page is asked.
        base = "rotation" if base.startswith("rotation_") else "page" if base in PICTURES else base
        if base not in self._questions:
            path = self._folder / f"{base}.questions.json"
            parsed = reading.parse_json(path.read_text(encoding="utf-8"), name=path.name)
            found, problems = questions_.from_wire(parsed)
            if problems:
                raise SystemExit(f"{path}: {reading.describe(problems[0])}")
            self._questions[base] = found
        return self._questions[base]

    def asked(self, step: Step) -> tuple[questions_.Question, ...]:
        """Return the questions of a step."""
        every = self.questions(step.state)
        return tuple(every[i] for i in step.asked)

    def records(self) -> list[dict[str, reading.Value]]:
        """Return the short states of the stream."""
        text = (self._folder / EACH_STATES).read_text(encoding="utf-8")
        found = reading.read_ndjson(text, name=EACH_STATES)
        return [record for record in found if isinstance(record, dict)]

    def picture_bytes(self, name: str) -> bytes:
        """Return the file of a generated picture."""
        if name not in self._pictures:
            self._pictures[name] = PICTURES[name]()
        return self._pictures[name]

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of every case file."""
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self._folder.iterdir())
        }

    def _picture(self, name: str) -> images.Image:
        return images.from_bytes(self.picture_bytes(name), name=name, max_tokens=images.DEFAULT_TOKENS)

    def _value(self, base: str) -> reading.Value:
        if base not in self._values:
            path = self._folder / f"{base}.json"
            if path.exists():
                self._values[base] = reading.parse_json(path.read_text(encoding="utf-8"), name=path.name)
            else:
                self._values[base] = (self._folder / f"{base}.txt").read_text(encoding="utf-8").rstrip("\n")
        return self._values[base]


def _filled(nodes: reading.Value) -> list[reading.Value]:
    """Return the nodes of the page after one field was filled."""
    assert isinstance(nodes, list)
    changed: list[reading.Value] = []
    for node in nodes:
        assert isinstance(node, dict)
        is_it = node["name"] == FILLED_NODE
        changed.append({**node, "value": FILLED_VALUE} if is_it else node)
    assert changed != nodes
    return changed


def chosen(names: Sequence[str], *, with_images: bool) -> tuple[Case, ...]:
    """Return the cases of these names (none = all), without pictures where nothing can see them."""
    return tuple(
        case for case in CASES if (not names or case.name in names) and (with_images or not case.needs_images)
    )
