"""`openjev ask`, `openjev is` and `openjev pick`: questions about one state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from openjev_cli import errors
from openjev_cli.cli import common

if TYPE_CHECKING:
    from openjev_cli import answers, config, questions
    from openjev_cli import state as states

QuestionFiles = Annotated[
    list[str] | None,
    typer.Option("-q", "--questions", metavar="FILE", help="A list of questions; `-` reads it from stdin."),
]
InlineQuestions = Annotated[
    list[str] | None, typer.Option("-Q", "--question", metavar="TEXT", help="One question, as in a list.")
]


def ask(
    state: common.StateArgument = None,
    question_files: QuestionFiles = None,
    inline: InlineQuestions = None,
    text: common.Text = None,
    as_json: common.AsJson = False,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
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
    """
    from openjev_cli import questions

    settings = common.load_config(
        profile=profile,
        model=model,
        mmproj=mmproj,
        connect=connect,
        format=format_,
        timing=timing,
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
    common.one_reader_of_stdin(files, state, text)
    asked = questions.load(common.question_sources(files, inline or []))
    judged = common.read_state(state, text=text, as_json=as_json, settings=settings)
    return show(settings, _decide(settings, judged, asked))


def is_(
    question: Annotated[str, typer.Argument(help="A yes/no question.")],
    state: common.StateArgument = None,
    unsure: Annotated[
        str | None,
        typer.Option("--unsure", metavar="A..B", help="A probability inside this band exits with 7."),
    ] = None,
    text: common.Text = None,
    as_json: common.AsJson = False,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    connect: common.ConnectTo = None,
    format_: common.Format = None,
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
        connect=connect,
        format=format_,
        unsure=unsure,
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    asked = questions.load([questions.inline(question)])
    if len(asked) != 1 or not isinstance(asked[0], questions.Noul):
        raise errors.InputError(
            "`openjev is` takes one yes/no question, and this one has options",
            next_step="use `openjev pick` for options, or `openjev ask` for levels",
        )
    judged = common.read_state(state, text=text, as_json=as_json, settings=settings)
    decision = _decide(settings, judged, asked)
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
    text: common.Text = None,
    as_json: common.AsJson = False,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    connect: common.ConnectTo = None,
    format_: common.Format = None,
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
        connect=connect,
        format=format_,
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    if min_p is not None and not 0.0 <= min_p <= 1.0:
        raise errors.InputError(
            f"--min-p {min_p:g}: not a probability", next_step="give a number from 0 to 1"
        )
    asked = questions.choice(question, options or [])
    judged = common.read_state(state, text=text, as_json=as_json, settings=settings)
    decision = _decide(settings, judged, (asked,))
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
    settings: config.Config, judged: states.State, asked: tuple[questions.Question, ...]
) -> answers.Decision:
    from openjev_cli import decide, output, request, timing

    stages = timing.Stages(began_at_s=common.began_at_s)
    console = output.Progress(quiet=settings.quiet)
    try:
        with decide.Session(settings, common.environment(), report=console.report) as session:
            return session.decide(request.Request(judged, asked), stages, progress=console.tokens)
    finally:
        console.close()


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
