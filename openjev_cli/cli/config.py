"""`openjev config`: every setting with where it came from, and the user's own file."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from openjev_cli import config, models, output

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show and change settings, and where each came from."
)

_Key = Annotated[str, typer.Argument(help="the setting, as `openjev config show` names it", metavar="KEY")]
_Format = Annotated[str, typer.Option("-f", "--format", help="table, json, jsonl or tsv")]


@app.command()
def show(format_name: _Format = "table") -> None:
    """Print every setting with its value and where it came from."""
    loaded = config.load_from_process({})
    rows = [(key, *_in_effect(loaded, key)) for key in config.KEYS]
    output.rows(("setting", "value", "source"), rows, config.list_format(format_name))


@app.command()
def get(key: _Key) -> None:
    """Print one value; an empty line when it is not set."""
    config.setting(key)
    output.line(_in_effect(config.load_from_process({}), key)[0])


def _in_effect(loaded: config.Config, key: str) -> tuple[str, str]:
    """The value of a setting and where it came from."""
    source = loaded.sources[key]
    if key == "profile" and source.kind == "default" and loaded.known_cache_dir is not None:
        # Not the table's default: what is installed decides.
        chosen, reason = models.choose(loaded)
        return chosen.name, reason
    return loaded.shown(key), str(source)


@app.command("set")
def set_(
    key: _Key, value: Annotated[str, typer.Argument(help="the new value; '' removes it", metavar="VALUE")]
) -> None:
    """Write one setting into the user's file. The file before is kept as .bak, with its comments."""
    output.line(str(config.set_in_user_file(key, value, env=os.environ, cwd=config.working_directory())))


@app.command()
def path() -> None:
    """Print where the user's file is or would be. A project file in effect is named on stderr."""
    project = config.find_project_file(config.working_directory())
    user = config.user_file_path(os.environ)
    if project is not None:
        output.notice(f"the project file {project} is read too")
    if user is None:
        raise config.no_home_error()
    output.line(str(user))
