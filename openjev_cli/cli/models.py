"""`openjev models`: the pinned profiles and their files."""

from __future__ import annotations

from typing import Annotated

import typer

from openjev_cli import config, errors, models, output

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, fetch, check and remove model files."
)

_Name = Annotated[str, typer.Argument(help="tiny, fast, balanced, quality or max", metavar="PROFILE")]
_Format = Annotated[str, typer.Option("-f", "--format", help="table, json, jsonl or tsv")]


def _load() -> config.Config:
    return config.load_from_process({})


@app.command("list")
def list_(format_name: _Format = "table") -> None:
    """Show every profile: its size, and whether its file is here."""
    rows = [
        (
            found.profile.name,
            found.profile.title,
            f"{found.profile.weights.size_bytes / 1e9:.1f} GB",
            found.state,
            str(found.path),
        )
        for found in models.installed(_load())
    ]
    output.rows(("profile", "model", "size", "state", "path"), rows, config.list_format(format_name))


@app.command()
def path(profile: _Name) -> None:
    """Print where a profile's file is; an error if it is not there."""
    loaded = _load()
    wanted = models.profile(profile)
    if not models.path_of(wanted, loaded).is_file():
        raise models.missing_files_error(wanted, loaded)
    output.line(str(models.path_of(wanted, loaded)))


@app.command()
def verify(profile: _Name) -> None:
    """Hash a profile's file and compare it with the pinned SHA-256."""
    loaded = _load()
    wanted = models.profile(profile)
    if not models.is_verified(models.path_of(wanted, loaded), wanted.weights, always_hash=True):
        raise models.missing_files_error(wanted, loaded)
    output.line(f"ok {wanted.weights.sha256} {models.path_of(wanted, loaded)}")


@app.command()
def pull(
    profile: _Name = "tiny",
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress on stderr")] = False,
) -> None:
    """Fetch a profile's file. Only tiny comes from here; for the others it says which file to put where."""
    loaded = _load()
    wanted = models.profile(profile)
    at = models.path_of(wanted, loaded)
    if wanted.name == "tiny":
        models.fetch_tiny(loaded, on_progress=output.Progress(quiet=quiet).report)
    elif not models.is_verified(at, wanted.weights):
        raise models.missing_files_error(wanted, loaded)
    output.line(str(at))


@app.command()
def rm(profile: _Name) -> None:
    """Delete a profile's files."""
    loaded = _load()
    wanted = models.profile(profile)
    removed = models.remove(wanted, loaded)
    if not removed:
        raise errors.ModelError(
            f"nothing to remove: {models.path_of(wanted, loaded)} is not there",
            next_step="See what is there: openjev models list",
        )
    for each in removed:
        output.line(str(each))
