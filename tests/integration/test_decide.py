"""POST /decide of the patched engine: the same numbers however they are asked for, and no token read twice."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.decide_server import (
    TOLERANCE,
    Question,
    Server,
    UnixConnection,
    difference,
    request,
    some_questions,
    some_tokens,
    wait_for,
)

SLOTS = 8
CONTEXT = 2048
GRID = 512
N_VOCAB = 2304  # of the tiny hybrid


@pytest.fixture(scope="module")
def engine(llama_server: Path, tiny_hybrid: Path) -> Iterator[Server]:
    """One server for all tests here; the prompts are random, so that no test meets another's cache."""
    with Server(llama_server, tiny_hybrid, slots=SLOTS, context=CONTEXT) as server:
        yield server


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.nodeid)


def lone_results(engine: Server, prefix: list[int], questions: list[Question]) -> list[Any]:
    return [engine.lone(prefix, question) for question in questions]


# --- the numbers ---


@pytest.mark.parametrize("labels", [2, 26, 27, 255])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_batched_equals_single_equals_cold(
    engine: Server, rng: random.Random, count: int, labels: int
) -> None:
    prefix, questions = some_tokens(rng, 150), some_questions(rng, count, labels=labels)
    lone = lone_results(engine, prefix, questions)
    cold = engine.decide(prefix, questions, cache_prompt=False)
    first = engine.decide(prefix, questions)
    warm = engine.decide(prefix, questions)
    single = [engine.decide(prefix, [question])["results"][0] for question in questions]
    for results in (cold["results"], first["results"], warm["results"], single):
        assert difference(lone, results) <= TOLERANCE


def test_a_prefix_of_one_token_answers_alike_batched_and_alone(engine: Server, rng: random.Random) -> None:
    prefix, questions = some_tokens(rng, 1), some_questions(rng, 5)
    lone = lone_results(engine, prefix, questions)
    for cache_prompt in (False, True, True):
        results = engine.decide(prefix, questions, cache_prompt=cache_prompt)["results"]
        assert difference(lone, results) <= TOLERANCE


def test_64_questions_equal_the_lone_ones_in_any_order(engine: Server, rng: random.Random) -> None:
    prefix, questions = some_tokens(rng, 60), some_questions(rng, 64)
    lone = lone_results(engine, prefix, questions)
    assert difference(lone, engine.decide(prefix, questions)["results"]) <= TOLERANCE
    order = rng.sample(range(64), 64)
    shuffled = engine.decide(prefix, [questions[i] for i in order])["results"]
    assert difference([lone[i] for i in order], shuffled) <= TOLERANCE


def test_equal_questions_get_equal_answers(engine: Server, rng: random.Random) -> None:
    prefix, questions = some_tokens(rng, 100), some_questions(rng, 1)
    lone = engine.lone(prefix, questions[0])
    assert difference([lone] * 11, engine.decide(prefix, questions * 11)["results"]) <= TOLERANCE


def test_a_question_may_be_the_beginning_of_another(engine: Server, rng: random.Random) -> None:
    prefix, labels = some_tokens(rng, 90), [30, 40, 50]
    longest = some_tokens(rng, 40)
    questions = [(longest[:n], labels) for n in (1, 39, 40, 20)]
    lone = lone_results(engine, prefix, questions)
    for _ in range(2):
        assert difference(lone, engine.decide(prefix, questions)["results"]) <= TOLERANCE


def test_a_state_may_be_the_beginning_of_another(engine: Server, rng: random.Random) -> None:
    longest, questions = some_tokens(rng, 700), some_questions(rng, 3)
    lengths = [700, 300, 512, 513, 511, 1, 700, 300, 512]
    lone = {n: lone_results(engine, longest[:n], questions) for n in set(lengths)}
    for n in lengths:
        assert difference(lone[n], engine.decide(longest[:n], questions)["results"]) <= TOLERANCE, n


