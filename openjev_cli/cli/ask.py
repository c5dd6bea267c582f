"""`openjev ask`, `openjev is` and `openjev pick`: questions about one state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from openjev_cli import errors
from openjev_cli.cli import common

if TYPE_CHECKING:
    from openjev_cli import answers, config, decide, gates, questions
    from openjev_cli import state as states

QuestionFiles = Annotated[
    list[str] | None,
    typer.Option("-q", "--questions", metavar="FILE", help="A list of questions; `-` reads it from stdin."),
]
InlineQuestions = Annotated[
    list[str] | None, typer.Option("-Q", "--question", metavar="TEXT", help="One question, as in a list.")
]


FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="EXPR",
        help="Exit with 1 when it holds: 'refund > 0.8 and team == \"billing\"'.",
    ),
]
Unsure = Annotated[
    str | None,
    typer.Option("--unsure", metavar="A..B", help="A yes/no probability inside this band is unsure: exit 7."),
]
MinConfidence = Annotated[
    float | None,
    typer.Option("--min-confidence", metavar="C", help="A choice less confident is unsure: exit 7."),
]
Reuse = Annotated[
    bool, typer.Option("--reuse", help="Take exact answers from earlier calls, and keep new ones.")
]


def ask(
    state: common.StateArgument = None,
    question_files: QuestionFiles = None,
    inline: InlineQuestions = None,
    fail_if: FailIf = None,
    unsure: Unsure = None,
    min_confidence: MinConfidence = None,
    reuse: Reuse = False,
    orders: common.Orders = 1,
    calibration: common.Calibration = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show on stderr the exact prompt, its tokens, and what was cached."),
    ] = False,
    is_each: Annotated[
        bool, typer.Option("--each", help="One state a record: NDJSON, a JSON array, lines, CSV or TSV.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option("--as", metavar="FORM", help="Read records as ndjson, json, lines, csv or tsv."),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="PATH", help="The field of a record that is the state: user.text"),
    ] = None,
    id_field: Annotated[
        str | None, typer.Option("--id-field", metavar="PATH", help="The field that names a record.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="EXPR", help="Print the records it holds for, unchanged."),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Print the records with their answers in them.")] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="Print answers as they are ready, not in input order.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first record that fails.")] = False,
    start_at: Annotated[
        int | None, typer.Option("--start-at", metavar="N", help="Pass over the records before line N.")
    ] = None,
    images: common.Images = None,
    image_tokens: common.ImageTokens = None,
    text: common.Text = None,
    as_json: common.AsJson = False,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    readout: common.ReadoutFlag = None,
    connect: common.ConnectTo = None,
    format_: common.Format = None,
    timing: common.Timing = None,
    no_cache: common.NoCache = False,
    keep_alive: common.KeepAlive = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> int:
    """Answer questions about one state.

    Example: openjev ask ticket.json -q questions.txt

    With --each, one state a record: openjev ask --each tickets.jsonl -q questions.txt --where 'refund > 0.8'
    """
    from openjev_cli import questions

    settings = common.load_config(
        profile=profile,
        model=model,
        mmproj=mmproj,
        readout=readout,
        connect=connect,
        format=format_,
        timing=timing,
        unsure=unsure,
        min_confidence=min_confidence,
        calibration=calibration,
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    files = question_files or ([] if inline else [str(path) for path in settings.questions])
    if not files and not inline:
        raise errors.InputError(
            "no question to ask", next_step="give a list with -q FILE, or one with -Q TEXT"
        )
    common.one_reader_of_stdin(files, state, text, images or ())
    asked = questions.load(common.question_sources(files, inline or []))
    only_each = {
        "--as": form,
        "--field": fields,
        "--id-field": id_field,
        "--where": where,
        "--add": add,
        "--unordered": unordered,
        "--strict": strict,
        "--start-at": start_at,
    }
    if is_each:
        _refuse({"--text": text, "--json": as_json}, "--each reads records", "say how with --as")
        _refuse({"--explain": explain}, "not with --each", "ask about one record alone")
        _refuse(
            {"-i": images, "--image-tokens": image_tokens}, "not with --each", "put images into the records"
        )
        from openjev_cli.cli import each

        options = each.Options(
            form,
            tuple(fields or ()),
            id_field,
            tuple(where or ()),
            tuple(fail_if or ()),
            add,
            unordered,
            strict,
            start_at or 1,
            orders,
        )
        with _session(settings, reuse=reuse) as session:
            return each.each(state, asked, settings, options, session)
    _refuse(only_each, "only with --each", "add --each, or drop it")
    held = _gates(fail_if, asked)
    judged = common.read_state(
        state, text=text, as_json=as_json, settings=settings, images=images or (), image_tokens=image_tokens
    )
    decision = _decide(settings, judged, asked, orders=orders, reuse=reuse, explains=explain)
    show(settings, decision)
    return int(_verdict(settings, held, decision))


def _refuse(given: Mapping[str, object], why: str, next_step: str) -> None:
    """Refuse options that were given and mean nothing here."""
    for flag, value in given.items():
        if value is not None and value is not False and value != []:
            raise errors.InputError(f"{flag}: {why}", next_step=next_step)


def _gates(texts: list[str] | None, asked: tuple[questions.Question, ...]) -> tuple[gates.Gate, ...]:
    if not texts:
        return ()
    from openjev_cli import gates

    return gates.parse_all(texts, asked, flag="--fail-if")


def _verdict(
    settings: config.Config, held: tuple[gates.Gate, ...], decision: answers.Decision
) -> errors.Exit:
    """Return the exit code of the gates, and say on stderr which of them is to blame."""
    if not held:
        return errors.Exit.OK
    from openjev_cli import gates, output

    thresholds = gates.Thresholds(settings.unsure, settings.min_confidence)
    truths = [gate.evaluate(decision.answers, thresholds) for gate in held]
    for gate, truth in zip(held, truths, strict=True):
        if truth is not False and not settings.quiet:
            output.notice(f"--fail-if {'holds' if truth else 'is unsure'}: {gate.text}")
    return gates.exit_code(truths)


def is_(
    question: Annotated[str, typer.Argument(help="A yes/no question.")],
    state: common.StateArgument = None,
    unsure: Annotated[
        str | None,
        typer.Option("--unsure", metavar="A..B", help="A probability inside this band exits with 7."),
    ] = None,
    orders: common.Orders = 1,
    calibration: common.Calibration = None,
    images: common.Images = None,
    image_tokens: common.ImageTokens = None,
    text: common.Text = None,
    as_json: common.AsJson = False,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    readout: common.ReadoutFlag = None,
    connect: common.ConnectTo = None,
    format_: common.PlainFormat = None,
    no_cache: common.NoCache = False,
    keep_alive: common.KeepAlive = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> int:
    """Answer one yes/no question: prints `yes 0.97` and exits with 0 for yes, 1 for no.

    Example: openjev is 'Is this a complaint?' mail.txt && forward mail.txt
    """
    from openjev_cli import questions

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
    common.one_reader_of_stdin((), state, text, images or ())
    asked = questions.load([questions.inline(question)])
    if len(asked) != 1 or not isinstance(asked[0], questions.Noul):
        raise errors.InputError(
            "`openjev is` takes one yes/no question, and this one has options",
            next_step="use `openjev pick` for options, or `openjev ask` for levels",
        )
    judged = common.read_state(
        state, text=text, as_json=as_json, settings=settings, images=images or (), image_tokens=image_tokens
    )
    decision = _decide(settings, judged, asked, orders=orders)
    probability = decision.answers[0].ranked[0][1]
    show(settings, decision, plain=f"{decision.answers[0].value} {probability:.2f}")
    return int(verdict(decision, settings.unsure))


def pick(
    question: Annotated[str, typer.Argument(help="What to choose by.")],
    state: common.StateArgument = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--option",
            metavar="NAME[:DESCRIPTION]",
            help="An option; write `\\:` for a colon in a name.",
        ),
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", metavar="P", help="A weaker winner exits with 7.")
    ] = None,
    orders: common.Orders = 1,
    calibration: common.Calibration = None,
    images: common.Images = None,
    image_tokens: common.ImageTokens = None,
    text: common.Text = None,
    as_json: common.AsJson = False,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    readout: common.ReadoutFlag = None,
    connect: common.ConnectTo = None,
    format_: common.PlainFormat = None,
    no_cache: common.NoCache = False,
    keep_alive: common.KeepAlive = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> int:
    """Choose one of the options and print its name.

    Example: openjev pick 'Which team?' -o billing:Payments -o technical -o sales ticket.json
    """
    from openjev_cli import questions

    settings = common.load_config(
        profile=profile,
        model=model,
        mmproj=mmproj,
        readout=readout,
        connect=connect,
        format=format_,
        calibration=calibration,
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    if min_p is not None and not 0.0 <= min_p <= 1.0:
        raise errors.InputError(
            f"--min-p {min_p:g}: not a probability", next_step="give a number from 0 to 1"
        )
    common.one_reader_of_stdin((), state, text, images or ())
    asked = questions.choice(question, options or [])
    judged = common.read_state(
        state, text=text, as_json=as_json, settings=settings, images=images or (), image_tokens=image_tokens
    )
    decision = _decide(settings, judged, (asked,), orders=orders)
    show(settings, decision, plain=decision.answers[0].value)
    if min_p is not None and decision.answers[0].ranked[0][1] < min_p:
        return int(errors.Exit.UNSURE)
    return int(errors.Exit.OK)


def verdict(decision: answers.Decision, unsure: tuple[float, float] | None) -> errors.Exit:
    """Return the exit code of a single yes/no decision; `unsure` bounds are inside the band."""
    answer = decision.answers[0]
    p_yes = dict(answer.ranked)["yes"]
    if unsure is not None and unsure[0] <= p_yes <= unsure[1]:
        return errors.Exit.UNSURE
    return errors.Exit.OK if answer.value == "yes" else errors.Exit.VERDICT


def _decide(
    settings: config.Config,
    judged: states.State,
    asked: tuple[questions.Question, ...],
    *,
    orders: int = 1,
    reuse: bool = False,
    explains: bool = False,
) -> answers.Decision:
    from openjev_cli import output, request, timing

    stages = timing.Stages(began_at_s=common.began_at_s)
    console = output.Progress(quiet=settings.quiet)
    try:
        with _session(settings, reuse=reuse, explains=explains, report=console.report) as session:
            wanted = request.Request(judged, asked, orders=orders)
            return session.decide(wanted, stages, progress=console.tokens)
    finally:
        console.close()


def _session(
    settings: config.Config,
    *,
    reuse: bool = False,
    explains: bool = False,
    report: decide.Report | None = None,
) -> decide.Session:
    from openjev_cli import decide, output

    kept = None
    if reuse:
        if not settings.cache:
            raise errors.InputError("--reuse and --no-cache contradict each other", next_step="drop one")
        if settings.connect is not None:
            raise errors.InputError(
                "--reuse needs to know which model answers, and --connect does not say", next_step="drop one"
            )
        from openjev_cli import cache

        kept = cache.AnswerCache(settings.cache_dir / "answers")
    report = report or output.Progress(quiet=settings.quiet).report
    return decide.Session(settings, common.environment(), report=report, reuse=kept, explains=explains)


def show(settings: config.Config, decision: answers.Decision, *, plain: str | None = None) -> int:
    """Print a decision in the format that was asked for. plain: what to print when none was."""
    from openjev_cli import output

    if not settings.quiet:
        output.notices(decision.notices)
    if plain is not None and settings.format is None:
        output.line(plain)
    else:
        output.decision(
            decision,
            settings.format,
            with_stages=settings.timing,
            with_timing=settings.response_timing,
        )
    return int(errors.Exit.OK)
