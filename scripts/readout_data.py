"""The labelled rows that the trained readout learns from and is measured on. No torch: numpy at most.

Which tasks are held out, which rows test, what share each task gets, how a row becomes token ids of the exact
prompt openjev sends, and how rows are put into batches. Used by train_readout.py, evaluate.py and
baseline_tfidf.py alike, so that none of them can disagree about what was trained on.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import readout_tickets

from openjev_cli import errors, prompt, questions, reading
from openjev_cli import request as requests
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client

JSON = dict[str, Any]
Tokens = tuple[int, ...]

# ------------------------------------------------------------------------------------------ which tasks

# Never trained on: whole tasks, chosen before anything was measured, of different kinds.
HELD_OUT: dict[str, str] = {
    "sms_spam": "spam or not; no trained task is about spam",
    "poem_sentiment": "feeling of a line of verse",
    "hwu64_intent": "requests to a home assistant, up to a dozen options (CLINC150, trained on, has similar ones)",
    "fb_alarm_weather": "alarm, reminder and weather requests (likewise)",
    "medquad_question_type": "what a medical text is about; long states",
    "tool_relevance": "does one of these functions fit the request; long JSON states",
    "scitail": "entailment in science texts (MNLI and SNLI, trained on, ask the same of other texts)",
}
# Neither trained on nor held out: made of the same functions and requests as a held-out task.
DROPPED: dict[str, str] = {"tool_choice": "the same BFCL functions and requests as tool_relevance"}

# Rows are drawn in these proportions. What is in neither table was looked at and left out (weight 0): a model of
# this size answers it at chance (facts and reasoning: strategyqa, csqa2, piqa, commonsenseqa, creak_claims,
# fm2_factcheck, boolq, ecare_cause, comve_sense, figqa_metaphor, gap_pronoun, svamp_operation, judge_pair*), or
# its prompts are far longer than the rest (medical_abstracts, advisory_*), or its labels are mostly noise
# (isarcasm, word_difficulty).
MIXTURE: dict[str, tuple[float, str]] = {
    "synth": (4.5, "48 templates: fields, policies, tickets, logs; JSON, text and chats"),
    "tickets": (2.5, "messages to a company with several facts in them; scripts/readout_tickets.py"),
    "clinc150_full": (1.0, "intents"),
    "clinc_domain": (1.0, "topics of requests"),
    "banking77": (0.8, "intents; long option lists"),
    "multidogo_turn": (1.0, "intents; customer service"),
    "nlupp_intents": (1.5, "does the message involve this"),
    "sgd_dialogue": (0.8, "dialogues"),
    "commit_type": (0.6, "kinds of commits"),
    "tram_attack_technique": (0.4, "techniques in security reports"),
    "legal_clauses": (0.3, "kinds of clauses"),
    "emotion": (1.0, "feelings"),
    "xed_emotion": (0.8, "feelings"),
    "valence": (1.0, "pleasant or not; scores"),
    "arousal": (0.2, "calm or excited; scores; noisy"),
    "clickbait": (1.0, "style"),
    "unsafe_request": (1.0, "is it harmful"),
    "perspectrum_stance": (0.6, "for or against"),
    "snli": (1.0, "entailment; short"),
    "mnli": (0.7, "entailment"),
    "qnli_answerable": (0.6, "does it answer the question"),
    "babi_stories": (0.6, "short stories"),
    "ud_word_class": (0.4, "word classes"),
    "disfl_qa": (0.3, "same question or not"),
    "query_wellformed": (0.3, "form of queries; scores"),
    "onestop_level": (0.2, "reading level; scores"),
    "blimp_grammar": (0.2, "grammar; hard for this size"),
}

# ------------------------------------------------------------------------------------------ which rows

# Stands for the file of rows that are made here.
GENERATED = Path("tickets")
TICKETS, TICKETS_SEED = 3000, 20261130

_TEST, _VALIDATION = 10, 2  # per cent of the rows of a seen task
_SHORTEST_KEY = 25


def task_of(path: Path) -> str:
    """Return the task a file of rows holds."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def files(folder: Path) -> dict[str, Path]:
    """Return the row files in a folder by task; for the training data also the rows that are generated.
    Raises SystemExit if there are none."""
    found = {task_of(path): path for path in sorted(folder.glob("*.jsonl*")) if path.is_file()}
    if not found:
        raise SystemExit(f"no *.jsonl or *.jsonl.gz in {folder}")
    if (folder / "MANIFEST.json").is_file():
        found[GENERATED.name] = GENERATED
    return found


