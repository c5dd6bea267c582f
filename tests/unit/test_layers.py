"""The layers of CONVENTIONS: imports go downward only, and `--help` and a warm `ask` stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import openjev_cli

PACKAGE = Path(openjev_cli.__file__).parent

# Lowest first. A module may import from lower lines; a package's modules may import each other downward too.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("timing", "pool", "admission", "listen", "capacity", "metrics"),
    ("config", "reading", "images"),
    ("wheels", "records", "bodies"),
    ("download", "profiles"),
    ("questions", "state", "models"),
    ("labels", "request", "words"),
    ("prompt", "answers"),
    ("expectations", "locks", "orders", "labelled", "reliability"),
    ("engine",),
    ("runtime", "argv"),
    ("binary", "child"),
    ("record",),
    ("launch",),
    ("server", "cache", "provenance", "endpoint"),
    ("calibration",),
    ("decide",),
    ("gates",),
    ("stream", "answersets", "doctor"),
    ("output",),
    ("stream_output", "answerset_output", "calibration_output"),
    ("api",),
    ("serve",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
INSIDE = {
    "engine": {
        **{"__init__": 0, "wire": 0, "client": 1, "facts": 2, "protocol": 3},
        **{"stock": 4, "patched": 4, "stock_images": 5, "systemone": 4, "explain": 4},
    },
}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _noun(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> list[str]:
    """Return the dotted names under openjev_cli that a module imports, inside functions too."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("openjev_cli"):
            base = node.module.removeprefix("openjev_cli").lstrip(".")
            for alias in node.names:
                is_module = (PACKAGE / base.replace(".", "/") / f"{alias.name}.py").exists() or (
                    PACKAGE / base.replace(".", "/") / alias.name
                ).is_dir()
                found.append(".".join(filter(None, (base, alias.name if is_module else ""))))
        elif isinstance(node, ast.Import):
            found += [
                alias.name.removeprefix("openjev_cli.")
                for alias in node.names
                if alias.name.startswith("openjev_cli.")
            ]
    return [name for name in found if name]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_lower_layers_only(path: Path) -> None:
    noun = _noun(path)
    if noun == "__init__":
        assert _imports(path) == []
        return
    for imported in _imports(path):
        target = imported.split(".")[0]
        if target == noun and noun in INSIDE and "." in imported:
            ranks = INSIDE[noun]
            assert ranks[imported.split(".")[1]] < ranks[path.stem], f"{path.stem} imports {imported}"
        elif target != noun:
            assert RANK[target] < RANK[noun], f"{noun} imports {imported}, which is not below it"


def _loaded(code: str) -> set[str]:
    """Return the top-level modules a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.split("\n")[-10000:] if name}


def test_importing_the_command_line_loads_no_third_party_package_but_typer() -> None:
    loaded = _loaded("from openjev_cli import cli")
    typer_alone = _loaded("import typer")
    third_party = {
        name for name in loaded - typer_alone if name not in sys.stdlib_module_names and name != "openjev_cli"
    }
    assert third_party == set()


def test_importing_the_command_line_leaves_heavy_modules_alone() -> None:
    loaded = _loaded("from openjev_cli import cli")
    assert loaded & {"rich", "httpx", "PIL", "yaml", "pydantic", "asyncio", "ssl", "multiprocessing"} == set()
