"""`openjev ask --each`: one state a record, answers streamed out."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openjev_cli import errors, gates, output, records, stream, stream_output
from openjev_cli.cli import common

if TYPE_CHECKING:
    from types import FrameType

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
            done = f"{run.tally.done} record{'' if run.tally.done == 1 else 's'}"
            output.notice(f"{done} done; go on with --start-at {run.resume_at}")
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
        with _interrupt_held():
            printer.print(outcome)
            run.settle(outcome)
        bar.draw(run.tally)


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Let Ctrl-C wait until what is done here is done, so that no line is cut and none is printed again by a
    stream that goes on. Pressed once more it does not wait: a reader may have stopped reading."""
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []

    def held(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    if before is not signal.default_int_handler:  # ignored, as in a background job: it stays so
        yield
        return
    signal.signal(signal.SIGINT, held)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


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
