"""Calibration: what turns a model's scores into probabilities that come true as often as they say.

A calibration holds, for each type of question, a temperature (Guo et al. 2017, section 4.2), and where they were
asked for and helped, a bias for each label position (A, B, C, ...) and a prior of yes against no. It is fitted
on labelled rows, kept only where rows that were held out became more likely, and bound to what it was made for:
model, adapter, readout and wording. Here are the fits, the file, and how it is applied; rows are read by
`labelled` and asked by the command.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from openjev_cli import config, errors, questions, reading, record

VERSION = 1
Type: TypeAlias = Literal["noul", "choice", "score"]
# One row in three is held out: enough to judge one number, and most are left to fit it.
HELD_OUT = 3
# Fewer rows of a type than this say nothing about it.
LEAST_FITTED, LEAST_HELD_OUT = 10, 5

# Where a temperature is looked for. Readouts that sum over the tokens of an option have scores of tens of nats.
_LOG_T = (math.log(0.02), math.log(50.0))
_LOG_T_WITHIN = 1e-4
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
# Normal priors on log T and on each bias, in nats. Hundreds of rows drown them; but when thirty rows are all right
# the likeliest temperature is 0, which would make the first wrong answer a certain one.
_LOG_T_SIGMA = 1.0
_BIAS_SIGMA = 1.0
_BIAS_WITHIN = 1e-4
_BIAS_STEPS = 50
_ROUNDS = 4
# A gain on the held-out rows that is smaller is rounding, in nats a row.
_LEAST_GAIN = 1e-6


# The rows of this module are named tuples: a dataclass takes a millisecond to define, and answers wait for it.
class MadeFor(NamedTuple):
    """What a calibration belongs to. model: its name, for people; all the others must be the same."""

    model: str
    model_sha256: str | None
    adapter_sha256: str | None
    readout: str
    wording: str

    @property
    def key(self) -> str:
        """What must be the same, as 8 hex digits: part of the name of a stored file."""
        return record.digest(json.dumps(self[1:]))[:8]

    def differences(self, now: MadeFor) -> tuple[str, ...]:
        """Return what is another one now, in words; nothing when the calibration applies."""
        names = {"model_sha256": "model", "adapter_sha256": "adapter"}
        found = [names.get(key, key) for key in self._fields[1:] if getattr(self, key) != getattr(now, key)]
        if now.model_sha256 is None and "model" not in found:
            found.insert(0, "model")  # an unknown one is never the same
        return tuple(found)


class Fit(NamedTuple):
    """What is done to the scores of one type of question: divided by `temperature`, then `positions` (by label,
    A first; 0 for further ones) and `prior` (by option: yes, no) subtracted; biases in nats."""

    temperature: float = 1.0
    positions: tuple[float, ...] = ()
    prior: tuple[float, ...] = ()

    def adjust(self, scores: Sequence[float], places: Sequence[int]) -> tuple[float, ...]:
        """Return the scores, calibrated. scores: natural logs in label order. places: which option each label
        stands for."""
        # Fits call this a million times: nothing is done for biases that are not there.
        adjusted = [score / self.temperature for score in scores]
        for label, bias in enumerate(self.positions[: len(adjusted)]):
            adjusted[label] -= bias
        if self.prior:
            for label, place in enumerate(places):
                adjusted[label] -= self.prior[place] if place < len(self.prior) else 0.0
        return tuple(adjusted)


class Calibration(NamedTuple):
    """A calibration as it is stored. name: the file's, with a digest of what it does, so that another one is
    seen to be another one. fits: by type of question. facts: how it was made, for people."""

    name: str
    made_for: MadeFor
    fits: Mapping[Type, Fit]
    facts: Mapping[str, Any] = MappingProxyType({})

    def fit_of(self, question: questions.Question) -> Fit | None:
        """Return what is done to the scores of a question, or None for nothing."""
        return self.fits.get(kind_of(question))

    def touches(self, asked: Sequence[questions.Question]) -> bool:
        """Return whether it changes the answer to any of these questions."""
        return any(self.fit_of(question) is not None for question in asked)


def kind_of(question: questions.Question) -> Type:
    """Return the type of a question as the wire names it."""
    if isinstance(question, questions.Noul):
        return "noul"
    return "choice" if isinstance(question, questions.Choice) else "score"


def is_held_out(id: str) -> bool:
    """Return whether a row is kept for judging, by its id alone: the same in every run and every order."""
    return int(record.digest(id), 16) % HELD_OUT == 0


# ------------------------------------------------------------------------------------------------- fitting


class Scored(NamedTuple):
    """A labelled row, asked: the scores of its options as the model gave them, and the place of the right one."""

    scores: tuple[float, ...]
    label: int


class Trial(NamedTuple):
    """Something that was tried. what: "temperature", "label prior" or "position bias". before, after: NLL of the
    held-out rows without it and with it."""

    what: str
    before: float
    after: float

    @property
    def is_kept(self) -> bool:
        """Whether it made the held-out rows more likely."""
        return self.after < self.before - _LEAST_GAIN


class Fitted(NamedTuple):
    """What was found for one type of question. fit: what is kept; the identity when nothing is. reason: why
    nothing was tried, or ""."""

    fit: Fit
    trials: tuple[Trial, ...] = ()
    reason: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether there is anything to apply."""
        return self.fit != Fit()