def read_rows(path: Path) -> Iterator[JSON]:
    """Give the rows of a JSONL file, gzipped or not, numbers kept as they are written."""
    if path == GENERATED:
        for made in readout_tickets.rows(TICKETS, TICKETS_SEED):
            read: Any = reading.parse_json(json.dumps(made), name=str(made["id"]))
            yield read
        return
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for at, line in enumerate(lines, start=1):
            row: Any = reading.parse_json(line, name=f"{path.name}:{at}")
            if not isinstance(row, dict):
                raise SystemExit(f"{path.name}:{at}: a row is an object")
            yield row


def state_key(state: Any) -> str:
    """Return what identifies a state whatever wraps it: its longest text (of a chat: what users say), with
    letters and digits only; of a state without such a text everything it holds."""
    if isinstance(state, dict) and list(state) == ["messages"]:
        state = state["messages"]
    if isinstance(state, list) and state and all(isinstance(one, dict) and "content" in one for one in state):
        users = [one for one in state if one.get("role") not in ("assistant", "system")] or state
        return _plain(" ".join(str(one["content"]) for one in users))
    if not isinstance(state, str):
        longest = max(_texts(state), key=len, default="")
        state = longest if len(longest) >= _SHORTEST_KEY else reading.dumps(state, compact=True)
    return _plain(state)


