"""`openjev server`: start, stop and look at the llama-server that calls share."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from openjev_cli import config, errors, models, output, server
from openjev_cli.cli import common

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The llama-server that all calls share: it starts by itself and goes when idle.",
)

_Format = Annotated[str, typer.Option("-f", "--format", help="table, json, jsonl or tsv")]
_Key = Annotated[
    str | None,
    typer.Argument(metavar="[KEY]", help="Which server, as `openjev server status` names it. Default: all."),
]


@app.command()
def start(
    profile: common.Profile = None,
    model: common.ModelFile = None,
    mmproj: common.Mmproj = None,
    keep_alive: common.KeepAlive = None,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> None:
    """Start the server now, so that the first question does not wait; nothing happens when it runs."""
    settings = common.load_config(
        profile=profile, model=model, mmproj=mmproj, keep_alive_s=keep_alive, quiet=quiet, debug=debug
    )
    report = None if settings.quiet else output.notice
    program = server.program_for(settings, common.environment())
    found = models.resolve(settings, on_progress=report)
    spec = server.spec_for(settings, found, program)
    running = server.ensure(spec, environ=common.environment(), on_progress=report)
    running.close()
    if not settings.quiet:
        for notice in (*running.notices, *([spec.binary.notice] if spec.binary.notice else [])):
            output.notice(notice)
    verb = "started" if running.was_started else "already running"
    output.line(f"{verb}: {found.name} (pid {running.pid}, {running.n_ctx} tokens, {running.slots} at once)")


@app.command()
def stop(key: _Key = None) -> None:
    """Stop the servers that openjev started and delete their sockets and records; touch nothing else."""
    environ = common.environment()
    if key is not None and key not in (known := [each.key for each in server.status(environ=environ)]):
        raise errors.InputError(
            f"no server {key} is running" + (f" (there is {', '.join(known)})" if known else ""),
            next_step="openjev server status",
        )
    ended = server.stop(key, environ=environ)
    for pid in ended:
        output.line(f"stopped pid {pid}")
    if not ended:
        output.line("no server was running")


@app.command()
def status(format_name: _Format = "table") -> None:
    """List the servers that openjev started. Asking keeps none of them awake."""
    found = server.status(environ=common.environment())
    chosen = config.list_format(format_name)
    if chosen == "json":
        output.value([_wire(each) for each in found])
    elif chosen == "jsonl":
        for each in found:
            output.value(_wire(each), one_line=True)
    elif found or chosen != "table":
        output.rows(_COLUMNS, [_row(each) for each in found], chosen, in_blocks=True)
    else:
        output.line("no server is running; the next question starts one")
    settings = common.load_config()
    if not settings.quiet:
        output.notice(f"the next question asks {models.described(settings)}")


_COLUMNS = ("key", "pid", "state", "model", "engine", "context", "caches", "memory", "up", "when idle")


def _row(each: server.Status) -> tuple[str, ...]:
    memory = "" if each.memory_bytes is None else f"{each.memory_bytes >> 20} MiB"
    return (
        each.key,
        str(each.pid),
        each.state,
        Path(each.model).name,
        each.kind,
        f"{each.slots} x {each.n_ctx}",
        f"{each.cache_ram_mib} MiB + {each.slots} x {each.checkpoints} points",
        memory,
        f"{_up_s(each)} s",
        each.when_idle,
    )


def _wire(each: server.Status) -> dict[str, object]:
    wire: dict[str, object] = dict(vars(each))
    wire.update(socket=str(each.socket), log=str(each.log), up_s=_up_s(each))
    return wire


def _up_s(each: server.Status) -> int:
    return max(0, int(time.time() - each.started_at_s))


@app.command()
def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="How many of the last lines.")] = 200,
    path: Annotated[bool, typer.Option("--path", help="Print where the log is instead.")] = False,
) -> None:
    """Print the end of the log that was written to last, also of a server that died."""
    from openjev_cli import child

    log = server.newest_log(environ=os.environ)
    if log is None:
        output.line("no log: no server was started, or `openjev server stop` deleted it")
    elif path:
        output.line(str(log))
    else:
        for text in child.tail(log, lines):
            output.line(text)
