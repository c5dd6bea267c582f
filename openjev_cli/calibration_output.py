"""What `openjev calibrate` says: the held-out rows before and after, as a table, as JSON and as a diagram."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openjev_cli import answers, errors, labels, metrics, output, reliability
from openjev_cli.calibration import Fit, Fitted, MadeFor, Scored, Type

ERRORS = (0.01, 0.05, 0.10)
# Fewer held-out rows than this tell little, and the report says so.
FEW = 100
_IDENTITY = Fit()


@dataclass(frozen=True)
class Tried:
    """What was tried for one type of question. n_fitted: rows it was fitted on. held_out: the rows it is judged
    by."""

    n_fitted: int
    held_out: tuple[Scored, ...]
    fitted: Fitted


@dataclass(frozen=True)
class Report:
    """The outcome. name: of the calibration that is now stored at `path`; None when there is none. carried: types
    that were not tried, whose stored fit stays. removed: types whose stored fit helps no more and is gone. problem:
    why it could not be stored; nothing is changed then."""

    made_for: MadeFor
    types: Mapping[Type, Tried]
    name: str | None
    path: Path
    carried: tuple[Type, ...] = ()
    removed: tuple[Type, ...] = ()
    problem: str = ""

    @property
    def is_new(self) -> bool:
        """Whether what is stored is something else than before."""
        return bool(self.removed) or any(one.fitted.is_kept for one in self.types.values())


class Rows:
    """The held-out rows of one or more types, with or without what was found for them (is_fitted). A row is
    judged by the answer that `ask` would give: a temperature never changes that of a noul or a choice, but it
    can move a score to another level."""

    def __init__(self, types: Mapping[Type, Tried], *, is_fitted: bool) -> None:
        self.labels: list[int] = []
        self.probabilities: list[tuple[float, ...]] = []
        decided = []
        for kind, one in types.items():
            for row in one.held_out:
                p = _probabilities(row, one.fitted.fit if is_fitted else _IDENTITY)
                self.labels.append(row.label)
                self.probabilities.append(p)
                decided.append(answers.place_of(p, is_score=kind == "score"))
        self.correct = metrics.correct(decided, self.labels)
        self.confidences = metrics.confidences(self.probabilities, decided)


def _probabilities(row: Scored, fit: Fit) -> tuple[float, ...]:
    return labels.probabilities(fit.adjust(row.scores, range(len(row.scores))))


def measures(rows: Rows) -> dict[str, Any]:
    """Return every measure of some rows, as JSON. `automate`: by the share of errors allowed."""
    low, high = metrics.wilson_interval(sum(rows.correct), len(rows.correct))
    parts = {error: metrics.automate(rows.confidences, rows.correct, error) for error in ERRORS}
    return {
        "accuracy": metrics.accuracy(rows.correct),
        "accuracy_95": [low, high],
        "ece": metrics.ece(rows.confidences, rows.correct),
        "nll": metrics.nll(rows.probabilities, rows.labels),
        "brier": metrics.brier(rows.probabilities, rows.labels),
        "automate": {
            f"{error:g}": {"share": part.share, "threshold": part.threshold} for error, part in parts.items()
        },
    }


def compared(types: Mapping[Type, Tried]) -> dict[str, Any]:
    """Return the measures of held-out rows before and after; empty without a row."""
    if not _held_out(types):
        return {}
    return {"before": measures(Rows(types, is_fitted=False)), "after": measures(Rows(types, is_fitted=True))}


def facts(types: Mapping[Type, Tried]) -> dict[str, Any]:
    """Return what a calibration keeps about how it was made, by type."""
    return {
        kind: {
            "rows": {"fitted": one.n_fitted, "held_out": len(one.held_out)},
            "held_out": compared({kind: one}),
        }
        for kind, one in types.items()
    }


def _fitted(types: Mapping[Type, Tried]) -> int:
    return sum(one.n_fitted for one in types.values())


def _held_out(types: Mapping[Type, Tried]) -> int:
    return sum(len(one.held_out) for one in types.values())


def to_json(report: Report) -> dict[str, Any]:
    """Return the report for programs."""
    return {
        "model": report.made_for.model,
        "calibration": report.name,
        "file": str(report.path) if report.name is not None else None,
        "carried_over": list(report.carried),
        "removed": list(report.removed),
        "rows": {"fitted": _fitted(report.types), "held_out": _held_out(report.types)},
        "types": {
            kind: {
                "rows": {"fitted": one.n_fitted, "held_out": len(one.held_out)},
                "temperature": one.fitted.fit.temperature,
                "prior": list(one.fitted.fit.prior),
                "positions": list(one.fitted.fit.positions),
                "tried": [
                    {"what": trial.what, "nll_before": trial.before, "nll_after": trial.after,
                     "kept": trial.is_kept}
                    for trial in one.fitted.trials
                ],
                "not_tried": one.fitted.reason or None,
                "held_out": compared({kind: one}),
            }
            for kind, one in report.types.items()
        },
        "held_out": compared(report.types),
    }  # fmt: skip


def print_report(report: Report, *, as_json: bool) -> None:
    """Print the report to stdout."""
    if as_json:
        output.value(to_json(report))
        return
    output.rows(("held out", "before", "after"), table_rows(report))
    for text in text_lines(report):
        output.line(text)


def table_rows(report: Report) -> list[tuple[str, str, str]]:
    """Return the rows of the table: each measure of all held-out rows, then of each type."""
    rows: list[tuple[str, str, str]] = []
    parts: list[tuple[str, Mapping[Type, Tried]]] = [("all", report.types)]
    if len(report.types) > 1:
        parts += [(kind, {kind: one}) for kind, one in report.types.items()]
    for name, types in parts:
        found = compared(types)
        rows.append((f"{name}: {_held_out(types)} rows", "", ""))
        if found:
            rows += _measured(found["before"], found["after"])
    return rows


def _measured(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    rows = [("  accuracy", _accuracy(before), _accuracy(after))]
    for key, title in (("ece", "ECE, 15 bins"), ("nll", "NLL"), ("brier", "Brier")):
        rows.append((f"  {title}", f"{before[key]:.4f}", f"{after[key]:.4f}"))
    for error in ERRORS:
        key = f"{error:g}"
        parts = _part(before["automate"][key]), _part(after["automate"][key])
        rows.append((f"  automate at {error:.0%} error", *parts))
    return rows


def _accuracy(one: Mapping[str, Any]) -> str:
    low, high = one["accuracy_95"]
    return f"{one['accuracy']:.3f} ({low:.3f}-{high:.3f})"


def _part(part: Mapping[str, Any]) -> str:
    if part["threshold"] is None:
        return "none"
    return f"{part['share']:.1%} at p >= {part['threshold']:.4f}"


def text_lines(report: Report) -> list[str]:
    """Return what stands below the table: what was tried, what is kept, and where."""
    lines: list[str] = []
    for kind, one in report.types.items():
        if one.fitted.reason:
            lines.append(f"{kind}: not fitted: {one.fitted.reason}")
        for trial in one.fitted.trials:
            kept = "kept" if trial.is_kept else "not kept"
            lines.append(f"{kind}: {trial.what}: NLL {trial.before:.4f} -> {trial.after:.4f}, {kept}")
        lines += [f"{kind}: {text}" for text in _described(one.fitted.fit)]
    if _held_out(report.types) < FEW:
        lines.append(f"{_held_out(report.types)} held-out rows tell little: {FEW} and more are better")
    lines += [f"{kind}: not fitted now; its stored fit stays" for kind in report.carried]
    lines += [f"{kind}: nothing helps now; its stored fit is removed" for kind in report.removed]
    if report.problem:
        lines.append(f"not stored: {report.problem}")
    elif report.name is not None and report.is_new:
        lines.append(f"stored as {report.name}: {report.path}")
    elif report.removed:
        lines.append(f"nothing to store; what was stored is now {report.path}.bak")
    elif report.path.exists():
        lines.append(f"nothing to store; {report.path} stays as it was")
    else:
        lines.append("nothing to store: the probabilities are used as they are")
    return lines


def _described(fit: Fit) -> list[str]:
    if fit == _IDENTITY:
        return []
    lines = [f"temperature {fit.temperature:.4g}"]
    if fit.prior:
        lines.append(f"leans to {'yes' if fit.prior[0] > 0 else 'no'} by {2 * abs(fit.prior[0]):.3f} nats")
    if fit.positions:
        spellings = labels.candidates()
        shown = " ".join(f"{spellings[i]} {one:+.3f}" for i, one in enumerate(fit.positions[:26]))
        lines.append(f"leans by label, in nats: {shown}")
    return lines


def check_plot(path: Path, held_out: int) -> None:
    """Refuse a diagram that cannot be written or has nothing to show, before hours of asking. held_out: how many
    rows are judged by."""
    if not _is_writable(path, path.parent):
        raise errors.InputError(
            f"--plot {path}: no file can be written there", next_step="name a file in a writable folder"
        )
    if not held_out:
        raise errors.InputError("--plot: no row is held out", next_step="give more rows")


def check_output(path: Path, *, name: str) -> None:
    """Refuse a place where no calibration can be stored, before hours of asking. Its folder need not be there
    yet. name: what it is called."""
    folder = path.parent
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not _is_writable(path, folder):
        raise errors.InputError(
            f"{name}: no file can be written there",
            next_step="name a file in a writable folder: --output FILE",
        )


def _is_writable(path: Path, folder: Path) -> bool:
    """Return whether a file can be made, or replaced, in a folder that is there."""
    try:
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            return False
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def write_plot(path: Path, report: Report) -> None:
    """Write the reliability diagram in one step. Raises InputError when the file cannot be written."""
    if not _held_out(report.types):
        raise errors.InputError("--plot: no row was held out", next_step="see which rows could not be asked")
    series = [
        reliability.Series(
            f"{name} (ECE {metrics.ece(rows.confidences, rows.correct):.3f})",
            metrics.reliability_bins(rows.confidences, rows.correct),
        )
        for name, rows in (
            ("before", Rows(report.types, is_fitted=False)),
            ("after", Rows(report.types, is_fitted=True)),
        )
    ]
    output.to_file(path, reliability.svg(f"Reliability of {report.made_for.model}", series), flag="--plot")