def fit(
    kind: Type,
    rows: Sequence[Scored],
    held_out: Sequence[Scored],
    *,
    label_prior: bool = False,
    position_bias: bool = False,
) -> Fitted:
    """Return what improves the held-out rows of one type of question, out of what fits the others.

    label_prior: also try one of yes against no (noul only). position_bias: also try one for each label (choice
    only: a yes is always A, and a rubric's place is its level, so there it would be a prior by another name).
    """
    if len(rows) < LEAST_FITTED or len(held_out) < LEAST_HELD_OUT:
        wanted = f"{LEAST_FITTED} and {LEAST_HELD_OUT} are needed"
        reason = f"{len(rows)} rows to fit and {len(held_out)} held out: {wanted}"
        return Fitted(Fit(), reason=reason)
    found = Fit()
    reached = nll(held_out, found)
    trials: list[Trial] = []
    tried: list[tuple[str, Callable[[Fit], Fit]]] = [("temperature", lambda one: with_temperature(rows, one))]
    if label_prior and kind == "noul":
        tried.append(("label prior", lambda one: _with_biases(rows, one, "prior")))
    if position_bias and kind == "choice":
        tried.append(("position bias", lambda one: _with_biases(rows, one, "positions")))
    for what, fitted in tried:
        candidate = fitted(found)
        trial = Trial(what, reached, nll(held_out, candidate))
        trials.append(trial)
        if trial.is_kept:
            found, reached = candidate, trial.after
    return Fitted(found, tuple(trials))


class Merged(NamedTuple):
    """What is to be stored. carried: types whose stored fit stays as it was. removed: types whose stored fit is
    dropped."""

    fits: Mapping[Type, Fit]
    carried: tuple[Type, ...]
    removed: tuple[Type, ...]


def merge(before: Mapping[Type, Fit], now: Mapping[Type, Fitted]) -> Merged:
    """Return what was found now with what was stored for the same before: that of types which were not tried is
    carried over, that of types for which nothing helps any more is removed."""
    tried = {kind for kind, one in now.items() if not one.reason}
    carried = {kind: held for kind, held in before.items() if kind not in tried}
    kept = {kind: one.fit for kind, one in now.items() if one.is_kept}
    removed = tuple(kind for kind in before if kind in tried and kind not in kept)
    return Merged({**carried, **kept}, tuple(carried), removed)


def nll(rows: Sequence[Scored], fit: Fit) -> float:
    """Return the mean negative log-likelihood of the right options, nats a row, each at most -log(1e-12)."""
    return math.fsum(_nll_of(row, fit) for row in rows) / len(rows)


_MOST_NLL = -math.log(1e-12)  # metrics.LEAST_P; a warm answer would wait for that module


def _nll_of(row: Scored, fit: Fit) -> float:
    adjusted = fit.adjust(row.scores, range(len(row.scores)))
    top = max(adjusted)
    total = math.log(sum([math.exp(one - top) for one in adjusted]))
    return min(_MOST_NLL, top + total - adjusted[row.label])


