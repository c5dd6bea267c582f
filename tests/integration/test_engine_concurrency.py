"""Many clients of POST /decide at once: nobody gets another's answer, waits for ever, or is failed by another."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.decide_server import (
    TOLERANCE,
    Server,
    UnixConnection,
    difference,
    request,
    some_questions,
    some_tokens,
    wait_for,
)

SLOTS = 4
CONTEXT = 2048
SOAK_REQUESTS = int(os.environ.get("OPENJEV_SOAK_REQUESTS", "64"))


@pytest.fixture(scope="module")
def engine(llama_server: Path, tiny_hybrid: Path) -> Iterator[Server]:
    with Server(llama_server, tiny_hybrid, slots=SLOTS, context=CONTEXT) as server:
        yield server


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.nodeid)


@contextmanager
def competitors(count: int, work: Callable[[], object]) -> Iterator[list[float]]:
    """Do the work again and again in `count` threads; gives the list of when each was done."""
    done_s: list[float] = []
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            work()
            done_s.append(time.monotonic())

    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(run) for _ in range(count)]
        try:
            yield done_s
        finally:
            stopping.set()
            for one in running:
                one.result()


def resident_kb(server: Server) -> int:
    status = Path(f"/proc/{server.child.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_mixed_requests_get_their_own_answers_and_memory_stays_flat(
    engine: Server, rng: random.Random
) -> None:
    """OPENJEV_SOAK_REQUESTS=10000 for the long form, from 16 clients instead of 8."""
    frame = some_tokens(rng, 15)
    states = [[*frame, *some_tokens(rng, n)] for n in (1, 40, 300, 600, 300, 520)]
    questions = some_questions(rng, 8, most=12)
    lone = [[engine.lone(state, question) for question in questions] for state in states]

    def client(seed: int, rounds: int) -> float:
        own = random.Random(seed)
        largest = 0.0
        for _ in range(rounds):
            state = own.randrange(len(states))
            chosen = [own.randrange(len(questions)) for _ in range(own.choice((1, 2, 4, 9)))]
            reply = engine.decide(
                states[state], [questions[i] for i in chosen], cache_prompt=own.random() < 0.8
            )
            largest = max(largest, difference([lone[state][i] for i in chosen], reply["results"]))
        return largest

    clients = 16 if SOAK_REQUESTS > 1000 else 8
    resident = []
    for half in range(2):
        with ThreadPoolExecutor(clients) as pool:
            running = [
                pool.submit(client, half * clients + i, SOAK_REQUESTS // (2 * clients))
                for i in range(clients)
            ]
            assert max(one.result() for one in running) <= TOLERANCE
        resident.append(resident_kb(engine))
    assert resident[1] < 1.1 * resident[0]


def test_two_states_swapped_between_two_clients_200_times(engine: Server, rng: random.Random) -> None:
    states = [some_tokens(rng, 60) for _ in range(2)]
    question = some_questions(rng, 1, labels=5)[0]
    lone = [engine.lone(state, question) for state in states]

    def client(first: int) -> float:
        return max(
            difference([lone[i % 2]], engine.decide(states[i % 2], [question])["results"])
            for i in range(first, first + 100)
        )

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(client, range(2))) <= TOLERANCE


def test_a_prefix_taken_between_two_waves_is_read_again(engine: Server, rng: random.Random) -> None:
    """Other states go through all slots while 40 questions are answered in waves of 4."""
    state, questions = some_tokens(rng, 200), some_questions(rng, 40, most=8)
    lone = [engine.lone(state, question) for question in questions]
    others = [(some_tokens(rng, 100), some_questions(rng, 4, most=4)) for _ in range(8)]
    with competitors(2, lambda: engine.decide(*random.choice(others))):
        reply = engine.decide(state, questions)
    assert difference(lone, reply["results"]) <= TOLERANCE


def test_decisions_and_completions_share_the_server(engine: Server, rng: random.Random) -> None:
    prompt = {"prompt": some_tokens(rng, 30), "n_predict": 20, "temperature": 0, "ignore_eos": True}
    prompt |= {"cache_prompt": False, "return_tokens": True}
    alone = engine.call("POST", "/completion", prompt)[1]["tokens"]
    state, questions = some_tokens(rng, 100), some_questions(rng, 4)
    lone = [engine.lone(state, question) for question in questions]
    written: list[Any] = []
    with competitors(2, lambda: written.append(engine.call("POST", "/completion", prompt)[1]["tokens"])):
        for _ in range(5):
            reply = engine.decide(state, questions)
            assert difference(lone, reply["results"]) <= TOLERANCE
    assert written == [alone] * len(written)


def test_a_group_is_not_overtaken_by_single_questions(engine: Server, rng: random.Random) -> None:
    """It needs all slots at once, while six clients take single ones whenever one is free."""
    singles = [(some_tokens(rng, 200), some_questions(rng, 1)) for _ in range(12)]
    state, group = some_tokens(rng, 30), some_questions(rng, SLOTS, most=5)
    with competitors(6, lambda: engine.decide(*random.choice(singles))) as done_s:
        while len(done_s) < 12:
            time.sleep(0.01)
        for _ in range(5):
            asked_s = time.monotonic()
            engine.decide(state, group)
            answered_s = time.monotonic()
            overtook = sum(asked_s < at_s < answered_s for at_s in done_s)
            assert overtook <= 12  # six were there before; their clients may come back once while it is read


def completion(prompt: list[int], count: int, **fields: object) -> dict[str, object]:
    """Return the body of a completion of `count` tokens by slot 0."""
    fixed = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "id_slot": 0}
    return {"prompt": prompt, "n_predict": count, **fixed, **fields}


def test_a_completion_for_one_slot_behind_a_waiting_group_holds_up_nobody(
    engine: Server, rng: random.Random
) -> None:
    prompt, group = some_tokens(rng, 20), request(some_tokens(rng, 50), some_questions(rng, SLOTS))
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(engine.call, "POST", "/completion", completion(prompt, 1500))]
        wait_for(lambda: engine.processing() == 1)
        asked.append(pool.submit(engine.call, "POST", "/decide", group, 20))
        wait_for(lambda: engine.counter("requests_deferred") == 1)
        asked.append(pool.submit(engine.call, "POST", "/completion", completion(prompt, 2), 20))
        wait_for(lambda: engine.counter("requests_deferred") == 2)
        assert [one.result()[0] for one in asked] == [200] * 3


def test_a_slot_that_was_waited_for_to_be_saved_is_passed_on(
    llama_server: Path, tiny_hybrid: Path, rng: random.Random, tmp_path: Path
) -> None:
    prompt, save = some_tokens(rng, 20), ("/slots/0?action=save", {"filename": "saved"})
    extra = ("--slot-save-path", tmp_path)
    with (
        Server(llama_server, tiny_hybrid, *extra, slots=1, context=CONTEXT) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        asked = [pool.submit(server.call, "POST", "/completion", completion(prompt, 1500))]
        wait_for(lambda: server.processing() == 1)
        asked.append(pool.submit(server.call, "POST", *save, 20))
        wait_for(lambda: server.counter("requests_deferred") == 1)
        asked.append(pool.submit(server.call, "POST", "/completion", completion(prompt, 2, id_slot=-1), 20))
        wait_for(lambda: server.counter("requests_deferred") == 2)
        assert [one.result()[0] for one in asked] == [200] * 3


def test_a_completion_that_waits_for_a_slot_leaves_the_prompt_there_alone(
    engine: Server, rng: random.Random
) -> None:
    """Also one whose own prompt is in memory and could be put into the slot at once."""

    def logprobs(body: dict[str, object]) -> list[float]:
        status, reply = engine.call("POST", "/completion", body)
        assert status == 200, reply
        return [entry["logprob"] for entry in reply["completion_probabilities"]]

    short = completion(some_tokens(rng, 200), 1, n_probs=1)
    long = completion(some_tokens(rng, 40), 500, n_probs=1)
    alone = [logprobs(body) for body in (short, long)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(logprobs, long)
        wait_for(lambda: engine.processing() == 1)
        second = pool.submit(logprobs, short)
        assert second.result() == pytest.approx(alone[0], abs=1e-3)
        assert first.result() == pytest.approx(alone[1], abs=1e-3)


def test_a_request_that_is_too_long_fails_alone(engine: Server, rng: random.Random) -> None:
    state, questions = some_tokens(rng, 100), some_questions(rng, 3)
    lone = [engine.lone(state, question) for question in questions]
    too_long = request(some_tokens(rng, 3 * CONTEXT), questions)

    def refused() -> None:
        status, reply = engine.call("POST", "/decide", too_long)
        assert (status, reply["error"]["type"]) == (400, "exceed_context_size_error")

    with competitors(2, refused):
        for _ in range(10):
            reply = engine.decide(state, questions)
            assert difference(lone, reply["results"]) <= TOLERANCE


def send_and_leave(server: Server, body: dict[str, Any]) -> UnixConnection:
    connection = UnixConnection(server.path, 60)
    connection.request("POST", "/decide", json.dumps(body), {"Content-Type": "application/json"})
    return connection


def test_a_closed_connection_frees_its_slots_on_a_busy_server(
    llama_server: Path, tiny_hybrid: Path, rng: random.Random
) -> None:
    """Within 2 s, while results of others come in all the time: 1 s of polling and the turn that is under way."""
    small = (some_tokens(rng, 5), some_questions(rng, 1, most=3))
    long_questions = [(some_tokens(rng, 1500), [30, 40]) for _ in range(SLOTS - 1)]
    with Server(llama_server, tiny_hybrid, "-b", "512", slots=SLOTS, context=2048) as server:

        def long_ones() -> int:
            _, slots = server.call("GET", "/slots")
            return sum(slot["is_processing"] and slot.get("n_prompt_tokens", 0) > 10 for slot in slots)

        with competitors(1, lambda: server.decide(*small)):
            for _ in range(3):
                connection = send_and_leave(server, request(some_tokens(rng, 500), long_questions * 6))
                deadline_s = time.monotonic() + 30
                while long_ones() == 0:
                    assert time.monotonic() < deadline_s
                connection.close()
                closed_s = time.monotonic()
                while long_ones() > 0:
                    assert time.monotonic() < closed_s + 2.0


def test_a_batch_nobody_waits_for_is_given_up(
    llama_server: Path, tiny_hybrid: Path, rng: random.Random
) -> None:
    state, questions = some_tokens(rng, 300), some_questions(rng, 2)
    long_ones = [(some_tokens(rng, 1700), [30, 40]) for _ in range(64)]
    with Server(llama_server, tiny_hybrid, slots=SLOTS, context=2048) as server:
        lone = [server.lone(state, question) for question in questions]
        # A quick machine may be between two batches when the server looks for its clients: then there is none to
        # give up, and the next try has another.
        for _ in range(10):
            connection = send_and_leave(server, request(state, long_ones))
            while server.processing() < SLOTS:
                time.sleep(0.01)
            connection.close()
            answered = server.decide(state, questions)
            assert difference(lone, answered["results"]) <= TOLERANCE
            if "decode aborted, nobody waits for it" in server.log.read_text(errors="replace"):
                return
        pytest.fail("no batch was given up in ten tries")


def test_a_batch_that_is_given_up_leaves_the_states_of_others_alone(
    llama_server: Path, tiny_hybrid: Path, rng: random.Random, tmp_path: Path
) -> None:
    """The server looks for its clients once a second; it is stopped meanwhile, each time further into the batch."""
    rounds, slots = 20, 8
    question = some_questions(rng, 1, labels=5)[0]
    unwanted = request(some_tokens(rng, 20), [(some_tokens(rng, 250), [30, 40])] * 7, cache_prompt=False)
    extra = ("-ub", "2048", "--slot-save-path", tmp_path)
    with Server(llama_server, tiny_hybrid, *extra, slots=slots, context=1024) as server:

        def erase(slot: int) -> None:
            status, reply = server.call("POST", f"/slots/{slot}?action=erase")
            assert status == 200, reply

        began_s = time.monotonic()
        assert server.call("POST", "/decide", unwanted)[0] == 200
        lasts_s = time.monotonic() - began_s
        for turn in range(rounds):
            state = some_tokens(rng, 60)
            lone = server.lone(state, question)
            for _ in range(turn % 4):  # the slots fill a batch in another order each turn
                server.lone(some_tokens(rng, 5), question)
            # The first place in memory is free again when the state has its own, and no two others lie together.
            server.call("POST", "/completion", completion(some_tokens(rng, 20), 1, id_slot=slots - 1))
            server.decide(state, [question])
            erase(slots - 1)

            connection = send_and_leave(server, unwanted)
            sent_s, cut_s = time.monotonic(), lasts_s * (turn + 0.5) / rounds
            time.sleep(cut_s)
            server.child.send_signal(signal.SIGSTOP)
            connection.close()
            time.sleep(max(0.0, sent_s + math.ceil(cut_s) + 0.1 - time.monotonic()))
            server.child.send_signal(signal.SIGCONT)
            wait_for(lambda: server.processing() == 0)

            reply = server.decide(state, [question])
            assert difference([lone], reply["results"]) <= TOLERANCE, turn
            assert reply["tokens"]["prefix_cached"] == len(state)
            for slot in range(slots):
                erase(slot)
        given_up = server.log.read_text(errors="replace").count("decode aborted, nobody waits for it")
        assert given_up >= rounds // 4


@pytest.mark.parametrize("cut", ["connected", "headers", "half a body", "whole body", "reading", "replied"])
def test_a_connection_cut_in_any_phase_harms_nobody(engine: Server, rng: random.Random, cut: str) -> None:
    state, questions = some_tokens(rng, 560), some_questions(rng, 5)
    lone = [engine.lone(state, question) for question in questions]
    body = json.dumps(request(state, questions)).encode()
    head = f"POST /decide HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    sent = {"connected": b"", "headers": head, "half a body": head + body[: len(body) // 2]}
    for i in range(3):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(engine.path))
            client.sendall(sent.get(cut, head + body))
            if cut == "reading":  # somewhere in the prefix or in a wave
                deadline_s = time.monotonic() + 0.05 * (i + 1)
                while engine.processing() > 0 and time.monotonic() < deadline_s:
                    pass
            if cut == "replied":
                client.recv(100)
        reply = engine.decide(state, questions)
        assert difference(lone, reply["results"]) <= TOLERANCE
    assert engine.is_alive()
