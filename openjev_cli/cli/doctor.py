"""`openjev doctor`: checks everything, asks a known question, and names the fix for each finding."""

from __future__ import annotations

from typing import Annotated

import typer

from openjev_cli.cli import common


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    connect: common.ConnectTo = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> int:
    """Check the engine, the models and this machine, ask a known question, and name what to fix.

    Exit code 0, or 1 when something must be fixed.
    """
    from openjev_cli import doctor as checks
    from openjev_cli import errors, output

    settings = common.load_config(
        profile=profile, model=model, mmproj=mmproj, connect=connect, quiet=quiet, debug=debug
    )
    console = output.Progress(quiet=settings.quiet)
    try:
        findings = list(checks.examine(settings, common.environment(), console.report))
    finally:
        console.close()
    if as_json:
        output.value([finding.to_json() for finding in findings])
    else:
        rows = [(one.level, one.check, one.what, one.next_step) for one in findings]
        output.rows(("", "check", "finding", "what to do"), rows)
    return int(errors.Exit.VERDICT if checks.must_fix(findings) else errors.Exit.OK)