def test_states_that_differ_in_the_last_token_are_told_apart(engine: Server, rng: random.Random) -> None:
    shared, questions = some_tokens(rng, 200), some_questions(rng, 2)
    states = [[*shared, last] for last in (30, 31, 32)]
    lone = [lone_results(engine, state, questions) for state in states]
    assert difference(lone[0], lone[1]) > 1e-3
    for _ in range(2):
        for state, expected in zip(states, lone, strict=True):
            assert difference(expected, engine.decide(state, questions)["results"]) <= TOLERANCE


@pytest.mark.parametrize("count", [2, SLOTS + 3])
@pytest.mark.parametrize(
    ("shared", "fields"), [(GRID, {}), (200, {"checkpoints": [200]})], ids=["grid", "list"]
)
def test_states_that_part_at_a_checkpoint_are_told_apart(
    engine: Server, rng: random.Random, shared: int, fields: dict[str, object], count: int
) -> None:
    """One token further all of them have a checkpoint, each of its own state."""
    frame, questions = some_tokens(rng, shared), some_questions(rng, count, most=10)
    states = [[*frame, 30], [*frame, 31], *([*frame, 31, *some_tokens(rng, 40)] for _ in range(2))]
    cold = [engine.decide(state, questions, cache_prompt=False)["results"] for state in states]
    assert difference(cold[0], cold[1]) > 1e-3
    for i in (0, 1, 1, 2, 3, 0, 0, 3, 1):
        reply = engine.decide(states[i], questions, **fields)
        assert difference(cold[i], reply["results"]) <= TOLERANCE, i


def test_a_question_longer_than_a_turn_of_512_tokens(engine: Server, rng: random.Random) -> None:
    prefix = some_tokens(rng, 300)
    questions = [(some_tokens(rng, n), [30, 40]) for n in (1200, 5, 700, 900)]
    lone = lone_results(engine, prefix, questions)
    for _ in range(2):
        assert difference(lone, engine.decide(prefix, questions)["results"]) <= TOLERANCE


def test_the_dense_model_answers_alike_batched_and_alone(llama_server: Path, tiny_model: Path) -> None:
    """Lengths that leave a single token of a sequence in a batch, where another matrix kernel used to be taken."""
    with Server(llama_server, tiny_model, slots=4, context=512) as dense:
        for seed in range(3):
            rng = random.Random(seed)
            prefix = some_tokens(rng, 30)
            questions = [(some_tokens(rng, n), list(range(30, 60))) for n in (10, 9, 8, 7, 1, 2)]
            lone = lone_results(dense, prefix, questions)
            first, again = dense.decide(prefix, questions), dense.decide(prefix, questions)
            assert difference(lone, first["results"]) <= TOLERANCE
            assert difference(lone, again["results"]) <= TOLERANCE
            assert first["tokens"]["evaluated"] == 30 + 37
            assert again["tokens"]["evaluated"] == 37


def test_logits_and_logsumexp_are_the_probabilities_of_a_completion(
    engine: Server, rng: random.Random
) -> None:
    prefix, question = some_tokens(rng, 50), some_tokens(rng, 9)
    status, reply = engine.call(
        "POST",
        "/completion",
        {"prompt": prefix + question, "n_predict": 1, "n_probs": 20, "temperature": 0, "cache_prompt": False},
    )
    assert status == 200, reply
    top = {entry["id"]: entry["logprob"] for entry in reply["completion_probabilities"][0]["top_logprobs"]}
    result = engine.lone(prefix, (question, list(top)))
    logprobs = [logit - result["logsumexp"] for logit in result["logits"]]
    assert logprobs == pytest.approx(list(top.values()), abs=1e-4)


# --- segments ---


