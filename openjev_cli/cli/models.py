"""`openjev models`: the pinned profiles and their files."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from openjev_cli import config, errors, models, output, profiles

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, fetch, check and remove model files."
)

_Name = Annotated[str, typer.Argument(help="tiny, fast, balanced, quality or max", metavar="PROFILE")]
_NameOrAll = Annotated[
    str | None, typer.Argument(help="A profile; by default all that are here.", metavar="[PROFILE]")
]
_Format = Annotated[str, typer.Option("-f", "--format", help="table, json, jsonl or tsv")]
_Quant = Annotated[
    str | None,
    typer.Option("--quant", metavar="NAME", help="Other weights of the same model, such as Q8_0 of max."),
]


def _load(**flags: object) -> config.Config:
    return config.load_from_process(flags)


@app.command("list")
def list_(format_name: _Format = "table") -> None:
    """Show every profile: what is to be fetched, the memory it needs, and whether it is here."""
    loaded = _load()
    chosen, reason = models.choose(loaded)
    rows = []
    for found in models.installed(loaded):
        projector = found.profile.projector
        size_bytes = found.pinned.size_bytes + (projector.size_bytes if projector else 0)
        rows.append(
            (
                found.profile.name,
                found.profile.title if found.pinned is found.profile.weights else found.path.stem,
                f"{size_bytes / 1e9:.1f} GB",
                _memory(found),
                found.state + (f"; answers now ({reason})" if found.profile is chosen else ""),
                str(found.path),
            )
        )
    columns = ("profile", "model", "size", "memory", "state", "path")
    output.rows(columns, rows, config.list_format(format_name))


def _memory(found: models.Installed) -> str:
    """What a server of the profile takes with its whole context, or at least, when the file is not here."""
    if not found.state.startswith("ready"):
        return f"over {found.profile.least_bytes / 1e9:.1f} GB"
    from openjev_cli import argv, capacity

    projector = found.profile.projector
    weights_bytes = found.pinned.size_bytes + (projector.size_bytes if projector else 0)
    try:
        shape = capacity.read_shape(found.path)
    except errors.ModelError:
        shape = None
    need_bytes = capacity.need_bytes(found.profile.n_ctx, argv.SLOTS, weights_bytes, shape)
    return f"{need_bytes / 1e9:.1f} GB"


@app.command()
def path(profile: _Name, quant: _Quant = None) -> None:
    """Print where a profile's weights are; an error if they are not there."""
    loaded = _load()
    wanted = profiles.named(profile)
    pinned = models.in_use(wanted, loaded) if quant is None else profiles.weights_of(wanted, quant)
    if not models.path_of(wanted, loaded, pinned).is_file():
        raise models.missing_files_error(wanted, loaded, pinned)
    output.line(str(models.path_of(wanted, loaded, pinned)))


@app.command()
def verify(profile: _NameOrAll = None) -> None:
    """Hash the files that are here and compare each with its pinned SHA-256."""
    loaded = _load()
    if profile is not None:
        wanted = [profiles.named(profile)]
    else:
        wanted = [found.profile for found in models.installed(loaded) if found.path.is_file()]
    if not wanted:
        raise errors.ModelError("no profile is here to be checked", next_step="openjev models pull fast")
    for each in wanted:
        for at, pinned in models.verify(each, loaded):
            output.line(f"ok {pinned.sha256} {at}")


@app.command()
def pull(
    profile: _Name = "tiny",
    quant: _Quant = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="huggingface|modelscope", help="The hub to fetch from.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Fetch a profile's files, or the rest of them, and check each against its pinned SHA-256.

    A token for files that want one is taken from HF_TOKEN (or MODELSCOPE_API_TOKEN); proxy variables count.
    """
    loaded = _load(model_source=source)
    wanted = profiles.named(profile)
    console = output.Progress(quiet=quiet or loaded.quiet)
    try:
        paths = models.pull(
            wanted,
            loaded,
            os.environ,
            quant=quant,
            report=console.report,
            on_transfer=console.transfer,
        )
    except KeyboardInterrupt:
        console.report("stopped; the same command goes on from here")
        raise
    finally:
        console.close()
    for at in paths:
        output.line(str(at))


@app.command()
def rm(profile: _Name, quant: _Quant = None) -> None:
    """Delete a profile's files, also what a stopped fetch has left."""
    loaded = _load()
    wanted = profiles.named(profile)
    removed = models.remove(wanted, loaded, quant)
    if not removed:
        raise errors.ModelError(
            f"nothing to remove: {models.path_of(wanted, loaded).parent} holds no file of {wanted.name}",
            next_step="See what is there: openjev models list",
        )
    for each in removed:
        output.line(str(each))
