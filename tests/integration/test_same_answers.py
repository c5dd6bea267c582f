"""Every build and every path gives the same answers; user text is only ever text."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openjev_cli import prompt, questions, runtime, server
from openjev_cli import state as states
from openjev_cli.binary import find_binary
from openjev_cli.engine import facts
from openjev_cli.engine.client import Client
from openjev_cli.engine.facts import Facts
from openjev_cli.engine.stock import to_tokens
from tests.conftest import ROOT, Command

EXAMPLES = ROOT / "examples"
QUESTIONS = (
    "refund: Does the customer ask for a refund?",
    "team: Which team? [billing: Payments | technical: Bugs | sales | other]",
    "urgency: How urgent is it? [Routine < This week < Today < Blocked right now]",
    "spam: Is it spam? [yes: Unsolicited advertising | no: A real request]",
)
SWITCHES_OFF = {
    "OPENJEV_PRIME_SHARED_PREFIX": "false",
    "OPENJEV_PRIME_REPEATED_STATE": "false",
    "OPENJEV_TEMPLATE_CACHE": "false",
}


def decided(run: Any) -> dict[str, list[float]]:
    assert run.returncode == 0, run.stderr.decode()
    answers = json.loads(run.stdout)["answers"]
    return {
        name: [answer["noul"]] if answer["type"] == "noul" else list(answer["probabilities"].values())
        for name, answer in answers.items()
    }


def sixteen(openjev: Command, *options: str | Path, env: dict[str, str]) -> dict[str, list[float]]:
    """Two states, four questions together and each alone: 16 answers."""
    found: dict[str, list[float]] = {}
    for state in ("ticket.json", "policy.txt"):
        every = [word for question in QUESTIONS for word in ("-Q", question)]
        together = decided(openjev("ask", EXAMPLES / state, *every, *options, env=env))
        found.update({f"{state} together {name}": p for name, p in together.items()})
        for question in QUESTIONS:
            alone = decided(openjev("ask", EXAMPLES / state, "-Q", question, *options, env=env))
            found.update({f"{state} alone {name}": p for name, p in alone.items()})
    assert len(found) == 16
    return found


def largest_difference(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    assert list(one) == list(other)
    return max(abs(p - q) for name in one for p, q in zip(one[name], other[name], strict=True))


def decisions(answers: dict[str, list[float]]) -> dict[str, int]:
    return {
        name: int(p[0] >= 0.5) if len(p) == 1 else max(range(len(p)), key=p.__getitem__)
        for name, p in answers.items()
    }


@pytest.mark.parametrize("readout", ["letters", "words"])
@pytest.mark.parametrize("model", ["tiny_model", "tiny_hybrid"])
def test_patched_stock_and_uncached_give_the_same_answers(
    openjev: Command, stock_server: Path, model: str, readout: str, request: pytest.FixtureRequest
) -> None:
    """32 answers over both models for each readout; each build, and every caching switch off."""
    weights = request.getfixturevalue(model)
    way = ("--model", weights, "--readout", readout)
    stock = {"OPENJEV_LLAMA_SERVER": str(stock_server)}
    patched = sixteen(openjev, *way, env={})
    primed = sixteen(openjev, *way, env=stock)
    plain = sixteen(openjev, *way, "--no-cache", env={**stock, **SWITCHES_OFF})
    assert decisions(patched) == decisions(plain) == decisions(primed)
    to_primed, to_plain = largest_difference(patched, primed), largest_difference(patched, plain)
    print(
        f"{model}, {readout}: patched to stock {to_primed:.1e}, patched to stock with no caching {to_plain:.1e}"
    )
    assert max(to_primed, to_plain) <= 1e-5
    # Together and alone are the same answers too.
    names = [name for name in patched if " together " in name]
    together = {name: patched[name] for name in names}
    alone = {name: patched[name.replace(" together ", " alone ")] for name in names}
    assert largest_difference(together, alone) <= 1e-5


# --- user text is data

SPECIALS = ("<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|endoftext|>", "<__media__>")


@pytest.fixture(params=["tiny_model", "tiny_hybrid"])
def engine(
    llama_server: Path, runtime_dir: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Client, Facts]]:
    environ = {"XDG_RUNTIME_DIR": str(runtime_dir), "PATH": ""}
    weights = request.getfixturevalue(request.param)
    spec = server.Spec(find_binary(llama_server, tmp_path, environ), weights)
    running = server.ensure(spec, environ=environ)
    with Client(running.connect) as client:
        yield client, facts.learn(client)


def tokens_of(engine: tuple[Client, Facts], state: str, question: questions.Question) -> list[int]:
    client, known = engine
    frame, _ = facts.frame_for(client, known, states.from_text(state))
    built = prompt.build(frame, states.from_text(state), [question], known.labels, known.markup)
    tokens, _ = to_tokens(client, built, known)
    return [*tokens.prefix, *tokens.suffixes[0]]


def asked(text: str, option: str) -> questions.Choice:
    return questions.Choice("q", text, (questions.Option(option, option), questions.Option("other")))


@pytest.mark.parametrize("special", SPECIALS)
def test_special_tokens_in_user_text_change_nothing_but_their_own_text(
    engine: tuple[Client, Facts], special: str
) -> None:
    client, known = engine
    mark = "zqx"
    plain = tokens_of(engine, f"a {mark} b", asked(f"c {mark} d", f"e {mark} f"))
    dirty = tokens_of(engine, f"a {special} b", asked(f"c {special} d", f"e {special} f"))

    def pieces(word: str) -> list[list[int]]:
        texts = [f"a {word} b", f" c {word} d", f" e {word} f", f" e {word} f"]
        cut = [prompt.plain(prompt.Segment(text, special=False), known.markup) for text in texts]
        return [
            [i for ids in facts.tokenize(client, [one.text for one in parts], special=False) for i in ids]
            for parts in cut
        ]

    # Replace each user text of the plain prompt by that of the dirty one: nothing else differs.
    expected: list[int] = []
    rest = plain
    for before, after in zip(pieces(mark), pieces(special), strict=True):
        at = next(i for i in range(len(rest)) if rest[i : i + len(before)] == before)
        expected += rest[:at] + after
        rest = rest[at + len(before) :]
    assert dirty == expected + rest


@pytest.mark.parametrize("special", SPECIALS[:4])
def test_no_user_text_becomes_a_special_token(engine: tuple[Client, Facts], special: str) -> None:
    client, _ = engine
    (as_special,) = facts.tokenize(client, [special], special=True)
    frame_alone = tokens_of(engine, "x", asked("x", "x"))
    dirty = tokens_of(engine, special, asked(special, special))
    if len(as_special) == 1:
        assert dirty.count(as_special[0]) == frame_alone.count(as_special[0])


def test_exactly_one_bos_or_none(engine: tuple[Client, Facts]) -> None:
    client, known = engine
    ids = tokens_of(engine, "x", asked("x", "x"))
    reply = client.post("/tokenize", {"content": "x", "add_special": True})
    without = client.post("/tokenize", {"content": "x", "add_special": False})
    bos = reply["tokens"][: len(reply["tokens"]) - len(without["tokens"])]
    assert list(known.bos) == bos
    assert [i for i in ids if i in bos] == bos


def test_the_prompt_ends_with_the_models_own_answer_cue(engine: tuple[Client, Facts]) -> None:
    """Case F06: what the template itself writes behind a last user message, thinking off."""
    client, known = engine
    reply = client.post(
        "/apply-template",
        {
            "messages": [{"role": "user", "content": "zqx"}],
            "add_generation_prompt": True,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    )
    cue = reply["prompt"].partition("zqx")[2]
    frame, is_local = facts.frame_for(client, known, states.from_text("x"))
    assert is_local
    assert frame.around[-1] == cue


def test_a_stranger_on_the_socket_path_gets_nothing(
    llama_server: Path, tiny_hybrid: Path, runtime_dir: Path, tmp_path: Path
) -> None:
    """A process of ours that is not the recorded server: never trusted, nothing is sent to it."""
    environ = {"XDG_RUNTIME_DIR": str(runtime_dir), "PATH": ""}
    spec = server.Spec(find_binary(llama_server, tmp_path, environ), tiny_hybrid, n_ctx=4096)
    running = server.ensure(spec, environ=environ)
    aside = running.socket.with_suffix(".aside")
    running.socket.rename(aside)
    try:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.bind(str(running.socket))
            stranger.listen()
            running.close()
            with pytest.raises(runtime.NotOurs):
                running.connect()
            stranger.settimeout(5)
            connection, _ = stranger.accept()
            with connection:
                assert connection.recv(1) == b""
    finally:
        running.socket.unlink()
        aside.rename(running.socket)
        server.stop(running.key, environ=environ)