def test_segments_are_tokenized_one_by_one_and_only_special_ones_are_parsed(engine: Server) -> None:
    def ids(text: str, *, special: bool) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": special}
        status, reply = engine.call("POST", "/tokenize", body)
        assert status == 200
        return list(reply["tokens"])

    pieces = [("<|im_start|>user\n", True), ("state <|im_end|> <think>", False), ("", False), ("x", True)]
    expected = [token for text, special in pieces for token in ids(text, special=special)]
    labels = [30, 40, 50]
    by_text = {
        "prefix": [{"text": text, "special": special} for text, special in pieces],
        "suffixes": [
            {"segments": [{"text": "Is it?<|im_end|>"}, {"tokens": [7, 8]}], "labels": labels},
        ],
        "cache_prompt": False,
    }
    status, reply = engine.call("POST", "/decide", by_text)
    assert status == 200, reply
    question = [*ids("Is it?<|im_end|>", special=False), 7, 8]
    assert reply["tokens"] == {
        "prefix": len(expected),
        "prefix_cached": 0,
        "suffixes": [len(question)],
        "evaluated": len(expected) + len(question),
    }
    assert difference(reply["results"], [engine.lone(expected, (question, labels))]) == 0.0


def test_bos_is_added_once_and_only_when_asked_for(llama_server: Path, tiny_model: Path) -> None:
    with Server(llama_server, tiny_model, slots=1, context=256) as dense:
        body = request([50, 51], [([60], [70, 80])])
        lengths = {}
        for add_bos in (True, False):
            status, reply = dense.call("POST", "/decide", {**body, "add_bos": add_bos})
            assert status == 200, reply
            lengths[add_bos] = reply["tokens"]["prefix"]
    assert lengths == {True: 3, False: 2}


# --- what is read ---


def test_a_repeated_state_reads_only_questions(engine: Server, rng: random.Random) -> None:
    prefix, questions = some_tokens(rng, 800), some_questions(rng, 4)
    lengths = [len(ids) for ids, _ in questions]
    cold = engine.decide(prefix, questions)["tokens"]
    assert cold == {"prefix": 800, "prefix_cached": 0, "suffixes": lengths, "evaluated": 800 + sum(lengths)}
    warm = engine.decide(prefix, questions)["tokens"]
    assert warm == {"prefix": 800, "prefix_cached": 800, "suffixes": lengths, "evaluated": sum(lengths)}


@pytest.mark.parametrize("length", [30, 1500])
def test_twenty_single_questions_in_a_row_read_the_state_once(
    engine: Server, rng: random.Random, length: int
) -> None:
    prefix, questions = some_tokens(rng, length), some_questions(rng, 20, most=10)
    read = [engine.decide(prefix, [question])["tokens"]["evaluated"] for question in questions]
    lengths = [len(ids) for ids, _ in questions]
    assert read == [length + lengths[0], *lengths[1:]]


def test_64_questions_read_the_prefix_once(engine: Server, rng: random.Random) -> None:
    prefix, questions = some_tokens(rng, 600), some_questions(rng, 64, most=5)
    tokens = engine.decide(prefix, questions)["tokens"]
    assert tokens["evaluated"] == 600 + sum(tokens["suffixes"])


@pytest.mark.parametrize(("prefix", "questions", "batches"), [(400, 8, 2), (1100, 5, 4), (400, 20, 4)])
def test_parent_and_children_are_read_in_one_batch(
    engine: Server, rng: random.Random, prefix: int, questions: int, batches: int
) -> None:
    """Prefix batches of at most 512 tokens, then one batch for each wave of 8 questions."""
    before = engine.counter("n_decode_total")
    engine.decide(some_tokens(rng, prefix), some_questions(rng, questions))
    assert engine.counter("n_decode_total") - before == batches
    assert batches == math.ceil(prefix / GRID) + math.ceil(questions / SLOTS)


def test_no_cache_reads_and_keeps_nothing(engine: Server, rng: random.Random) -> None:
    prefix, questions = some_tokens(rng, 200), some_questions(rng, 1)
    everything = 200 + len(questions[0][0])
    engine.decide(prefix, questions)
    assert engine.decide(prefix, questions, cache_prompt=False)["tokens"]["evaluated"] == everything
    other = some_tokens(rng, 200)
    engine.decide(other, questions, cache_prompt=False)
    assert engine.decide(other, questions)["tokens"]["evaluated"] == everything