def _plain(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for held in value.values():
            yield from _texts(held)
    elif isinstance(value, list):
        for held in value:
            yield from _texts(held)


def number_of(text: str) -> int:
    """Return a number that stands for a text on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def part_of(task: str, state: Any) -> str:
    """Return what a row is for: of a held-out task "unseen" or "unseen_validation" (only the learning curve
    looks at these), "unused", or of a seen task "test", "validation" or "train". The hash is of the state,
    not of the row's id: all rows about one text lie on the same side, in every task."""
    if task not in HELD_OUT and task not in MIXTURE:
        return "unused"
    share = number_of(state_key(state)) % 100
    if task in HELD_OUT:
        return "unseen_validation" if share < _TEST else "unseen"
    return "test" if share < _TEST else "validation" if share < _TEST + _VALIDATION else "train"


def parts_of(task: str) -> tuple[str, ...]:
    """Return every part that rows of a task may belong to."""
    if task in HELD_OUT:
        return ("unseen", "unseen_validation")
    return ("test", "validation", "train") if task in MIXTURE else ("unused",)


def held_out_keys(folder: Path) -> frozenset[str]:
    """Return the keys of every state of the held-out tasks: rows of other tasks about them are not used."""
    found = files(folder)
    return frozenset(
        state_key(row["state"]) for task in HELD_OUT if task in found for row in read_rows(found[task])
    )


def question_of(row: JSON, *, compact: bool = True) -> requests.Request:
    """Return the request that a row asks. Raises SystemExit for a row that openjev would refuse."""
    try:
        return requests.parse({"state": row["state"], "questions": {"q": row["question"]}}, compact=compact)
    except (errors.InputError, KeyError) as exc:
        raise SystemExit(f"row {row.get('id')}: {exc}") from exc


def gold_of(row: JSON, question: questions.Question) -> int:
    """Return the position of the right option in `prompt.options_of`. Raises SystemExit if there is none."""
    label = reading.plain(row["label"])
    if isinstance(question, questions.Noul):
        if isinstance(label, bool):
            return 0 if label else 1
    elif isinstance(question, questions.Choice):
        names = [option.name for option in question.options]
        if label in names:
            return names.index(str(label))
    elif isinstance(label, int) and 0 <= label < len(question.levels):
        return label
    raise SystemExit(f"row {row.get('id')}: its label {label!r} is no option of its question")


# ------------------------------------------------------------------------------------------ derived questions

_IS_IT = (
    '{question} Is it "{name}"?',
    "{question} Is the answer {name}?",
    'Is "{name}" the right answer to this: {question}',
    "Does {name} fit? ({question})",
    "Is it {name}?",
)
_AT_LEAST = (
    '{question} Is it at least "{name}"?',
    '{question} Does it reach the level "{name}"?',
    "Is it {name} or more? ({question})",
)
_YES_NO: tuple[JSON | None, ...] = (
    None,
    None,
    {"true": "Yes", "false": "No"},
    {"true": "It is so", "false": "It is not so"},
)


def derived(row: JSON) -> list[JSON]:
    """Return the yes/no rows that follow from a row: of a choice, whether it is the right option and whether it is
    another one; of a score, whether it reaches the level it has and whether it reaches a higher one. Of a yes/no
    question nothing.

    A small model learns to lean one way on yes/no questions rather than to read them; here the same question about
    the same state has both answers, and what differs is what is asked for.
    """
    asked: JSON = row["question"]
    label: Any = reading.plain(row["label"])
    rng = random.Random(number_of(f"derived {row['id']}"))
    forms: tuple[str, ...]
    if asked["type"] == "choice":
        shown = dict(asked["criteria"])
        others = [name for name in shown if name != label]
        if not others:
            return []
        pairs, forms = [(str(label), True), (rng.choice(others), False)], _IS_IT
    elif asked["type"] == "score":
        shown = {str(name): None for name in asked["criteria"]}
        levels = list(shown)
        pairs = [(levels[at], at <= label) for at in (label, label + 1) if 0 < at < len(levels)]
        forms = _AT_LEAST
    else:
        return []
    form, criteria = rng.choice(forms), rng.choice(_YES_NO)
    made = []
    for name, is_so in pairs:
        text = str(shown[name]) if shown[name] and rng.random() < 0.5 else name.replace("_", " ")
        question: JSON = {
            "type": "noul",
            "instructions": form.format(question=asked["instructions"], name=text.rstrip(".")),
        }
        if criteria:
            question["criteria"] = criteria
        made.append(
            {**row, "id": f"{row['id']}-{'is' if is_so else 'not'}", "question": question, "label": is_so}
        )
    rng.shuffle(made)
    return made


def asked_of(task: str, row: JSON) -> list[JSON]:
    """Return a row and, if it is trained on, what follows from it; what measures stays as it was given."""
    return [row, *(derived(row) if part_of(task, row["state"]) == "train" else ())]


# ------------------------------------------------------------------------------------------ token ids

_LIMIT = 2**16


@dataclass(frozen=True)
class Frames:
    """Token ids of the frame texts of a words prompt. end: what follows an option that another one begins with."""

    option: Tokens
    level: Tokens
    following: Tokens
    colon: Tokens
    reply_option: Tokens
    reply_level: Tokens
    end: int


@dataclass(frozen=True)
class Row:
    """A labelled question in token ids. prefix: up to and with "Question:". options: name and description
    (empty if there is none) of each, in the order of the row."""

    id: str
    task: str
    part: str
    kind: str
    prefix: Tokens
    question: Tokens
    options: tuple[tuple[Tokens, Tokens], ...]
    gold: int

    def length(self, frames: Frames) -> int:
        """Return the tokens of its prompt."""
        return len(self.prompt(frames, range(len(self.options))))

    def prompt(self, frames: Frames, order: Sequence[int]) -> list[int]:
        """Return its prompt with the options in this order."""
        is_score = self.kind == "score"
        ids = [*self.prefix, *self.question]
        lead = frames.level if is_score else frames.option
        for at in order:
            name, description = self.options[at]
            ids += (*lead, *name)
            if description:
                ids += (*frames.colon, *description)
            lead = frames.following
        ids += frames.reply_level if is_score else frames.reply_option
        return ids


def gold_steps(options: Sequence[Tokens], gold: int, end: int) -> list[tuple[int, Tokens, int]] | None:
    """Return (depth, children, which child is right) for every branching point on the way to the right option,
    or None if another option is spelt the same.

    An option that another one begins with goes on with `end` there. The sum of the log-softmax over the
    children at these points is the option's log-probability.
    """
    ends = [(*option, end) for option in options]
    if ends.count(ends[gold]) > 1:
        return None
    steps: list[tuple[int, Tokens, int]] = []
    for depth in range(len(ends[gold])):
        here = [option for option in ends if option[:depth] == ends[gold][:depth] and len(option) > depth]
        children = tuple(dict.fromkeys(option[depth] for option in here))
        if len(children) > 1:
            steps.append((depth, children, children.index(ends[gold][depth])))
    return steps


@dataclass(frozen=True)
class Example:
    """What one forward pass reads. ids: prompt and the way to the right option as far as it branches. steps:
    (position whose logits count, children, which child is right). id: of its row."""

    ids: list[int]
    steps: list[tuple[int, Tokens, int]]
    task: str
    id: str = ""


def example(row: Row, frames: Frames, order: Sequence[int]) -> Example | None:
    """Return the example of a row with its options in this order, None if it cannot be answered."""
    names = [row.options[at][0] for at in order]
    gold = list(order).index(row.gold)
    steps = gold_steps(names, gold, frames.end)
    if not steps:
        return None
    ids = row.prompt(frames, order)
    way = names[gold][: steps[-1][0]]
    steps = [(len(ids) - 1 + depth, kids, right) for depth, kids, right in steps]
    return Example([*ids, *way], steps, row.task, row.id)


def order_of(row: Row, rng: random.Random, *, swap_noul: float) -> list[int]:
    """Return an order to show the options of a row in: a choice's shuffled, a score's as they are, yes before
    no except in this share of the rows."""
    order = list(range(len(row.options)))
    if row.kind == "choice":
        rng.shuffle(order)
    elif row.kind == "noul" and rng.random() < swap_noul:
        order.reverse()
    return order


class Tokenizer:
    """Turns rows into token ids with the model's own llama-server. Texts are collected and sent in large
    requests; a text that was seen is not sent again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._facts = facts_.learn(client)
        self._frames: dict[tuple[str, ...], prompt.Frame] = {}
        self._known: dict[prompt.Segment, Tokens] = {}
        self._cue = ""

    def _frame(self, request: requests.Request) -> tuple[prompt.Frame, requests.Request]:
        roles = prompt.roles(request.state)
        if roles not in self._frames:
            try:
                self._frames[roles], _ = facts_.frame_for(self._client, self._facts, request.state)
            except facts_.TemplateRefusal:
                if request.state.kind != "chat":
                    raise
                return self._frame(requests.Request(request.state.as_json(), request.questions))
        return self._frames[roles], request

    def segments(self, request: requests.Request) -> list[list[prompt.Segment]]:
        """Return the pieces of a request's one question: prefix, question, then name and description of each
        option; user text cut where openjev cuts it."""
        frame, request = self._frame(request)
        built = prompt.build(frame, request.state, request.questions, None, self._facts.markup)
        (suffix,) = built.suffixes
        if not self._cue:
            self._cue = frame.around[-1]
        if frame.around[-1] != self._cue:
            raise SystemExit("the chat template ends differently for different conversations")
        prefix = [piece for piece in built.prefix if isinstance(piece, prompt.Segment)]
        return [prefix, *pieces(suffix.segments)]

    def ids(self, wanted: Sequence[Sequence[prompt.Segment]]) -> list[Tokens]:
        """Return the token ids of each group of segments."""
        missing = list(dict.fromkeys(one for group in wanted for one in group if one not in self._known))
        for special in (True, False):
            texts = [one for one in missing if one.special == special]
            for at in range(0, len(texts), 512):
                some = texts[at : at + 512]
                read = facts_.tokenize(self._client, [one.text for one in some], special=special)
                self._known.update(zip(some, read, strict=True))
        return [tuple(i for one in group for i in self._known[one]) for group in wanted]

    def frames(self) -> Frames:
        """Return the token ids of the frame texts; rows must have been read before."""
        texts = (
            prompt.OPTIONS + prompt.BULLET,
            prompt.LEVELS + prompt.BULLET,
            "\n" + prompt.BULLET,
            ":",
            prompt.REPLY_OPTION_WORDS + self._cue + prompt.ANSWER_WORDS,
            prompt.REPLY_LEVEL_WORDS + self._cue + prompt.ANSWER_WORDS,
        )
        option, level, following, colon, reply_option, reply_level = self.ids(
            [[prompt.Segment(text, special=True)] for text in texts]
        )
        return Frames(option, level, following, colon, reply_option, reply_level, self._facts.end)


def pieces(suffix: Sequence[prompt.Segment]) -> list[list[prompt.Segment]]:
    """Return the user texts of a words suffix: the question's, then name and description of each option."""
    found: list[list[prompt.Segment]] = [[]]
    for segment in suffix[:-1]:
        if not segment.special:
            found[-1].append(segment)
        elif segment.text == ":":
            found.append([])
        else:
            # An option begins; the one before may have had no description.
            if len(found) % 2 == 0:
                found.append([])
            found.append([])
    return found if len(found) % 2 else [*found, []]


def tokenize_rows(
    folder: Path, client: Client, report: Callable[[str], None], tasks: Sequence[str] | None = None
) -> tuple[Frames, list[Row]]:
    """Return every row of the seen and the held-out tasks in token ids."""
    tokenizer = Tokenizer(client)
    held_out = held_out_keys(folder)
    found: list[Row] = []
    for task, path in files(folder).items():
        if (task not in HELD_OUT and task not in MIXTURE) or (tasks and task not in tasks):
            continue
        heads: list[tuple[str, str, str, int]] = []
        groups: list[list[prompt.Segment]] = []
        bounds = [0]
        skipped = 0
        for row in read_rows(path):
            if task not in HELD_OUT and state_key(row["state"]) in held_out:
                skipped += 1
                continue
            part = part_of(task, row["state"])
            for one in asked_of(task, row):
                request = question_of(one)
                (question,) = request.questions
                kind = type(question).__name__.lower()
                heads.append((str(one["id"]), part, kind, gold_of(one, question)))
                groups += tokenizer.segments(request)
                bounds.append(len(groups))
        ids = tokenizer.ids(groups)
        for head, begin, end in zip(heads, bounds[:-1], bounds[1:], strict=True):
            prefix, question_ids, *rest = ids[begin:end]
            options = tuple(zip(rest[::2], rest[1::2], strict=True))
            found.append(Row(head[0], task, head[1], head[2], prefix, question_ids, options, head[3]))
        report(f"{task}: {len(heads)} rows" + (f", {skipped} about held-out states" if skipped else ""))
    return tokenizer.frames(), found


def save(path: Path, frames: Frames, rows: Sequence[Row]) -> None:
    """Write rows to an .npz file."""
    parts: list[Tokens] = []
    heads: list[tuple[str, str, str, str, int, int]] = []
    for row in rows:
        heads.append((row.id, row.task, row.part, row.kind, row.gold, len(row.options)))
        parts += [row.prefix, row.question, *(ids for option in row.options for ids in option)]
    flat = np.fromiter((i for part in parts for i in part), dtype=np.int64)
    if flat.size and int(flat.max()) >= _LIMIT:
        raise SystemExit("token ids past 65,535 do not fit this file")
    path.parent.mkdir(parents=True, exist_ok=True)
    about = json.dumps({"frames": frames.__dict__, "rows": heads})
    np.savez(
        path,
        tokens=flat.astype(np.uint16),
        lengths=np.asarray([len(part) for part in parts], dtype=np.uint32),
        about=np.frombuffer(about.encode(), dtype=np.uint8),
    )


def load(path: Path, keep: Callable[[str, str], bool] = lambda task, part: True) -> tuple[Frames, list[Row]]:
    """Return what `save` wrote. keep: which (task, part) are wanted."""
    with np.load(path) as held:
        about = json.loads(held["about"].tobytes())
        tokens = held["tokens"]
        offsets = [0, *np.cumsum(held["lengths"], dtype=np.int64).tolist()]
    raw: JSON = about["frames"]
    held_frames: Any = {name: ids if name == "end" else tuple(ids) for name, ids in raw.items()}
    frames = Frames(**held_frames)
    rows: list[Row] = []
    part = 0
    for id_, task, which, kind, gold, n_options in about["rows"]:
        bounds = offsets[part : part + 3 + 2 * n_options]
        part += 2 + 2 * n_options
        if not keep(task, which):
            continue
        ids = [tuple(tokens[i:j].tolist()) for i, j in itertools.pairwise(bounds)]
        options = tuple(zip(ids[2::2], ids[3::2], strict=True))
        rows.append(Row(id_, task, which, kind, ids[0], ids[1], options, gold))
    return frames, rows


# ------------------------------------------------------------------------------------------ batches


def shared_prefix(examples: Sequence[Example]) -> int:
    """Return how many tokens all examples begin with, before any position whose logits count."""
    first = examples[0].ids
    limit = min(one.steps[0][0] for one in examples)
    for one in examples[1:]:
        limit = min(limit, len(one.ids))
        limit = next((at for at in range(limit) if one.ids[at] != first[at]), limit)
    return limit


def batches(examples: Sequence[Example], most_tokens: int) -> list[list[Example]]:
    """Return the examples in batches of about equal length, none of more than `most_tokens` with its padding
    (one that is longer alone has its own)."""
    # The first tokens come first: a chat that begins with a system message shares no opening with the others.
    ordered = sorted(examples, key=lambda one: (tuple(one.ids[:8]), len(one.ids)), reverse=True)
    found: list[list[Example]] = []
    current: list[Example] = []
    for one in ordered:
        longest = max(len(other.ids) for other in (*current, one))
        if current and longest * (len(current) + 1) > most_tokens:
            found.append(current)
            current = []
        current.append(one)
    return [*found, current] if current else found


_MOST_OF_A_STATE = 16


class Sampler:
    """An endless, repeatable stream of training batches in the proportions of a mixture.

    Rows of a task come in shuffled order, each once before any comes again; with a row come the others about the
    same state, in a batch of their own that reads the state once. A pool of batches is drawn, sorted by length so
    that little is padded, and given out in random order.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        frames: Frames,
        *,
        weights: Mapping[str, float],
        seed: int,
        most_tokens: int,
        pool_batches: int = 12,
        swap_noul: float = 0.1,
    ) -> None:
        self._rng = random.Random(f"readout-{seed}")
        self._frames = frames
        self._most_tokens = most_tokens
        self._pool_batches = pool_batches
        self._swap_noul = swap_noul
        groups: dict[tuple[str, Tokens], list[Row]] = {}
        for row in rows:
            if weights.get(row.task, 0.0) > 0.0:
                groups.setdefault((row.task, row.prefix), []).append(row)
        self._rows: dict[str, list[list[Row]]] = {}
        for (task, _), group in groups.items():
            # So many about one text are no questions about it: the text is nothing ("Which is right?").
            parts = [group] if len(group) <= _MOST_OF_A_STATE else [[row] for row in group]
            self._rows.setdefault(task, []).extend(parts)
        if not self._rows:
            raise SystemExit("no training rows")
        self._tasks = sorted(self._rows)
        self._weights = [weights[task] for task in self._tasks]
        self._left: dict[str, list[list[Row]]] = {task: [] for task in self._tasks}

    def _next(self, task: str) -> list[Row]:
        if not self._left[task]:
            self._left[task] = self._rng.sample(self._rows[task], len(self._rows[task]))
        return self._left[task].pop()

    def __iter__(self) -> Iterator[list[Example]]:
        while True:
            pool: list[Example] = []
            cut: list[list[Example]] = []
            tokens = 0
            while tokens < self._pool_batches * self._most_tokens:
                found = []
                for row in self._next(self._rng.choices(self._tasks, self._weights)[0]):
                    one = example(row, self._frames, order_of(row, self._rng, swap_noul=self._swap_noul))
                    if one is not None:
                        found.append(one)
                if len(found) > 1:
                    cut.append(found)
                else:
                    pool += found
                tokens += sum(len(one.ids) for one in found)
            cut += batches(pool, self._most_tokens)
            self._rng.shuffle(cut)
            yield from cut
