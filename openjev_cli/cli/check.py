"""`openjev check` and `openjev record`: answers that must stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openjev_cli import errors
from openjev_cli.cli import common

if TYPE_CHECKING:
    from openjev_cli import answersets, config, decide, locks, provenance

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Answer sets, YAML or JSON.")]
Filter = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="ID", help="Only these cases; `*` and `?` match."),
]
Reversed = Annotated[
    bool,
    typer.Option("--reversed/--no-reversed", help="Also ask with the options reversed, and mark what flips."),
]


def check(
    files: Files,
    filters: Filter = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write what is new into the lock; of selected cases only.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", metavar="P", help="How far a probability may move.")
    ] = None,
    with_reversed: Reversed = True,
    orders: common.Orders = 1,
    calibration: common.Calibration = None,
    unsure: Annotated[
        str | None, typer.Option("--unsure", metavar="A..B", help="A flip inside this band is no failure.")
    ] = None,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    readout: common.ReadoutFlag = None,
    connect: common.ConnectTo = None,
    format_: Annotated[
        str | None,
        typer.Option("-f", "--format", metavar="table|json|jsonl", help="Output format. Default: a table."),
    ] = None,
    no_cache: common.NoCache = False,
    keep_alive: common.KeepAlive = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> int:
    """Compare answer sets with what they expect and with their locks; exits with 1 when something differs.

    Example: openjev check answers.yaml --junit report.xml
    """
    from openjev_cli import answerset_output, output

    settings = common.load_config(
        profile=profile,
        model=model,
        mmproj=mmproj,
        readout=readout,
        connect=connect,
        format=format_,
        unsure=unsure,
        calibration=calibration,
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    common.refuse_format_of_answers(settings)
    if tolerance is not None and not 0.0 <= tolerance <= 1.0:
        raise errors.InputError(f"--tolerance {tolerance:g}: not from 0 to 1", next_step="give 0.01, say")
    if junit is not None:
        output.check_place(junit, flag="--junit")
    reports = []
    for path in files:
        report = _check_one(path, settings, filters or [], tolerance, with_reversed, orders, update)
        reports.append(report)
        answerset_output.print_report(
            report,
            as_json=settings.format in ("json", "jsonl"),
            annotates=common.environment().get("GITHUB_ACTIONS") == "true",
        )
    if junit is not None:
        answerset_output.write_junit(junit, reports)
    return int(errors.most_severe(report.exit_code() for report in reports))


def record(
    files: Files,
    filters: Filter = None,
    with_reversed: Reversed = True,
    orders: common.Orders = 1,
    calibration: common.Calibration = None,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    readout: common.ReadoutFlag = None,
    connect: common.ConnectTo = None,
    no_cache: common.NoCache = False,
    keep_alive: common.KeepAlive = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> int:
    """Answer the cases of answer sets and write the answers, with what produced them, into their locks.

    Example: openjev record answers.yaml
    """
    from openjev_cli import answersets, locks, output

    settings = common.load_config(
        profile=profile,
        model=model,
        mmproj=mmproj,
        readout=readout,
        connect=connect,
        calibration=calibration,
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    for path in files:
        found = answersets.read_set(path, compact=settings.compact_json)
        chosen = answersets.select(found, filters or [])
        before = locks.read(found.lock_path)
        # The rest of a lock stays what its profile has answered.
        used = _with_profile(settings, found, before if filters else None)
        with _session(used) as session:
            results = answersets.ask(found, chosen, session, with_reversed=with_reversed, orders=orders)
            _refuse_errors(results)
            _write(found, results, before, _produced_by(session, orders), used, keeps_others=bool(filters))
        gone = [id for id in before.cases if id not in {c.id for c in found.cases}] if before else []
        if gone and not filters and not quiet:
            output.notice(f"no longer in the set, and so not in the lock: {', '.join(gone)}")
        output.line(f"{found.lock_path}: {len(results)} of {len(found.cases)} cases recorded")
    return int(errors.Exit.OK)


def _check_one(
    path: Path,
    settings: config.Config,
    filters: Sequence[str],
    tolerance: float | None,
    with_reversed: bool,
    orders: int,
    update: bool,
) -> answersets.Report:
    from openjev_cli import answersets, locks

    found = answersets.read_set(path, compact=settings.compact_json)
    chosen = answersets.select(found, filters)
    lock = locks.read(found.lock_path)
    used = _with_profile(settings, found, lock)
    with _session(used) as session:
        results = answersets.ask(found, chosen, session, with_reversed=with_reversed, orders=orders)
        produced_by = _produced_by(session, orders)
        report = answersets.check(
            found, results, lock, produced_by, tolerance=tolerance, unsure=settings.unsure
        )
        if update:
            _refuse_errors(results)
            _write(found, results, lock, produced_by, used, keeps_others=bool(filters))
    return report


def _with_profile(
    settings: config.Config, found: answersets.AnswerSet, lock: locks.Lock | None
) -> config.Config:
    """Return the settings with the profile that the lock names, else the set, unless the call itself says what to
    ask. Such a name counts like one in a project file: more than the user's own file."""
    from openjev_cli import config, profiles

    name, path = found.profile, found.path
    if lock is not None and lock.profile is not None:
        name, path = lock.profile, found.lock_path
    chosen = [settings.sources[key].kind for key in ("profile", "model", "connect")]
    if name is None or "flag" in chosen or "environment" in chosen:
        return settings
    profiles.named(name)
    source = config.Source("project file", str(path))
    # A model of the user's file ranks below that source; a server of it ranks nowhere, and would be asked.
    return replace(settings, profile=name, connect=None, sources={**settings.sources, "profile": source})


def _session(settings: config.Config) -> decide.Session:
    from openjev_cli import decide, output

    report = output.Progress(quiet=settings.quiet).report
    return decide.Session(settings, common.environment(), report=report)


def _produced_by(session: decide.Session, orders: int) -> provenance.Provenance:
    found = session.provenance()
    return found.with_settings(orders=str(orders)) if orders > 1 else found


def _refuse_errors(results: Sequence[answersets.Result]) -> None:
    """A lock with holes would pass for a whole one."""
    for result in results:
        if result.error is not None:
            raise result.error


def _write(
    found: answersets.AnswerSet,
    results: Sequence[answersets.Result],
    before: locks.Lock | None,
    produced_by: provenance.Provenance,
    settings: config.Config,
    *,
    keeps_others: bool,
) -> None:
    from openjev_cli import answersets, locks, models

    profile = models.answering(settings)
    lock = answersets.record_results(
        found,
        results,
        before,
        produced_by,
        profile.name if profile is not None else None,
        keeps_others=keeps_others,
    )
    locks.write(found.lock_path, lock)
