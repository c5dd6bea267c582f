from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openjev_cli import argv
from openjev_cli.errors import ServerError

PLAIN = argv.Settings(
    model=Path("/m/a.gguf"),
    mmproj=None,
    adapter=None,
    backend="cpu",
    n_ctx=8192,
    slots=8,
    socket="/run/x.sock",
    threads=2,
    checkpoints=32,
    cache_ram_mib=512,
)
BASE = (
    "--model", "/m/a.gguf", "--host", "/run/x.sock", "--ctx-size", "65536", "--parallel", "8",
    "--threads-http", "64", "--no-kv-unified", "--ctx-checkpoints", "32", "--cache-ram", "512",
    "--no-context-shift", "--jinja", "--no-webui", "--offline", "--log-colors", "off",
)  # fmt: skip
CPU = ("--flash-attn", "off", "--threads", "2", "--threads-batch", "2", "--fit", "off")
GPU = (
    "--flash-attn", "auto", "--gpu-layers", "auto", "--fit", "on", "--threads", "2", "--threads-batch", "2",
)  # fmt: skip
NEEDED = frozenset(flag.name for flag in argv.flags(PLAIN) if flag.needed)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (*BASE, "--no-mmproj", *CPU)),
        ({"mmproj": Path("/m/p.gguf")}, (*BASE, "--mmproj", "/m/p.gguf", *CPU)),
        ({"adapter": Path("/m/l.gguf")}, (*BASE, "--no-mmproj", "--lora", "/m/l.gguf", *CPU)),
        *(({"backend": name}, (*BASE, "--no-mmproj", *GPU)) for name in ("cuda", "metal", "vulkan")),
        (
            {"idle": "exit", "keep_alive_s": 600},
            (*BASE, "--no-mmproj", *CPU, "--exit-idle-seconds", "600"),
        ),
        (
            {"idle": "sleep", "keep_alive_s": 5},
            (*BASE, "--no-mmproj", *CPU, "--sleep-idle-seconds", "5"),
        ),
    ],
)
def test_the_argv_of_each_kind_of_server(changes: dict[str, object], expected: tuple[str, ...]) -> None:
    assert argv.build_argv(replace(PLAIN, **changes)) == expected  # type: ignore[arg-type]


def test_nothing_of_a_gpu_is_asked_for_on_a_cpu() -> None:
    assert not {"--gpu-layers", "--device", "--split-mode"} & set(argv.build_argv(PLAIN))


def test_every_flag_says_why_it_is_there() -> None:
    assert [flag.name for flag in argv.flags(PLAIN) if not flag.reason] == []


def test_options_a_binary_lacks_are_left_out_when_they_are_not_needed() -> None:
    words = argv.build_argv(PLAIN, NEEDED)
    assert {word for word in words if word.startswith("--")} == NEEDED


def test_a_binary_without_needed_options_is_refused_and_all_of_them_are_named() -> None:
    with pytest.raises(ServerError) as caught:
        argv.build_argv(PLAIN, NEEDED - {"--cache-ram", "--no-kv-unified"})
    assert caught.value.message == "this llama-server is too old: it has no --no-kv-unified, --cache-ram"
    assert "b9670" in caught.value.next_step
