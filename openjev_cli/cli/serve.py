"""`openjev serve`: the Jev API over HTTP."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from openjev_cli import errors, listen, output
from openjev_cli.cli import common

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8642


def serve(
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than loopback need OPENJEV_API_KEY.")
    ] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes any free one.")
    ] = DEFAULT_PORT,
    path: Annotated[
        str | None, typer.Option("--socket", metavar="PATH", help="Listen on a Unix socket instead.")
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", min=0, max=10_000, help="How many requests may wait for their turn.")
    ] = 64,
    request_timeout: Annotated[
        str | None,
        typer.Option("--request-timeout", metavar="TIME", help="Limit on a request, waiting included (2m)."),
    ] = None,
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
    """Answer over HTTP: POST /v1/systemone, as TypeSafe's API does.

    Example: openjev serve --port 8642
    """
    settings = common.load_config(
        profile=profile,
        model=model,
        mmproj=mmproj,
        readout=readout,
        connect=connect,
        request_timeout_s=request_timeout,
        calibration=calibration,
        no_cache=no_cache,
        keep_alive_s=keep_alive,
        quiet=quiet,
        debug=debug,
    )
    service = _service()
    is_local = path is not None or listen.is_loopback(host)
    if not is_local and settings.api_key is None:
        raise errors.InputError(
            f"--host {host}: without a key only this machine may ask",
            next_step="set OPENJEV_API_KEY, or leave --host out",
        )
    bound = listen.tcp(host, port) if path is None else listen.unix(Path(path))
    own = listen.identity(Path(path)) if path is not None else None
    address = path if path is not None else _url(host, bound.getsockname()[1])
    console = output.Progress(quiet=settings.quiet)

    def ready(name: str, slots: int) -> None:
        output.line(f"ready: {name} at {address} ({slots} at once, {queue} may wait)")

    try:
        was_interrupted = service.run(
            settings,
            common.environment(),
            bound,
            host=None if path is not None else host,
            is_local=is_local,
            queue=queue,
            report=console.report,
            on_ready=ready,
            on_notices=lambda notices: None if settings.quiet else output.notices(notices),
        )
    finally:
        console.close()
        bound.close()
        if path is not None:
            listen.remove(Path(path), own)
    return int(errors.Exit.INTERRUPTED if was_interrupted else errors.Exit.OK)


def _service() -> ModuleType:
    try:
        from openjev_cli import serve as service
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] not in ("starlette", "uvicorn", "h11", "anyio"):
            raise
        raise errors.InputError(
            f"openjev serve needs {exc.name.split('.')[0]}, which is not installed",
            next_step="pip install 'openjev-cli[serve]'",
        ) from exc
    return service


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
