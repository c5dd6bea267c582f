"""What a stock engine reads again when questions and states repeat, by its own counts."""

from __future__ import annotations

from pathlib import Path

from openjev_cli import prompt, questions, server
from openjev_cli import state as states
from openjev_cli.binary import find_binary
from openjev_cli.engine import facts as facts_
from openjev_cli.engine.client import Client
from openjev_cli.engine.protocol import Caching
from openjev_cli.engine.stock import Stock, to_tokens

ASKED = questions.load(
    [questions.inline(f"{word} the state say so? [a | b | c]") for word in ("Does", "Will", "Does", "Should")]
)


def test_every_new_state_of_a_hybrid_is_read_once_for_all_its_questions(
    llama_server: Path, tiny_hybrid: Path, runtime_dir: Path, tmp_path: Path
) -> None:
    environ = {"XDG_RUNTIME_DIR": str(runtime_dir), "PATH": ""}
    running = server.ensure(
        server.Spec(find_binary(llama_server, tmp_path, environ), tiny_hybrid), environ=environ
    )
    with Client(running.connect) as client:
        known = facts_.learn(client)
        for number in range(3):
            state = states.from_text(f"{number} is the number of this state, which has some length. " * 5)
            frame, _ = facts_.frame_for(client, known, state)
            asked = prompt.build(frame, state, ASKED, known.labels)
            tokens, _ = to_tokens(client, asked, known)
            evaluation, known = Stock(client).evaluate(asked, known, Caching(), None)
            assert [reading.cached >= len(tokens.prefix) for reading in evaluation.readings] == [True] * 4
            assert known.can_cut is False
