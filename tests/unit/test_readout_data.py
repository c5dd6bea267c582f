"""What the readout is trained on and measured on: the split, the prompts, the loss, the batches, the adapter."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import math
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import readout_adapter
import readout_data as data
import readout_tickets
import train_readout

from openjev_cli import prompt, reading, words
from openjev_cli import state as states

FRAME = prompt.Frame(("<|user|>", "<|next|>", "<|assistant|>"))
FRAMES = data.Frames(
    option=(900,), level=(901,), following=(902,), colon=(903,), reply_option=(904,), reply_level=(905,), end=999
)  # fmt: skip


def wire(kind: str, criteria: Any, label: Any, state: Any = "The card was charged twice this month.") -> Any:
    question = {"type": kind, "instructions": "What is it?", "criteria": criteria}
    return json.loads(json.dumps({"id": f"{kind}-1", "state": state, "question": question, "label": label}))


# ------------------------------------------------------------------------------------------ the split


def test_every_task_has_one_use_at_most() -> None:
    assert not set(data.HELD_OUT) & set(data.MIXTURE)
    assert not set(data.DROPPED) & (set(data.MIXTURE) | set(data.HELD_OUT))
    assert len(data.HELD_OUT) >= 5


def test_the_split_stays_as_it_is() -> None:
    # A row that moves from one side to the other has been trained on: these must never change.
    text = [f"a text about number {n}" for n in range(400)]
    parts = Counter(data.part_of("emotion", one) for one in text)
    assert parts == {"train": 353, "test": 36, "validation": 11}
    assert [data.part_of("emotion", one) for one in text[3:6]] == ["train", "test", "train"]
    assert data.number_of("a text") == 6008937231813765456


def test_a_state_lies_on_one_side_whatever_wraps_it_and_in_every_task() -> None:
    text = "My card was charged twice, on the first and the third of March."
    wrapped: list[Any] = [
        text,
        text.upper(),
        {"id": "T-1", "message": text, "page": 3},
        [{"role": "assistant", "content": "How can I help?"}, {"role": "user", "content": text}],
        {"messages": [{"role": "user", "content": text}]},
    ]
    assert len({data.state_key(one) for one in wrapped}) == 1
    assert data.part_of("banking77", wrapped[0]) == data.part_of("clinc_domain", wrapped[2])


def test_states_of_short_values_are_told_apart_by_all_of_them() -> None:
    keys = {data.state_key(reading.parse_json(f'{{"a": "x", "b": {n}}}', name="")) for n in (1, 2)}
    assert keys == {"axb1", "axb2"}


def test_held_out_rows_are_never_trained_on() -> None:
    parts = {data.part_of("sms_spam", f"text {n}") for n in range(200)}
    assert parts == {"unseen", "unseen_validation"} == set(data.parts_of("sms_spam"))
    assert data.part_of("tool_choice", "anything") == "unused"


# ------------------------------------------------------------------------------------------ rows


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        (wire("noul", {"true": "It is", "false": "It is not"}, True), 0),
        (wire("noul", None, False), 1),
        (wire("choice", {"refund": "Money back", "bug": None, "other": None}, "other"), 2),
        (wire("score", ["Low", "Middle", "High"], 1), 1),
    ],
)
def test_a_row_becomes_the_prompt_that_openjev_sends(row: Any, gold: int) -> None:
    asked = data.question_of(row)
    (question,) = asked.questions
    assert data.gold_of(row, question) == gold
    (suffix,) = prompt.build(FRAME, asked.state, asked.questions, None).suffixes

    ids = {900: f"{prompt.OPTIONS}-", 901: f"{prompt.LEVELS}-", 902: "\n-", 903: ":"}
    cue = "<|assistant|>" + prompt.ANSWER_WORDS
    ids |= {904: prompt.REPLY_OPTION_WORDS + cue, 905: prompt.REPLY_LEVEL_WORDS + cue}
    texts = ["".join(piece.text for piece in group) for group in data.pieces(suffix.segments)]
    ids |= dict(enumerate(texts, start=1))
    numbered = [(at,) if text else () for at, text in enumerate(texts, start=1)]
    options = tuple(zip(numbered[1::2], numbered[2::2], strict=True))
    kind = type(question).__name__.lower()
    made = data.Row("1", "t", "train", kind, (), numbered[0], options, gold)
    sent = "".join(ids[one] for one in made.prompt(FRAMES, range(len(options))))
    assert sent == "".join(segment.text for segment in suffix.segments)
    named = [tuple(piece.text for piece in group) for group in suffix.options]
    assert [(ids[name[0]],) for name, _ in options] == named


@pytest.mark.parametrize(
    "row",
    [
        wire("noul", None, "yes"),
        wire("choice", {"a": None, "b": None}, "c"),
        wire("score", ["Low", "High"], 2),
    ],
)
def test_a_label_that_is_no_option_stops_everything(row: Any) -> None:
    (question,) = data.question_of(row).questions
    with pytest.raises(SystemExit, match="is no option of its question"):
        data.gold_of(row, question)


def test_files_of_rows_may_be_packed(tmp_path: Path) -> None:
    line = json.dumps(wire("score", ["Low", "High"], 1))
    (tmp_path / "plain.jsonl").write_text(line + "\n")
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as held:
        held.write(line + "\n")
    found = data.files(tmp_path)
    assert sorted(found) == ["packed", "plain"]
    for path in found.values():
        (row,) = data.read_rows(path)
        assert data.gold_of(row, data.question_of(row).questions[0]) == 1


def test_made_tickets_are_the_same_every_time_and_can_be_asked() -> None:
    made = list(readout_tickets.rows(50, 5))
    assert made == list(readout_tickets.rows(50, 5)) != list(readout_tickets.rows(50, 6))
    assert len({row["id"] for row in made}) == len(made) == 50 * readout_tickets.QUESTIONS_EACH
    assert {row["subset"] for row in made} == set(readout_tickets.TEMPLATES)
    assert not [row for row in made if "{" in json.dumps(row["state"]).replace('{"', "")]
    for row in data.read_rows(data.GENERATED):
        (question,) = data.question_of(row).questions
        data.gold_of(row, question)


# ------------------------------------------------------------------------------------------ derived questions


def test_a_choice_is_also_asked_as_yes_and_as_no() -> None:
    seen = set()
    for number in range(40):
        row = {
            **wire("choice", {"card_lost": None, "billing": "Payments and bills"}, "billing"),
            "id": f"{number}",
        }
        made = data.derived(row)
        assert {one["label"] for one in made} == {True, False}
        assert len({one["id"] for one in made}) == 2
        for one in made:
            (question,) = data.question_of(one).questions
            data.gold_of(one, question)
            named = [name for name in ("card lost", "billing", "Payments and bills") if name in question.text]
            assert len(named) == 1
            assert (named[0] != "card lost") == one["label"]
            assert one["state"] == row["state"]
            seen.add(named[0])
    assert seen == {"card lost", "billing", "Payments and bills"}


@pytest.mark.parametrize(
    ("label", "labels"), [(0, [False]), (1, [True, False]), (2, [True])], ids=["lowest", "middle", "highest"]
)
def test_a_score_is_also_asked_whether_it_reaches_a_level(label: int, labels: list[bool]) -> None:
    made = data.derived(wire("score", ["Low", "Mid", "High"], label))
    assert sorted((one["label"] for one in made), reverse=True) == labels
    for one in made:
        reached = ("Mid", "High")[label - 1 if one["label"] else label]
        assert reached in one["question"]["instructions"]


def test_nothing_follows_from_a_yes_no_question_or_from_a_lone_option() -> None:
    assert data.derived(wire("noul", {"true": "Yes", "false": "No"}, True)) == []
    assert data.derived(wire("choice", {"billing": None}, "billing")) == []


def test_only_rows_to_train_on_get_derived_ones() -> None:
    texts = [f"a text about number {n}" for n in range(60)]
    for text in texts:
        row = wire("choice", {"a": None, "b": None}, "a", state=text)
        part = data.part_of("emotion", text)
        assert len(data.asked_of("emotion", row)) == (3 if part == "train" else 1)
        assert data.asked_of("emotion", row)[0] == row
    assert len(data.asked_of("sms_spam", wire("choice", {"a": None, "b": None}, "a", state=texts[0]))) == 1


def a_row(number: int, *, task: str = "t", kind: str = "choice", length: int = 5) -> data.Row:
    options = tuple(((50 + at, 60 + number), ()) for at in range(3))
    return data.Row(
        f"{task}-{number}", task, "train", kind, (1, 2), tuple(range(3, 3 + length)), options, number % 3
    )


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [a_row(0), a_row(1, task="u", kind="score"), a_row(2, length=9)]
    data.save(tmp_path / "rows.npz", FRAMES, rows)
    assert data.load(tmp_path / "rows.npz") == (FRAMES, rows)
    assert data.load(tmp_path / "rows.npz", keep=lambda task, part: task == "u") == (FRAMES, [rows[1]])


# ------------------------------------------------------------------------------------------ the loss


def test_the_loss_is_the_readout_s_own_probability() -> None:
    rng = random.Random(7)
    for _ in range(200):
        spelt = {tuple(rng.choices((1, 2, 3), k=rng.randint(1, 4))) for _ in range(rng.randint(2, 9))}
        options = sorted(spelt, key=lambda _: rng.random())
        if len(options) < 2:
            continue
        # A model: any scores for what may follow any beginning.
        scores: dict[tuple[int, ...], dict[int, float]] = {}
        for option in options:
            for depth in range(len(option) + 1):
                scores.setdefault(option[:depth], {token: rng.gauss(0, 2) for token in (1, 2, 3, 99)})
        trie = words.build(options, 99)
        expected = words.log_probabilities(
            trie, [[scores[at.path][token] for token in at.tokens] for at in trie.branchings]
        )
        for gold, option in enumerate(options):
            steps = data.gold_steps(options, gold, 99)
            assert steps is not None
            found = 0.0
            for depth, children, right in steps:
                here = [scores[option[:depth]][token] for token in children]
                found += here[right] - math.log(sum(map(math.exp, here)))
            assert found == pytest.approx(expected[gold], abs=1e-9)


def test_an_option_that_another_begins_with_ends_there() -> None:
    assert data.gold_steps([(1, 2), (1,)], 1, 99) == [(1, (2, 99), 1)]


def test_options_spelt_the_same_have_no_right_one() -> None:
    assert data.gold_steps([(1,), (1,), (2,)], 0, 99) is None
    assert data.gold_steps([(1,), (1,), (2,)], 2, 99) is not None


def test_an_example_reads_the_right_option_as_far_as_it_branches() -> None:
    row = data.Row("1", "t", "train", "choice", (1,), (2,), (((5, 6), ()), ((5, 7, 8), (9,)), ((4,), ())), 1)
    one = data.example(row, FRAMES, [2, 1, 0])
    assert one is not None
    ids = [1, 2, 900, 4, 902, 5, 7, 8, 903, 9, 902, 5, 6, 904]
    assert one.ids == [*ids, 5]
    assert one.steps == [(13, (4, 5), 1), (14, (7, 6), 0)]


def test_only_choices_are_shuffled() -> None:
    rng = random.Random(1)
    orders = {
        kind: {tuple(data.order_of(a_row(n, kind=kind), rng, swap_noul=0.0)) for n in range(60)}
        for kind in ("choice", "noul", "score")
    }
    assert len(orders["choice"]) == 6
    assert orders["noul"] == orders["score"] == {(0, 1, 2)}


# ------------------------------------------------------------------------------------------ batches


def examples(count: int) -> list[data.Example]:
    rng = random.Random(3)
    found = []
    for number in range(count):
        row = a_row(number, length=rng.randint(1, 40))
        one = data.example(row, FRAMES, range(3))
        assert one is not None
        found.append(one)
    return found


def test_batches_hold_every_example_once_within_their_budget() -> None:
    some = examples(200)
    cut = data.batches(some, 300)
    assert sorted(one.id for batch in cut for one in batch) == sorted(one.id for one in some)
    sizes = [max(len(one.ids) for one in batch) * len(batch) for batch in cut]
    assert max(sizes) <= 300
    assert sum(len(one.ids) for one in some) / sum(sizes) > 0.9  # little of it is padding


def test_an_example_over_the_budget_has_its_own_batch() -> None:
    long, short = examples(2)
    assert [len(batch) for batch in data.batches([long, short], 3)] == [1, 1]


def test_what_a_batch_shares_ends_before_anything_counts() -> None:
    one, other = examples(2)
    shared = data.shared_prefix([one, other])
    assert one.ids[:shared] == other.ids[:shared]
    assert data.shared_prefix([one]) == one.steps[0][0]
    assert data.shared_prefix([one, one]) == one.steps[0][0]


def sampler(rows: list[data.Row], weights: dict[str, float], seed: int = 1) -> data.Sampler:
    return data.Sampler(rows, FRAMES, weights=weights, seed=seed, most_tokens=200)


def test_the_stream_of_batches_is_the_same_every_time_and_follows_the_weights() -> None:
    rows = [a_row(n, task=task) for task in ("a", "b", "c") for n in range(50)]
    weights = {"a": 3.0, "b": 1.0}

    def first(seed: int) -> list[list[str]]:
        return [[one.id for one in batch] for batch in itertools.islice(sampler(rows, weights, seed), 200)]

    assert first(1) == first(1) != first(2)
    drawn = Counter(id_.split("-")[0] for batch in first(1) for id_ in batch)
    assert set(drawn) == {"a", "b"}
    assert 2.5 < drawn["a"] / drawn["b"] < 3.6


def test_every_row_comes_once_before_any_comes_again() -> None:
    rows = [a_row(n) for n in range(30)]
    drawn = [one.id for batch in itertools.islice(sampler(rows, {"t": 1.0}), 60) for one in batch]
    counts = Counter(drawn)
    # Batches of a pool are given out in any order, so a row may be one pool ahead.
    assert len(counts) == 30
    assert max(counts.values()) - min(counts.values()) <= 6


def test_rows_about_one_state_come_together_in_a_batch_of_their_own() -> None:
    about = {n: tuple(range(100 + n, 130 + n)) for n in range(8)}
    rows = [dataclasses.replace(a_row(n, length=6), id=f"t-{n}", prefix=about[n // 4]) for n in range(32)] + [
        dataclasses.replace(a_row(n, task="u"), prefix=(7, n)) for n in range(20)
    ]
    cut = list(itertools.islice(sampler(rows, {"t": 1.0, "u": 1.0}), 40))
    together = [batch for batch in cut if batch[0].task == "t"]
    assert together
    for batch in together:
        assert len({int(one.id[2:]) // 4 for one in batch}) == 1
        assert len(batch) == 4
        assert data.shared_prefix(batch) >= 30  # the state is read once


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_rises_and_ends_at_nothing(schedule: str) -> None:
    shares = [train_readout.rate(n / 100, warmup=0.1, schedule=schedule) for n in range(101)]
    assert shares[10] == max(shares) == 1.0
    assert shares[:11] == sorted(shares[:11])
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[100] == pytest.approx(0.0, abs=1e-9)
    assert train_readout.rate(1.5, warmup=0.1, schedule=schedule) == pytest.approx(0.0, abs=1e-9)


def test_a_budget_ends_with_its_time_or_its_tokens() -> None:
    assert train_readout.spent(0.5, 900, None) == 0.5
    assert train_readout.spent(0.5, 900, 1000) == 0.9
    assert train_readout.spent(1.1, 900, 1000) == 1.1


def test_a_step_has_enough_rows() -> None:
    some = iter([examples(n) for n in (3, 3, 3, 9, 1)])
    taken = train_readout.steps(some, 8)
    assert [len(batch) for batch in next(taken)] == [3, 3, 3]
    assert [len(batch) for batch in next(taken)] == [9]


# ------------------------------------------------------------------------------------------ the adapter


def test_the_adapter_is_what_llama_cpp_reads(tmp_path: Path) -> None:
    path = tmp_path / "adapter.gguf"
    a, b = np.arange(32, dtype=np.float32).reshape(4, 8), np.ones((6, 4), dtype=np.float32)
    readout_adapter.write(
        path,
        {"blk.0.attn_q.weight": (a, b), "blk.1.ffn_down.weight": (a, b)},
        architecture="llama",
        alpha=32.0,
        name="n",
        description="d",
        license_="apache-2.0",
    )
    reader = gguf.GGUFReader(str(path))
    held = {key: field.contents() for key, field in reader.fields.items()}
    assert held["general.architecture"] == "llama"
    assert held["general.type"] == "adapter"
    assert held["adapter.type"] == "lora"
    assert held["adapter.lora.alpha"] == 32.0
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert sorted(tensors) == [
        f"blk.{n}.{at}.weight.lora_{part}" for n, at in ((0, "attn_q"), (1, "ffn_down")) for part in "ab"
    ]
    low = tensors["blk.0.attn_q.weight.lora_a"]
    # ne of ggml is the other way round: (in, rank) and (rank, out).
    assert list(low.shape) == [8, 4]
    assert list(tensors["blk.0.attn_q.weight.lora_b"].shape) == [4, 6]
    assert np.array_equal(np.asarray(low.data, dtype=np.float32), a)


def test_an_adapter_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pairs = {f"blk.{n}.attn_q.weight": (rng.random((4, 8)), rng.random((6, 4))) for n in range(2)}
    path = tmp_path / "adapter.gguf"
    readout_adapter.write(
        path, pairs, architecture="llama", alpha=8.0, name="n", description="d", license_="apache-2.0"
    )
    alpha, read = readout_adapter.read(path)
    assert alpha == 8.0
    assert sorted(read) == sorted(pairs)
    for name, pair in read.items():
        for mine, written in zip(pair, pairs[name], strict=True):
            assert mine.dtype == np.float32
            assert np.array_equal(mine, written.astype(np.float16).astype(np.float32))


def test_an_adapter_has_one_rank(tmp_path: Path) -> None:
    pair = (np.ones((4, 8)), np.ones((6, 3)))
    with pytest.raises(SystemExit, match="one rank"):
        readout_adapter.write(
            tmp_path / "a.gguf",
            {"x": pair},
            architecture="llama",
            alpha=1.0,
            name="",
            description="",
            license_="",
        )


def test_a_chat_is_asked_as_it_is() -> None:
    row = wire("noul", None, True, state=[{"role": "user", "content": "Hello, is anybody there?"}])
    assert data.question_of(row).state == states.from_value(
        [{"role": "user", "content": "Hello, is anybody there?"}]
    )