def with_temperature(rows: Sequence[Scored], fit: Fit) -> Fit:
    """Return the fit with the temperature that makes the rows most likely under a normal prior, to 0.01 %.

    Golden-section search on log T: the NLL is convex in 1/T (a log-sum-exp of linear functions), so it has one
    valley on log T too. Each step reads every row once.
    """

    def at(log_t: float) -> float:
        prior = (log_t / _LOG_T_SIGMA) ** 2 / 2.0
        return nll(rows, fit._replace(temperature=math.exp(log_t))) + prior / len(rows)

    low, high = _LOG_T
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = at(left), at(right)
    while high - low > _LOG_T_WITHIN:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = at(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = at(right)
    return fit._replace(temperature=math.exp((low + high) / 2.0))


def _with_biases(rows: Sequence[Scored], found: Fit, which: Literal["positions", "prior"]) -> Fit:
    """Return the fit with the biases that make the rows most likely, by turns with the temperature when there
    is one: the NLL is convex in 1/T and the biases together, so the turns lead to its one minimum."""
    has_temperature = found.temperature != 1.0
    for _ in range(_ROUNDS if has_temperature else 1):
        before = getattr(found, which)
        found = _with(found, which, _biases(rows, found, which))
        if has_temperature:
            found = with_temperature(rows, found)
        after = getattr(found, which)
        if before and max(abs(a - b) for a, b in zip(after, before, strict=True)) < _BIAS_WITHIN:
            break
    return found


def _with(fit: Fit, which: Literal["positions", "prior"], biases: tuple[float, ...]) -> Fit:
    return fit._replace(positions=biases) if which == "positions" else fit._replace(prior=biases)


def _biases(rows: Sequence[Scored], fit: Fit, which: Literal["positions", "prior"]) -> tuple[float, ...]:
    """Return the biases of most likelihood under a normal prior, at a fixed temperature, with mean 0.

    Each step moves bias j by (expected - seen) / (n_j / 2 + 1/sigma^2), with n_j the rows that have an option j:
    half the rows bound the curvature (Böhning 1992, "Multinomial logistic regression algorithm"), so no step goes
    too far.
    """
    count = max(len(row.scores) for row in rows)
    held = [*getattr(fit, which), *[0.0] * count][:count]
    seen = [sum(row.label == j for row in rows) for j in range(count)]
    having = [0] * (count + 1)
    for row in rows:
        having[len(row.scores)] += 1
    n = [sum(having[j + 1 :]) for j in range(count)]
    weight = 1.0 / _BIAS_SIGMA**2
    for _ in range(_BIAS_STEPS):
        expected = _expected(rows, _with(fit, which, tuple(held)), count)
        steps = [(expected[j] - seen[j] - weight * held[j]) / (n[j] / 2.0 + weight) for j in range(count)]
        held = [one + step for one, step in zip(held, steps, strict=True)]
        if max(map(abs, steps)) < _BIAS_WITHIN:
            break
    mean = math.fsum(held) / count
    return tuple(one - mean for one in held)


def _expected(rows: Sequence[Scored], fit: Fit, count: int) -> list[float]:
    """Return how many rows the fit expects to have each place as their right option."""
    expected = [0.0] * count
    for row in rows:
        adjusted = fit.adjust(row.scores, range(len(row.scores)))
        top = max(adjusted)
        weights = [math.exp(one - top) for one in adjusted]
        total = sum(weights)
        for j, one in enumerate(weights):
            expected[j] += one / total
    return expected


# ---------------------------------------------------------------------------------------------- the file


def name_of(path: Path, made_for: MadeFor, fits: Mapping[Type, Fit]) -> str:
    """Return the name of a calibration: the stem of its file, and a digest of what it does."""
    what = [list(made_for), {kind: _to_json(one) for kind, one in sorted(fits.items())}]
    return f"{path.stem}@{record.digest(json.dumps(what))[:8]}"


def read(path: Path) -> Calibration:
    """Return a stored calibration. Raises InputError for a file that is missing or none."""
    text = reading.decode(reading.read_file(path), name=str(path))
    try:
        raw = json.loads(text)
        if raw["version"] != VERSION:
            raise errors.InputError(
                f"{path}: written by another version of openjev (calibration version {raw['version']})",
                next_step="Make it again: openjev calibrate",
            )
        made_for = _made_for(raw["made_for"])
        fits = {_kind(kind): _fit(one) for kind, one in raw["types"].items()}
        facts = {str(key): value for key, value in raw.get("facts", {}).items()}
    except RecursionError as exc:
        raise errors.InputError(
            f"{path}: not a calibration (nested too deeply)",
            next_step="Make it again with openjev calibrate, or leave it out: --calibration off",
        ) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise errors.InputError(
            f"{path}: not a calibration ({type(exc).__name__}: {exc})",
            next_step="Make it again with openjev calibrate, or leave it out: --calibration off",
        ) from exc
    return Calibration(name_of(path, made_for, fits), made_for, fits, facts)


def _made_for(raw: Mapping[str, Any]) -> MadeFor:
    found = MadeFor(**raw)
    for key, value in found._asdict().items():
        if not isinstance(value, str) and (value is not None or not key.endswith("sha256")):
            raise ValueError(f"made_for.{key} is no text")
    return found


def _kind(name: str) -> Type:
    for kind in ("noul", "choice", "score"):
        if name == kind:
            return kind
    raise ValueError(f"no type of question is called {name!r}")


def _fit(raw: Mapping[str, Any]) -> Fit:
    unknown = set(raw) - {"temperature", "positions", "prior"}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    temperature = _number(raw["temperature"])
    if temperature <= 0.0:
        raise ValueError(f"the temperature is {temperature:g}")
    positions, prior = (tuple(map(_number, raw.get(key, ()))) for key in ("positions", "prior"))
    return Fit(temperature, positions, prior)


def _number(value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError as exc:
        raise ValueError("a number is too large") from exc
    raise ValueError(f"{value!r:.40} is no number")


def _to_json(fit: Fit) -> dict[str, object]:
    biases = {"positions": list(fit.positions), "prior": list(fit.prior)}
    return {"temperature": fit.temperature, **{key: held for key, held in biases.items() if held}}


def write(path: Path, found: Calibration) -> None:
    """Store a calibration in one step; one that was there stays beside it as `.bak`. Raises InputError."""
    raw = {
        "version": VERSION,
        "made_for": found.made_for._asdict(),
        "types": {kind: _to_json(one) for kind, one in found.fits.items()},
        "facts": dict(found.facts),
    }
    # As ASCII: the name of a model may hold what UTF-8 cannot.
    data = json.dumps(raw, indent=2, allow_nan=False).encode() + b"\n"
    try:
        config.replace_file(path, data)
    except OSError as exc:
        raise errors.InputError(
            f"cannot write {exc.filename or path}: {exc.strerror}",
            next_step="Set XDG_CONFIG_HOME to a folder that you can write to, or give a file: --output FILE",
        ) from exc


def remove(path: Path) -> None:
    """Take a stored calibration away; it stays beside as `.bak`. Raises InputError."""
    try:
        path.replace(path.with_name(path.name + ".bak"))
    except OSError as exc:
        raise errors.InputError(
            f"cannot remove {path}: {exc.strerror}",
            next_step=f"remove it, or ask with --calibration off: {path}",
        ) from exc


def made_for_same(path: Path, now: MadeFor) -> Calibration | None:
    """Return the calibration of a file when it is one and was made for the same, else None."""
    try:
        found = read(path)
    except errors.InputError:
        return None
    return None if found.made_for.differences(now) else found


# ------------------------------------------------------------------------------------------------ in use


def stored_for(paths: Sequence[Path], now: MadeFor) -> tuple[Calibration | None, str | None]:
    """Return the one of several stored calibrations that was made for what answers now, or None and a line about
    the nearest of them. paths: at least one.

    Raises InputError when the one for what answers now is damaged.
    """
    named = [path for path in paths if path.stem.endswith(f"-{now.key}")]
    if named:
        return in_use(named[0], now)
    others: list[tuple[int, Path]] = []
    for path in paths:
        try:
            others.append((len(read(path).made_for.differences(now)), path))
        except errors.InputError:
            continue  # it is for something else, whatever is wrong with it
    return in_use(min(others)[1], now) if others else (None, None)


def in_use(
    path: Path, now: MadeFor, found: Calibration | None = None
) -> tuple[Calibration | None, str | None]:
    """Return the calibration of a file if it was made for what answers now, else None and a line that says so.

    found: what was read of the file before; it is read now if not. Raises InputError for a file that is missing
    or none.
    """
    found = found or read(path)
    others = found.made_for.differences(now)
    if not others:
        return found, None
    if now.model_sha256 is None:
        return None, f"the calibration {path} is not applied: it is not known which model answers"
    return None, (
        f"the calibration {path} is not applied: it was made for another {' and '.join(others)};"
        " make one with openjev calibrate"
    )
