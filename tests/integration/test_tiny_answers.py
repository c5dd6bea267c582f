"""What `tiny` says about support tickets: the shipped example and five written for this test.

No sentence of them is one that scripts/readout_tickets.py trains on. Bounds are generous: a model of 135M parameters
is asked for the right side of a yes/no question, a team that makes sense, and no more than about where on the scale.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.conftest import REAL_CACHE, ROOT, Command

JSON = dict[str, Any]


class Ticket(NamedTuple):
    """A state, and what makes sense about it. urgency: the levels, lowest 0, that do."""

    state: str
    refund: bool
    teams: tuple[str, ...]
    urgency: tuple[int, ...]
    churn: bool


TICKETS = {
    "charged twice": Ticket(
        (ROOT / "examples" / "ticket.json").read_text(encoding="utf-8"), True, ("billing",), (1, 2), True
    ),
    "nobody can sign in": Ticket(
        json.dumps(
            {
                "from": "Reception, Harbour Dental",
                "subject": "Login broken for everybody",
                "body": "Since half past seven this morning the sign-in screen stays white for every one of"
                " us, on all computers. Patients are waiting and we cannot open a single record. Please fix"
                " this immediately.",
            }
        ),
        False,
        ("technical",),
        (2, 3),
        False,
    ),
    "a quote for more seats": Ticket(
        "Good afternoon,\n\nour studio is growing and from autumn on we would like twelve more seats and the"
        " larger plan. Could you send me an offer? There is no hurry at all.\n\nKind regards, Tomasz",
        False,
        ("sales",),
        (0, 1),
        False,
    ),
    "moving to a competitor": Ticket(
        json.dumps(
            {
                "id": 77120,
                "channel": "chat",
                "message": "We have had enough. Our contract will not be renewed, we have already signed with"
                " another provider and our data moves there at the end of the month.",
            }
        ),
        False,
        ("billing", "sales", "other"),
        (0, 1, 2),
        True,
    ),
    "broken headset": Ticket(
        "The headset I ordered came with a cracked band. I am not interested in a new one. Return the 59 euros"
        " to my credit card, please. I like your shop otherwise and will order again.",
        True,
        ("billing", "other"),
        (0, 1),
        False,
    ),
    "thanks for the course": Ticket(
        json.dumps(
            {
                "subject": "Thank you!",
                "body": "Yesterday's training was lovely, all of my colleagues learned a lot. Nothing to do"
                " for you, I only wanted to say so.",
            }
        ),
        False,
        ("other", "sales"),
        (0, 1),
        False,
    ),
}


def asked(openjev: Command, name: str) -> JSON:
    done = openjev(
        "ask",
        "-",
        "-q",
        ROOT / "examples" / "questions.txt",
        "-p",
        "tiny",
        "-f",
        "json",
        stdin=TICKETS[name].state,
        env={"OPENJEV_CACHE_DIR": str(REAL_CACHE)},
    )
    assert done.returncode == 0, done.stderr.decode()
    answers: JSON = json.loads(done.stdout)["answers"]
    return answers


@pytest.mark.parametrize("name", TICKETS)
def test_tiny_answers_all_four_questions_about_a_plain_ticket_sensibly(openjev: Command, name: str) -> None:
    ticket, found = TICKETS[name], asked(openjev, name)
    sides = {"refund": ticket.refund, "churn": ticket.churn}
    right = {key: found[key]["noul"] if yes else 1.0 - found[key]["noul"] for key, yes in sides.items()}
    assert min(right.values()) > 0.45, right
    team = found["team"]
    assert team["choice"] in ticket.teams
    assert sum(team["probabilities"][one] for one in ticket.teams) > 0.5
    levels = found["urgency"]["probabilities"]
    assert sum(levels[str(at)] for at in ticket.urgency) > 0.45, levels


def test_tiny_answers_by_words_with_its_adapter(openjev: Command) -> None:
    done = openjev(
        "ask", "--text", "x", "-Q", "Is it?", "-p", "tiny", env={"OPENJEV_CACHE_DIR": str(REAL_CACHE)}
    )
    assert json.loads(done.stdout)["model"] == "SmolLM2-135M-Instruct-Q4_1+words-2"