def test_an_edited_page_resumes_from_the_grid(engine: Server, rng: random.Random) -> None:
    page, questions = some_tokens(rng, 1600), some_questions(rng, 2)
    engine.decide(page, questions)
    edited = [*page[:1300], *some_tokens(rng, 300)]
    reply = engine.decide(edited, questions)
    assert reply["tokens"]["prefix_cached"] == 1024
    assert difference(lone_results(engine, edited, questions), reply["results"]) <= TOLERANCE
    # the page before the edit was not lost
    again = engine.decide(page, questions)
    assert again["tokens"]["prefix_cached"] == 1600


def test_requested_checkpoints_are_resumed_from(engine: Server, rng: random.Random) -> None:
    page, questions = some_tokens(rng, 1000), some_questions(rng, 2)
    engine.decide(page, questions, checkpoints=[700, 100])
    shorter = engine.decide([*page[:750], *some_tokens(rng, 20)], questions)
    assert shorter["tokens"]["prefix_cached"] == 700


# --- several states ---


def read_in_rounds(server: Server, rng: random.Random, *, states: int, questions: int, length: int) -> None:
    """Ask about several states in rotation; from the second round on only questions may be read."""
    frame = some_tokens(rng, 20)
    pages = [[*frame, *some_tokens(rng, length), *frame] for _ in range(states)]
    asked = [some_questions(rng, questions, most=12) for _ in pages]
    lone = [lone_results(server, page, asks) for page, asks in zip(pages, asked, strict=True)]
    for turn in range(3):
        for page, asks, expected in zip(pages, asked, lone, strict=True):
            reply = server.decide(page, asks)
            assert difference(expected, reply["results"]) <= TOLERANCE
            cached = reply["tokens"]["prefix_cached"]
            if turn == 0:
                assert cached < len(page)
            else:
                assert reply["tokens"]["evaluated"] == sum(reply["tokens"]["suffixes"])
                assert cached == len(page)


@pytest.mark.parametrize("questions", [1, 4, 12])
def test_states_in_rotation_are_read_once(engine: Server, rng: random.Random, questions: int) -> None:
    read_in_rounds(engine, rng, states=4, questions=questions, length=300)


@pytest.mark.parametrize("slots", [1, 3])
def test_states_in_rotation_are_read_once_with_few_slots(
    llama_server: Path, tiny_hybrid: Path, slots: int
) -> None:
    with Server(llama_server, tiny_hybrid, slots=slots, context=1024) as server:
        read_in_rounds(server, random.Random(slots), states=4, questions=4, length=600)
        read_in_rounds(server, random.Random(-slots), states=4, questions=1, length=10)


@pytest.mark.parametrize("extra", [["--cache-ram", "0"], ["--cache-ram", "1"], ["--ctx-checkpoints", "1"]])
def test_evictions_never_give_a_wrong_answer(llama_server: Path, tiny_hybrid: Path, extra: list[str]) -> None:
    rng = random.Random(str(extra))
    with Server(llama_server, tiny_hybrid, *extra, slots=2, context=1024) as server:
        shared = some_tokens(rng, 560)
        pages = [[*shared[: rng.randrange(560)], *some_tokens(rng, rng.randrange(1, 60))] for _ in range(6)]
        asked = [some_questions(rng, 3, most=12) for _ in pages]
        lone = [lone_results(server, page, asks) for page, asks in zip(pages, asked, strict=True)]
        for i in rng.choices(range(6), k=20):
            assert difference(lone[i], server.decide(pages[i], asked[i])["results"]) <= TOLERANCE


# --- refusals ---

GOOD: dict[str, Any] = request([30, 31, 32], [([40], [50, 60])])


def changed(**fields: object) -> dict[str, Any]:
    return {**GOOD, **fields}


def suffix(**fields: object) -> dict[str, Any]:
    return changed(suffixes=[{**GOOD["suffixes"][0], **fields}])


def options(found: object, end: int = 2) -> dict[str, Any]:
    return changed(suffixes=[{"segments": [{"tokens": [4]}], "options": found, "end": end}])


def many_branchings() -> list[list[dict[str, list[int]]]]:
    return [[{"tokens": [5] * i + [6]}] for i in range(255)]


