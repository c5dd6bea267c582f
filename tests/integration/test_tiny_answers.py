"""What `tiny` says about support tickets: the shipped example and five written for this test.

No sentence of them is one that scripts/readout_tickets.py trains on. Bounds are generous: a model of 135M
parameters is right about plain things, not sure of them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.conftest import REAL_CACHE, ROOT, Command

JSON = dict[str, Any]


class Ticket(NamedTuple):
    """A state and the answers that make sense: P(yes) above or below a half, the options that will do."""

    state: str
    refund: bool
    teams: tuple[str, ...]
    urgencies: tuple[str, ...]
    churn: str


SOON = ("This week", "Today", "Blocked right now")
LATER = ("Routine", "This week")
TICKETS = {
    "charged twice": Ticket(
        (ROOT / "examples" / "ticket.json").read_text(encoding="utf-8"), True, ("billing",), SOON, "yes"
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
        SOON,
        "no",
    ),
    "a quote for more seats": Ticket(
        "Good afternoon,\n\nour studio is growing and from autumn on we would like twelve more seats and the"
        " larger plan. Could you send me an offer? There is no hurry at all.\n\nKind regards, Tomasz",
        False,
        ("sales",),
        LATER,
        "no",
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
        ("billing", "technical", "sales", "other"),
        ("Routine", *SOON),
        "yes",
    ),
    "broken headset": Ticket(
        "The headset I ordered came with a cracked band. I am not interested in a new one. Return the 59 euros"
        " to my credit card, please. I like your shop otherwise and will order again.",
        True,
        ("billing", "other"),
        ("Routine", *SOON),
        "no",
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
        ("other", "sales", "technical"),
        LATER,
        "no",
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


def chances(answers: JSON, ticket: Ticket) -> dict[str, float]:
    """Return for each question the probability of the answers that make sense."""
    levels = answers["urgency"]["legend"]
    urgency = {levels[level]: p for level, p in answers["urgency"]["probabilities"].items()}
    yes = answers["refund"]["noul"]
    return {
        "refund": yes if ticket.refund else 1.0 - yes,
        "team": sum(answers["team"]["probabilities"][team] for team in ticket.teams),
        "urgency": sum(urgency[level] for level in ticket.urgencies),
        "churn": answers["churn"]["noul"] if ticket.churn == "yes" else 1.0 - answers["churn"]["noul"],
    }


@pytest.mark.parametrize("name", TICKETS)
def test_tiny_answers_a_plain_ticket_sensibly(openjev: Command, name: str) -> None:
    found = chances(asked(openjev, name), TICKETS[name])
    assert {question: p for question, p in found.items() if p < 0.5} == {}
