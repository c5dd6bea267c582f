"""`openjev calibrate`: how far a model's probabilities can be trusted, and what makes them come true."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openjev_cli import errors
from openjev_cli.cli import common

if TYPE_CHECKING:
    from openjev_cli import answers, calibration, calibration_output, config, decide, labelled


def calibrate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Labelled rows: JSON lines of id, state, question and label; .gz too."
        ),
    ],
    label_prior: Annotated[
        bool, typer.Option("--label-prior", help="Also fit how much the model leans to yes or no.")
    ] = False,
    position_bias: Annotated[
        bool,
        typer.Option("--position-bias", help="Also fit how much it leans to A, B, ...: needs mixed orders."),
    ] = False,
    target: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Store it there, for --calibration FILE."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Also draw a reliability diagram.")
    ] = None,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    readout: common.ReadoutFlag = None,
    connect: common.ConnectTo = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--format",
            metavar="table|json|jsonl",
            help="Output. Default: a table on a terminal, else JSON.",
        ),
    ] = None,
    no_cache: common.NoCache = False,
    keep_alive: common.KeepAlive = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> int:
    """Fit the probabilities of a model to labelled rows, and tell how far they can be trusted.

    Example: openjev calibrate labelled.jsonl --plot reliability.svg
    """
    from openjev_cli import calibration, calibration_output, labelled, output

    settings = common.load_config(
        profile=profile,
        model=model,
        mmproj=mmproj,
        readout=readout,
        connect=connect,
        format=format_,
        calibration="off",
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    common.refuse_format_of_answers(settings)
    if settings.connect is not None:
        raise errors.InputError(
            "a calibration belongs to a model file, and --connect does not say which one answers",
            next_step="name it with --model FILE, or choose a profile with -p",
        )
    if target is not None:
        calibration_output.check_output(target, name=f"--output {target}")
    ids = labelled.check(file, compact=settings.compact_json)
    total = len(ids)
    if plot is not None:
        calibration_output.check_plot(plot, sum(map(calibration.is_held_out, ids)))
    with _session(settings) as session:
        made_for = session.made_for()
        path = target or _stored_at(session, made_for, settings)
        calibration_output.check_output(path, name=str(path))
        asked = _ask_all(file, total, session, settings)
    report = _fit(asked, made_for, path, label_prior=label_prior, position_bias=position_bias)
    # Whatever fails now, the report is what hours of asking were for.
    failures: list[errors.InputError] = []
    if plot is not None:
        try:
            calibration_output.write_plot(plot, report)
        except errors.InputError as exc:
            failures.append(exc)
    try:
        report = _stored(report)
    except errors.InputError as exc:
        failures.append(exc)
        report = replace(report, problem=exc.message)
    calibration_output.print_report(report, as_json=_wants_json(settings))
    if asked.failed:
        output.notice(f"{len(asked.failed)} of {total} rows could not be asked: {_lines(asked.failed)}")
    if failures:
        raise errors.collect([one.message for one in failures], next_step=failures[0].next_step)
    return int(errors.Exit.PARTIAL if asked.failed else errors.Exit.OK)


def _wants_json(settings: config.Config) -> bool:
    from openjev_cli import output

    if settings.format in ("table", "json", "jsonl"):
        return settings.format != "table"
    return not output.stdout_is_terminal()


def _lines(failed: list[int]) -> str:
    more = ", ..." if len(failed) > 10 else ""
    return f"line{'s' if len(failed) > 1 else ''} {', '.join(map(str, failed[:10]))}{more}"


def _session(settings: config.Config) -> decide.Session:
    from openjev_cli import decide, output

    report = output.Progress(quiet=settings.quiet).report
    return decide.Session(settings, common.environment(), report=report)


def _stored_at(session: decide.Session, made_for: calibration.MadeFor, settings: config.Config) -> Path:
    from openjev_cli import config

    path = settings.calibration_file(session.model_key(), made_for.key)
    if path is None:
        raise config.no_home_error()
    return path


@dataclass
class Asked:
    """What came of asking. rows: by type of question, to fit and held out. failed: lines of what could not be
    asked."""

    rows: dict[calibration.Type, tuple[list[calibration.Scored], list[calibration.Scored]]]
    failed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Outcome:
    row: labelled.Row
    decision: answers.Decision | None = None
    error: errors.OpenjevError | None = None


def _ask_all(file: Path, total: int, session: decide.Session, settings: config.Config) -> Asked:
    """Ask every row, concurrently; what one row is to blame for is its own failure.

    Raises ServerError, ModelError, and EngineError when nothing else comes.
    """
    from openjev_cli import calibration, labelled, output, stream, stream_output
    from openjev_cli.pool import Pool
    from openjev_cli.request import Request
    from openjev_cli.timing import Stages

    def rows() -> Iterator[labelled.Row]:
        for row in labelled.read(file, compact=settings.compact_json):
            if isinstance(row, errors.InputError):
                raise row  # the file was changed since it was checked
            yield row

    def work(row: labelled.Row) -> _Outcome:
        try:
            decision = session.decide(Request(row.state, (row.question,)), Stages(time.perf_counter()))
        except errors.OF_ONE_REQUEST as exc:
            return _Outcome(row, error=exc)
        return _Outcome(row, decision)

    asked = Asked({"noul": ([], []), "choice": ([], []), "score": ([], [])})
    tally, told, failures = stream.Tally(), set[str](), 0
    bar = stream_output.Bar(quiet=settings.quiet, total=total)
    workers = session.workers(1)
    try:
        for outcome in Pool(rows(), work, workers=workers):
            row = outcome.row
            if outcome.error is not None:
                tally.failed += 1
                asked.failed.append(row.line)
                is_engine = isinstance(outcome.error, errors.EngineError)
                is_engine &= not isinstance(outcome.error, errors.ReadoutError)
                failures = failures + 1 if is_engine else 0
                if failures > 2 * workers or tally.failed == total:
                    raise outcome.error
            if outcome.decision is None:
                continue
            failures = 0
            tally.answered += 1
            kind = calibration.kind_of(row.question)
            scored = calibration.Scored(outcome.decision.scores[0], row.label)
            asked.rows[kind][calibration.is_held_out(row.id)].append(scored)
            for notice in outcome.decision.notices:
                if notice not in told and not settings.quiet:
                    bar.clear()
                    output.notice(notice)
                    told.add(notice)
            bar.draw(tally)
    finally:
        bar.close()
    return asked


def _fit(
    asked: Asked, made_for: calibration.MadeFor, path: Path, *, label_prior: bool, position_bias: bool
) -> calibration_output.Report:
    """Fit every type of question that there are rows of."""
    from openjev_cli import calibration, calibration_output

    types = {
        kind: calibration_output.Tried(
            len(rows),
            tuple(held_out),
            calibration.fit(kind, rows, held_out, label_prior=label_prior, position_bias=position_bias),
        )
        for kind, (rows, held_out) in asked.rows.items()
        if rows or held_out
    }
    return calibration_output.Report(made_for, types, None, path)


def _stored(report: calibration_output.Report) -> calibration_output.Report:
    """Store what is kept, with what was stored for the same before; return the report that says so."""
    from openjev_cli import __version__, calibration, calibration_output

    before = calibration.made_for_same(report.path, report.made_for)
    merged = calibration.merge(
        before.fits if before is not None else {}, {kind: one.fitted for kind, one in report.types.items()}
    )
    report = replace(report, carried=merged.carried, removed=merged.removed)
    if not report.is_new:
        return replace(report, name=before.name if before is not None else None)
    if not merged.fits:
        calibration.remove(report.path)
        return report
    facts: dict[str, Any] = {
        "made_by": f"openjev {__version__}",
        **calibration_output.facts(report.types),
        **{kind: before.facts.get(kind) for kind in merged.carried if before is not None},
    }
    name = calibration.name_of(report.path, report.made_for, merged.fits)
    calibration.write(report.path, calibration.Calibration(name, report.made_for, merged.fits, facts))
    return replace(report, name=name)