REFUSED: list[tuple[object, str]] = [
    (b"", "body: is not JSON"),
    (b"{", "body: is not JSON"),
    (b'{"prefix": [{"text": "\xff"}]}', "body: is not JSON"),
    ([], "body: must be an object"),
    ({}, "prefix: is missing"),
    ({"prefix": GOOD["prefix"]}, "suffixes: is missing"),
    (changed(cache_promt=True), 'body: unknown field "cache_promt"'),
    (changed(prefix="x"), "prefix: must be an array"),
    (changed(prefix=[]), "prefix: must have at least one token"),
    (changed(prefix=[{"text": ""}]), "prefix: must have at least one token"),
    (changed(prefix=["x"]), "prefix[0]: must be an object"),
    (changed(prefix=[{}]), 'prefix[0]: must have exactly one of "text", "tokens" and "image"'),
    (changed(prefix=[{"text": "x", "tokens": [1]}]), 'prefix[0]: must have exactly one of "text"'),
    (changed(prefix=[{"text": 1}]), "prefix[0].text: must be a string"),
    (changed(prefix=[{"text": "x", "special": 1}]), "prefix[0].special: must be true or false"),
    (changed(prefix=[{"tokens": [1], "special": True}]), 'prefix[0].special: belongs to "text"'),
    (changed(prefix=[{"tokens": [1, -1]}]), "prefix[0].tokens[1]: must be in 0..2303"),
    (changed(prefix=[{"tokens": [N_VOCAB]}]), "prefix[0].tokens[0]: must be in 0..2303"),
    (changed(prefix=[{"tokens": [1.0]}]), "prefix[0].tokens[0]: must be an integer"),
    (changed(prefix=[{"tokens": [2**64]}]), "prefix[0].tokens[0]: must be an integer"),
    (changed(prefix=[{"tokens": [2**63]}]), "prefix[0].tokens[0]: must be in 0..2303"),
    (changed(prefix=[{"image": 0}]), "prefix[0].image: the request has no images"),
    (changed(images=["QQ=="]), "images: this server has no vision projector"),
    (changed(images={}), "images: must be an array"),
    (changed(suffixes=[]), "suffixes: must be 1..64 questions"),
    (changed(suffixes=GOOD["suffixes"] * 65), "suffixes: must be 1..64 questions"),
    (changed(suffixes=[1]), "suffixes[0]: must be an object"),
    (changed(suffixes=[{"labels": [1, 2]}]), "suffixes[0].segments: is missing"),
    (suffix(segments=[]), "suffixes[0].segments: must have at least one token"),
    (suffix(segments=[{"image": 0}]), "suffixes[0].segments[0].image: images belong in the prefix"),
    (suffix(labels=[1]), "suffixes[0].labels: must be 2..255 token ids"),
    (suffix(labels=list(range(256))), "suffixes[0].labels: must be 2..255 token ids"),
    (suffix(labels=[1, 2, 1]), "suffixes[0].labels[2]: is there twice"),
    (suffix(labels=[1, 10**8]), "suffixes[0].labels[1]: must be in 0..2303"),
    (suffix(labels=[1, -1]), "suffixes[0].labels[1]: must be in 0..2303"),
    (suffix(labels=[1, "2"]), "suffixes[0].labels[1]: must be an integer"),
    (suffix(labels=[1, None]), "suffixes[0].labels[1]: must be an integer"),
    (options([]), "suffixes[0].options: must be 2..255 options"),
    (options([[{"tokens": [5]}]] * 256), "suffixes[0].options: must be 2..255 options"),
    (options([[{"tokens": [5]}], 3]), "suffixes[0].options[1]: must be an array"),
    (options([[{"tokens": [5]}], []]), "suffixes[0].options[1]: must have at least one token"),
    (
        options([[{"tokens": [5]}], [{"tokens": [5]}]]),
        "suffixes[0].options[1]: has the same tokens as another",
    ),
    (options([[{"tokens": [5]}], [{"tokens": [6, 2]}]]), "suffixes[0].options[1]: has the end token in it"),
    (options([[{"tokens": [5]}], [{"image": 0}]]), "suffixes[0].options[1][0].image: images belong"),
    (options([[{"tokens": [5]}], [{"tokens": [6]}]], end=-1), "suffixes[0].end: must be in 0..2303"),
    (suffix(end=2), 'suffixes[0].end: belongs to "options"'),
    (suffix(options=[], end=2), 'suffixes[0]: must have one of "labels" and "options"'),
    (
        changed(suffixes=[{"segments": [{"tokens": [4]}], "options": [[{"tokens": [i]}] for i in (5, 6)]}]),
        "suffixes[0].end: is missing",
    ),
    (
        changed(suffixes=[{"segments": [{"tokens": [4]}], "options": many_branchings(), "end": 2}] * 5),
        "suffixes[4].options: part at too many points, at most 1024 in a request",
    ),
    (changed(add_bos=1), "add_bos: must be true or false"),
    (changed(cache_prompt=None), "cache_prompt: must be true or false"),
    (changed(checkpoints=[0]), "checkpoints[0]: must be in 1..3"),
    (changed(checkpoints=[4]), "checkpoints[0]: must be in 1..3"),
    (changed(checkpoints=3), "checkpoints: must be an array"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_bad_request_names_its_field(engine: Server, body: object, message: str) -> None:
    status, reply = engine.call("POST", "/decide", body)
    assert status == 400, reply
    assert reply["error"]["type"] == "invalid_request_error"
    assert reply["error"]["message"].startswith(message)


def test_a_state_that_does_not_fit_is_refused_with_both_numbers(engine: Server, rng: random.Random) -> None:
    question = some_questions(rng, 1)[0]
    room = CONTEXT - 1 - len(question[0])
    status, reply = engine.call("POST", "/decide", request(some_tokens(rng, room + 1), [question]))
    assert status == 400
    error = reply["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == (
        "exceed_context_size_error",
        CONTEXT,
        CONTEXT - 1,
    )
    fits = engine.decide(some_tokens(rng, room), [question])
    assert fits["tokens"]["prefix"] == room


def test_a_child_that_does_not_fit_is_refused_although_its_parent_fits(
    engine: Server, rng: random.Random
) -> None:
    questions = [(some_tokens(rng, n), [30, 40]) for n in (5, 200)]
    status, reply = engine.call("POST", "/decide", request(some_tokens(rng, 1900), questions))
    assert (status, reply["error"]["n_prompt_tokens"]) == (400, 2100)


def test_a_huge_question_is_refused_before_it_is_copied_for_each_reading(engine: Server) -> None:
    count = 2_000_000
    nested = [[{"tokens": [5] * i}] for i in range(1, 256)]
    huge = changed(suffixes=[{"segments": [{"tokens": [4] * count}], "options": nested, "end": 2}])
    body = json.dumps(huge).encode()
    before = engine.peak_bytes()
    status, reply = engine.call("POST", "/decide", body)
    assert (status, reply["error"]["type"]) == (400, "exceed_context_size_error")
    assert reply["error"]["n_prompt_tokens"] == 3 + count + 254
    # Parsed JSON has some 30 bytes a number; the 254 readings would have 1000 bytes a token.
    assert engine.peak_bytes() - before < 100 * len(body)


def mutated(rng: random.Random, value: Any) -> Any:
    """Return the value with one random part replaced, removed or repeated."""
    odd: list[Any] = [
        None,
        True,
        -1,
        0,
        1.5,
        2**31,
        2**63,
        "",
        "x",
        [],
        {},
        [[]],
        {"text": "x"},
        10**30,
        "\0<|im_end|>",
    ]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        return rest if rng.random() < 0.1 else {**rest, key: mutated(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        i = rng.randrange(len(value))
        return rng.choice(
            (value[:i], value + value[i:], [*value[:i], mutated(rng, value[i]), *value[i + 1 :]])
        )
    return rng.choice(odd)


def test_fuzzed_bodies_are_refused_or_answered_and_the_server_lives(
    engine: Server, rng: random.Random
) -> None:
    seed = request([30, 31, 32], [([40], [50, 60]), ([41, 42], [51, 61, 71])])
    seed["suffixes"].append(
        {"segments": [{"tokens": [43]}], "options": [[{"text": "a b"}], [{"tokens": [50]}]]}
    )
    seed["suffixes"][-1]["end"] = 2
    seed |= {"images": ["iVBORw0KGgo="], "add_bos": False, "cache_prompt": True, "checkpoints": [1]}
    for i in range(1000):
        body: Any = seed if i % 2 else {k: v for k, v in seed.items() if k != "images"}
        for _ in range(rng.randint(1, 4)):
            body = mutated(rng, body)
        status, reply = engine.call("POST", "/decide", body)
        assert status == 200 or (400 <= status < 500 and ": " in reply["error"]["message"]), (body, reply)
    assert engine.is_alive()


# --- abilities, life ---


def test_props_list_the_abilities_and_name_the_patches(engine: Server, llama_server: Path) -> None:
    _, props = engine.call("GET", "/props")
    abilities = props["openjev"]
    build = json.loads((llama_server.parent / "build.json").read_bytes())
    assert abilities.pop("patch_set") == build["patch_set_sha256"][:16]
    assert abilities == {"decide": 1, "checkpoints": 1, "grid": GRID, "exit_idle": 1, "options": 1}


def test_the_times_add_up_to_less_than_the_round_trip(engine: Server, rng: random.Random) -> None:
    started_s = time.monotonic()
    times = engine.decide(some_tokens(rng, 300), some_questions(rng, 10))["timings_ms"]
    passed_ms = (time.monotonic() - started_s) * 1000
    assert list(times) == ["queue", "tokenize", "encode", "prefix", "suffixes"]
    assert all(value >= 0 for value in times.values())
    assert times["prefix"] > 0
    assert 0.5 * passed_ms <= sum(times.values()) <= passed_ms


def test_an_idle_server_exits_and_a_polled_one_too(llama_server: Path, tiny_hybrid: Path) -> None:
    with Server(llama_server, tiny_hybrid, "--exit-idle-seconds", "1", slots=1, context=256) as server:
        server.decide([30, 31], [([40], [50, 60])])
        deadline_s = time.monotonic() + 15
        while server.child.poll() is None and time.monotonic() < deadline_s:
            try:
                server.call("GET", "/health")
                server.call("GET", "/props")
            except OSError:
                pass
            time.sleep(0.1)
        assert server.child.poll() == 0


@pytest.mark.parametrize("path", ["/completion", "/decide"])
def test_a_request_that_sigterm_cuts_off_gets_a_503(
    llama_server: Path, tiny_hybrid: Path, rng: random.Random, path: str
) -> None:
    bodies: dict[str, object] = {
        "/completion": {"prompt": some_tokens(rng, 30), "n_predict": 1900, "ignore_eos": True},
        "/decide": request(some_tokens(rng, 30), [(some_tokens(rng, 1900), [30, 40])] * 20),
    }
    with (
        Server(llama_server, tiny_hybrid, slots=1, context=CONTEXT) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(server.call, "POST", path, bodies[path])
        wait_for(lambda: server.processing() == 1)
        server.child.terminate()
        assert server.child.wait(20) == 0
        status, reply = asked.result()
    assert (status, reply["error"]["type"]) == (503, "unavailable_error")


def test_sigterm_during_a_stream_is_an_orderly_exit(
    llama_server: Path, tiny_hybrid: Path, rng: random.Random
) -> None:
    body = {"prompt": some_tokens(rng, 30), "n_predict": 1900, "ignore_eos": True, "stream": True}
    with Server(llama_server, tiny_hybrid, slots=1, context=CONTEXT) as server:
        connection = UnixConnection(server.path, 60)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert (reply.status, reply.readline()[:6]) == (200, b"data: ")
        server.child.terminate()
        assert server.child.wait(20) == 0
        connection.close()
