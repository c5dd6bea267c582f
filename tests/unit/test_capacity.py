from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from openjev_cli import capacity
from openjev_cli.capacity import MIB, Plan, Shape
from openjev_cli.errors import ModelError

GIB = 1 << 30
# Qwen3.5-0.8B: 24 layers, every fourth with attention (2 KV heads of 256), the others linear.
HYBRID = {
    "block_count": 24,
    "context_length": 262144,
    "embedding_length": 1024,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 2048,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
}
DENSE = {
    "block_count": 30,
    "context_length": 8192,
    "embedding_length": 576,
    "attention.head_count": 9,
    "attention.head_count_kv": 3,
}


def write_gguf(path: Path, arch: str, numbers: dict[str, int | list[int]]) -> Path:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = [text("general.architecture") + struct.pack("<I", 8) + text(arch)]
    for name, value in numbers.items():
        if isinstance(value, list):
            body = struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
        else:
            body = struct.pack("<II", 4, value)
        pairs.append(text(f"{arch}.{name}") + body)
    pairs.append(text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2"))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs))
    return path


@pytest.mark.parametrize(
    ("arch", "numbers", "expected"),
    [
        # 19 MiB a checkpoint is what llama-server measures for this shape.
        ("qwen35", HYBRID, Shape(262144, 6 * 2 * 512 * 2, 18 * (3 * 6144 + 2048 * 128) * 4)),
        ("llama", DENSE, Shape(8192, 30 * 3 * 128 * 2, 0)),
        ("jamba", {**DENSE, "attention.head_count_kv": [0, 3, 0, 3]}, Shape(8192, 2 * 3 * 128 * 2, 0)),
    ],
)
def test_the_shape_of_a_model_is_read_from_its_header(
    tmp_path: Path, arch: str, numbers: dict[str, int | list[int]], expected: Shape
) -> None:
    assert capacity.read_shape(write_gguf(tmp_path / "m.gguf", arch, numbers)) == expected


def test_a_cut_header_gives_no_shape(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", "llama", DENSE).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:60])
    assert capacity.read_shape(tmp_path / "cut.gguf") is None


def test_a_file_of_zeros_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "zero.gguf"
    path.write_bytes(bytes(64))
    with pytest.raises(ModelError, match=r"zero\.gguf is not a GGUF file"):
        capacity.read_shape(path)


DENSE_SHAPE = Shape(8192, 23040, 0)
WIDE = Shape(32768, 100_000, 0)
HYBRID_SHAPE = Shape(262144, 12288, 20 * MIB)


@pytest.mark.parametrize(
    ("shape", "n_ctx", "weights", "available", "expected"),
    [
        # Everything fits: caches at llama-server's own maximum.
        (DENSE_SHAPE, 8192, 100 * MIB, 64 * GIB, (8192, 8, 32, 8192)),
        # No more context than the model was trained for.
        (DENSE_SHAPE, 16384, 100 * MIB, 64 * GIB, (8192, 8, 32, 8192)),
        # 32768 tokens x 8 need 24 GiB; 8 GiB x 0.8 hold 4096.
        (WIDE, 32768, 1 * GIB, 8 * GIB, (4096, 8, 32, 946)),
        # Not even 2048 x 8: fewer slots, then as it is.
        (WIDE, 32768, 1 * GIB, 3 * GIB, (2048, 4, 32, 70)),
        (WIDE, 32768, 4 * GIB, 2 * GIB, (2048, 1, 32, 0)),
        # A hybrid's checkpoints take half of what is left, and never less than 4.
        (HYBRID_SHAPE, 16384, 512 * MIB, 8 * GIB, (16384, 8, 11, 1036)),
        (HYBRID_SHAPE, 16384, 512 * MIB, 4 * GIB, (16384, 8, 4, 0)),
        (None, 8192, 100 * MIB, None, (8192, 8, 32, 8192)),
    ],
)
def test_the_context_is_what_memory_allows(
    shape: Shape | None, n_ctx: int, weights: int, available: int | None, expected: tuple[int, int, int, int]
) -> None:
    plan = capacity.plan(n_ctx=n_ctx, slots=8, weights_bytes=weights, shape=shape, available_bytes=available)
    assert (plan.n_ctx, plan.slots, plan.checkpoints, plan.cache_ram_mib) == expected
    assert (plan.notice is not None) == ((plan.n_ctx, plan.slots) != (n_ctx, 8))


def test_the_notice_names_both_numbers() -> None:
    plan = capacity.plan(n_ctx=32768, slots=8, weights_bytes=GIB, shape=WIDE, available_bytes=8 * GIB)
    assert plan == Plan(
        n_ctx=4096,
        slots=8,
        checkpoints=32,
        cache_ram_mib=946,
        need_bytes=GIB + 512 * MIB + 4096 * 8 * 100_000,
        notice="context reduced to 4096 tokens: 32768 need about 25.9 GiB of memory, 6.4 GiB can be used",
    )


MEMINFO = "MemTotal: 100 kB\nMemFree: 5 kB\nMemAvailable:   8388608 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/meminfo": MEMINFO}, 8 * GIB),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "0::/user/job\n",
                "/sys/fs/cgroup/user/job/memory.max": "max\n",
                "/sys/fs/cgroup/user/job/memory.current": "5\n",
                "/sys/fs/cgroup/user/memory.max": f"{4 * GIB}\n",
                "/sys/fs/cgroup/user/memory.current": f"{3 * GIB}\n",
                "/sys/fs/cgroup/user/memory.stat": f"anon 1\ninactive_file {1 * GIB}\n",
            },
            2 * GIB,
        ),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "4:memory:/host/path\n1:cpu:/\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 * GIB}\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
            },
            1 * GIB,
        ),
    ],
)
def test_available_memory_respects_the_cgroup(files: dict[str, str], expected: int) -> None:
    assert capacity.available_bytes(files.get) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "/proc/self/cgroup": "2:cpu,cpuacct:/a\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
    ],
)
def test_the_quota_is_the_smallest_on_the_way_up(files: dict[str, str], expected: float | None) -> None:
    assert capacity.cpu_quota(files.get) == expected


def test_threads_follow_the_quota_and_the_affinity() -> None:
    half = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "50000 100000\n"}
    assert capacity.threads(half.get) == 1
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert capacity.threads({}.get) == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_memory_of_the_machine_ends_at_the_cgroup() -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = {"/proc/self/cgroup": "0::/job\n", "/sys/fs/cgroup/job/memory.max": f"{64 * MIB}\n"}
    assert capacity.total_bytes(group.get) == 64 * MIB
    assert capacity.total_bytes({}.get) == machine
    assert capacity.total_bytes({**group, "/sys/fs/cgroup/job/memory.max": "max\n"}.get) == machine
