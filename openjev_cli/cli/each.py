"""`openjev ask --each`: one state a record, answers streamed out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openjev_cli import errors, gates, output, records, stream, stream_output
from openjev_cli.cli import common

if TYPE_CHECKING:
    from openjev_cli import config, decide, questions


@dataclass(frozen=True)
class Options:
    """The options of `--each` as they were given."""

    form: str | None = None
    fields: tuple[str, ...] = ()
    id_field: str | None = None
    where: tuple[str, ...] = ()
    fail_if: tuple[str, ...] = ()
    add: bool = False
    unordered: bool = False
    strict: bool = False
    start_at: int = 1
    orders: int = 1


def each(
    argument: str | None,
    asked: tuple[questions.Question, ...],
    settings: config.Config,
    options: Options,
    session: decide.Session,
) -> int:
    """Ask the questions of every record of a file or of stdin; returns the exit code."""
    plan = _plan(asked, settings, options)
    source = _source(argument, options.form)
    workers = session.workers(len(asked) * options.orders)
    run = stream.Run(source, plan, session, workers=workers, is_ordered=not options.unordered)
    printer = stream_output.Printer(
        source,
        asked,
        settings.format or ("table" if output.stdout_is_terminal() else "jsonl"),
        passes_records=bool(plan.where),
        adds_answers=options.add,
        with_timing=settings.response_timing,
    )
    bar = stream_output.Bar(quiet=settings.quiet, total=_total(argument, settings))
    try:
        _print_all(run, printer, bar, settings, is_strict=options.strict)
    except (KeyboardInterrupt, errors.OpenjevError):
        bar.close()
        if run.tally.done:
            output.notice(f"{run.tally.done} records done; go on with --start-at {run.resume_at}")
        raise
    bar.close()
    for line in stream_output.summary(run.tally):
        output.notice(line)
    return int(run.tally.exit_code())


def _print_all(
    run: stream.Run,
    printer: stream_output.Printer,
    bar: stream_output.Bar,
    settings: config.Config,
    *,
    is_strict: bool,
) -> None:
    told: set[str] = set()
    for outcome in run:
        bar.clear()
        for notice in outcome.decision.notices if outcome.decision else ():
            # The same for thousands of records would only hide the answers.
            if notice not in told and not settings.quiet:
                output.notice(notice)
                told.add(notice)
        if outcome.error is not None and is_strict:
            raise outcome.error
        printer.print(outcome)
        bar.draw(run.tally)


def _plan(asked: tuple[questions.Question, ...], settings: config.Config, options: Options) -> stream.Plan:
    return stream.Plan(
        asked,
        fields=options.fields,
        id_field=options.id_field,
        where=gates.parse_all(options.where, asked, flag="--where"),
        fail_if=gates.parse_all(options.fail_if, asked, flag="--fail-if"),
        thresholds=gates.Thresholds(settings.unsure, settings.min_confidence),
        compact=settings.compact_json,
        start_at=options.start_at,
        reserved=stream_output.ANSWERS_FIELD if options.add else None,
        orders=options.orders,
    )


def _source(argument: str | None, form: str | None) -> records.Records:
    if form is not None and form not in records.FORMS:
        raise errors.InputError(
            f"--as {form}: no such form of records{errors.nearest(form, records.FORMS)}",
            next_step=f"give one of: {', '.join(records.FORMS)}",
        )
    if argument is not None and argument != "-":
        fd = records.open_file(Path(argument))
        return records.stream_of(argument, records.read_from(fd), form)
    if argument is None and not common.stdin_is_piped():
        raise errors.InputError("no records to ask about", next_step="name a file, or pipe them in")
    return records.stream_of("stdin", records.read_from(0), form)


def _total(argument: str | None, settings: config.Config) -> int | None:
    wants_total = output.stderr_is_terminal() and not settings.quiet
    is_file = argument is not None and Path(argument).is_file()
    return records.count_lines(Path(argument)) if wants_total and is_file and argument else None
