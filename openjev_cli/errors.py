"""Every error a user can cause, with its exit code. Nothing here prints.

    OpenjevError(message, *, next_step)       never raised itself           exit
      InputError      question, state, image, flag or config value             2
      ModelError      model or projector missing, download, checksum           3
        SightError    a request with an image for a model that sees none       3
      ServerError     binary missing, would not start, died                    4
      EngineError     llama-server refused, timed out, or sent nonsense        5
        ReadoutError  the reply holds no usable label                          5
        ConnectionLost the connection closed before the first reply byte       5

`message` says what happened, with the value in it. `next_step` is a command, a flag or a path: what to
do now. An exception of any other class that reaches `__main__` is a bug in openjev (exit 70).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command; each means one thing. 141 (closed pipe) is left to the shell."""

    OK = 0
    VERDICT = 1
    INPUT = 2
    MODEL = 3
    SERVER = 4
    ENGINE = 5
    PARTIAL = 6
    UNSURE = 7
    BUG = 70
    INTERRUPTED = 130


# Most severe first: the code that wins when several apply.
SEVERITY: tuple[Exit, ...] = (
    Exit.BUG,
    Exit.INTERRUPTED,
    Exit.SERVER,
    Exit.MODEL,
    Exit.ENGINE,
    Exit.INPUT,
    Exit.PARTIAL,
    Exit.VERDICT,
    Exit.UNSURE,
    Exit.OK,
)


def most_severe(codes: Iterable[Exit]) -> Exit:
    """Return the one of several exit codes that the process ends with; OK for none."""
    return min(codes, key=SEVERITY.index, default=Exit.OK)


class OpenjevError(Exception):
    """Base of all errors a user can cause.

    message: one line, what happened. next_step: one line, what to do. problems: when one call found
    several faults, one line each (`message` is then the first of them); all are shown.
    """

    exit_code: Exit = Exit.BUG

    def __init__(self, message: str, *, next_step: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.problems: tuple[str, ...] = tuple(problems) or (message,)


class InputError(OpenjevError):
    """A question, state, image, flag or config value that cannot be used as it is."""

    exit_code = Exit.INPUT


class ModelError(OpenjevError):
    """A model file that is missing, could not be fetched, or is not what its checksum says."""

    exit_code = Exit.MODEL


class SightError(ModelError):
    """A request with an image, and a model that sees none. Requests without one are answered."""


class ServerError(OpenjevError):
    """llama-server is missing, would not start, or died. `log_tail`: its last lines, oldest first."""

    exit_code = Exit.SERVER

    def __init__(
        self,
        message: str,
        *,
        next_step: str,
        problems: Sequence[str] = (),
        log_tail: Sequence[str] = (),
    ) -> None:
        super().__init__(message, next_step=next_step, problems=problems)
        self.log_tail: tuple[str, ...] = tuple(log_tail)


class EngineError(OpenjevError):
    """llama-server refused a request, made no progress, or sent a reply that makes no sense."""

    exit_code = Exit.ENGINE


class ReadoutError(EngineError):
    """The reply does not hold a usable value for every label."""


class ConnectionLost(EngineError):
    """The connection closed before the first byte of a reply: safe to try once more."""


# What one request is to blame for, or the engine for at this one; with any other error the next one fails too.
OF_ONE_REQUEST = (InputError, SightError, EngineError)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean NAME?)` for the known name that is most like the word; "" when none is."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def collect(problems: Sequence[str], *, next_step: str) -> InputError:
    """Return one InputError that shows all `problems` (one line each, at least one)."""
    return InputError(problems[0], next_step=next_step, problems=problems)
