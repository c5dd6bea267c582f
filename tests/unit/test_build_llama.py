"""What scripts/build_llama.py decides without a compiler: places, keys, variants, what it shows."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import build_llama
import llama_source
import llama_tools

COMPILER = llama_tools.Compiler("/usr/bin/cc", "/usr/bin/c++", "c++ 12.2.0", ("__AVX2__", "__FMA__"))
AMX = replace(COMPILER, cpu_flags=("__AMX_INT8__", "__AVX2__"))
FIRST = llama_source.Patch(Path("/p/0001-amx.patch"), "11")
SECOND = llama_source.Patch(Path("/p/0002-checkpoints.patch"), "22")
PLAN = build_llama.Plan("source", "patched", (FIRST, SECOND), COMPILER, "cpu", "native", False)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"OPENJEV_CACHE_DIR": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"OPENJEV_CACHE_DIR": "", "XDG_CACHE_HOME": "/xdg"}, "/xdg/openjev"),
        ({"XDG_CACHE_HOME": "relative"}, "~/.cache/openjev"),
        ({"XDG_CACHE_HOME": ""}, "~/.cache/openjev"),
        ({}, "~/.cache/openjev"),
    ],
)
def test_cache_is_where_openjev_looks_for_it(environ: dict[str, str], expected: str) -> None:
    assert build_llama.cache_root(environ) == Path(expected).expanduser()


@pytest.mark.parametrize(
    ("compiler", "machine", "expected"),
    [
        (AMX, "x86_64", ["native", "no-amx", "avx2", "generic"]),
        (COMPILER, "x86_64", ["native", "avx2", "generic"]),
        (replace(COMPILER, cpu_flags=()), "x86_64", ["native", "generic"]),
        (replace(COMPILER, cpu_flags=()), "aarch64", ["native", "generic"]),
    ],
)
def test_each_variant_uses_fewer_cpu_features_than_the_one_before(
    compiler: llama_tools.Compiler, machine: str, expected: list[str]
) -> None:
    assert build_llama.variants(compiler, machine) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"source": "another"},
        {"kind": "stock"},
        {"patches": (FIRST,)},
        {"patches": (SECOND, FIRST)},
        {"patches": (FIRST, replace(SECOND, sha256="23"))},
        {"compiler": replace(COMPILER, version="c++ 13.1.0")},
        {"compiler": AMX},
        {"backend": "vulkan"},
        {"variant": "generic"},
        {"sanitize": True},
    ],
)
def test_key_changes_with_everything_a_binary_depends_on(change: dict[str, object]) -> None:
    assert replace(PLAN, **change).key != PLAN.key  # type: ignore[arg-type]


def test_objects_are_shared_by_both_kinds_and_all_patch_sets() -> None:
    stock = replace(PLAN, kind="stock", patches=(FIRST,))
    assert stock.tree_key == PLAN.tree_key


def test_patches_elsewhere_with_the_same_content_give_the_same_key() -> None:
    elsewhere = llama_source.Patch(Path("/q/0001-amx.patch"), "11")
    assert replace(PLAN, patches=(elsewhere, SECOND)).key == PLAN.key


def test_stock_is_the_base_with_patch_1_alone() -> None:
    assert build_llama.stock_patches([FIRST, SECOND]) == (FIRST,)


def test_generic_build_asks_for_no_cpu_feature() -> None:
    options = build_llama.cmake_options("cpu", "generic", sanitize=False)
    features = {name: value for name, value in options.items() if name in build_llama.X86_OFF}
    assert set(features.values()) == {"OFF"}
    assert options["GGML_NATIVE"] == "OFF"


@pytest.mark.parametrize("backend", list(build_llama.BACKENDS))
def test_no_build_hands_a_picture_to_another_program(backend: str) -> None:
    assert build_llama.cmake_options(backend, "native", sanitize=False)["MTMD_VIDEO"] == "OFF"


def test_sanitizer_flags_do_not_replace_those_of_the_variant() -> None:
    options = build_llama.cmake_options("cpu", "no-amx", sanitize=True)
    assert options["CMAKE_CXX_FLAGS"] == f"-U__AMX_INT8__ {build_llama.SANITIZE_FLAGS}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("cmake version 3.25.1\n\nmore 1.2", (3, 25, 1)), ("1.11.1.git.kitware", (1, 11, 1)), ("none", ())],
)
def test_version_is_the_first_dotted_number(text: str, expected: tuple[int, ...]) -> None:
    assert llama_tools.version_of(text) == expected


def test_first_fault_is_the_line_that_says_what_went_wrong() -> None:
    output = ["[1/2] Building", "FAILED: x.o", "x.cpp:3:5: error: expected ';'", "ninja: build stopped"]
    assert llama_tools.first_fault(output) == "x.cpp:3:5: error: expected ';'"
    assert llama_tools.first_fault(["one", "the last"]) == "the last"
    assert llama_tools.first_fault([]) == "no output"


def test_progress_without_a_terminal_is_a_line_every_few_seconds() -> None:
    out = io.StringIO()
    progress = llama_tools.Progress(out, is_terminal=False)
    for second in range(12):
        progress.update(f"[{second}/12]", 100.0 + second)
    progress.note("done")
    assert out.getvalue() == "[0/12]\n[5/12]\n[10/12]\ndone\n"


def test_progress_on_a_terminal_rewrites_one_line() -> None:
    out = io.StringIO()
    progress = llama_tools.Progress(out, is_terminal=True)
    progress.update("[1/2]", 0.0)
    progress.update("[2/2]", 0.1)
    progress.note("done")
    assert out.getvalue() == "\r\033[K[1/2]\r\033[K[2/2]\r\033[Kdone\n"


def test_c_compiler_belongs_to_the_given_cpp_compiler() -> None:
    named = ["g++-12", "/opt/bin/clang++", "c++", "icpx"]
    assert [llama_tools.matching_c(name) for name in named] == ["gcc-12", "/opt/bin/clang", "cc", "cc"]
