"""What this machine can hold: threads and memory it may use, and what a model needs of them.

Estimates only: nothing is allocated. They read the header of the GGUF file, /proc and the cgroup files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from openjev_cli.errors import ModelError

MIB = 1 << 20
SMALLEST_CONTEXT = 2048
# Compute buffers, tokenizer and HTTP threads: 0.3-0.6 GiB over the models measured.
_OVERHEAD_BYTES = 512 * MIB
# What other programs need meanwhile: a fifth of the free memory stays free.
USABLE = 0.8
_DEFAULT_CACHE_RAM_MIB = 8192  # llama-server's own default; never more than that
_MOST_CHECKPOINTS, _FEWEST_CHECKPOINTS = 32, 4


@dataclass(frozen=True)
class Shape:
    """What the memory of one context costs. kv_bytes_per_token: of one sequence. state_bytes: the recurrent
    state of one sequence, which is also the size of a checkpoint; 0 for a plain transformer."""

    trained_context: int
    kv_bytes_per_token: int
    state_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a server is started with. n_ctx: tokens a slot holds. notice: why it is less than was wanted."""

    n_ctx: int
    slots: int
    checkpoints: int
    cache_ram_mib: int
    need_bytes: int
    notice: str | None = None


def plan(
    *, n_ctx: int, slots: int, weights_bytes: int, shape: Shape | None, available_bytes: int | None
) -> Plan:
    """Return the largest context up to `n_ctx` that fits in four fifths of the available memory, with the
    prompt cache and the checkpoints that fit beside it. Halves the context down to 2048 tokens, then the
    slots down to 1; what does not fit even then is left for the server to try. Pure."""
    notices = []
    if shape is not None and 0 < shape.trained_context < n_ctx:
        notices.append(
            f"the model was trained for {shape.trained_context} tokens: "
            f"that is its context, instead of {n_ctx}"
        )
        n_ctx = shape.trained_context
    wanted = n_ctx, slots
    usable = None if available_bytes is None else int(available_bytes * USABLE)
    if usable is not None:
        while need_bytes(n_ctx, slots, weights_bytes, shape) > usable:
            if n_ctx > SMALLEST_CONTEXT:
                n_ctx = max(SMALLEST_CONTEXT, n_ctx // 2 // 256 * 256)
            elif slots > 1:
                slots //= 2
            else:
                break
    need = need_bytes(n_ctx, slots, weights_bytes, shape)
    if (n_ctx, slots) != wanted:
        at_once = f" and {slots} questions at once" if slots != wanted[1] else ""
        notices.append(
            f"context reduced to {n_ctx} tokens{at_once}: {wanted[0]} need about "
            f"{gib(need_bytes(*wanted, weights_bytes, shape))} of memory, {gib(usable or 0)} can be used"
        )
    left = max(0, (usable or 0) - need) if usable is not None else 4 * _DEFAULT_CACHE_RAM_MIB * MIB
    checkpoints = _MOST_CHECKPOINTS
    if shape is not None and shape.state_bytes:
        fitting = left // 2 // (slots * shape.state_bytes)
        checkpoints = max(_FEWEST_CHECKPOINTS, min(_MOST_CHECKPOINTS, fitting))
        left = max(0, left - checkpoints * slots * shape.state_bytes)
    cache_ram_mib = min(_DEFAULT_CACHE_RAM_MIB, left // 2 // MIB)
    return Plan(n_ctx, slots, checkpoints, cache_ram_mib, need, "; ".join(notices) or None)


def need_bytes(n_ctx: int, slots: int, weights_bytes: int, shape: Shape | None) -> int:
    """Return the estimated memory of a server: weights (mapped, but all of them are read), the KV and
    recurrent memory of every slot, and a fixed overhead."""
    context = 0 if shape is None else slots * (n_ctx * shape.kv_bytes_per_token + shape.state_bytes)
    return weights_bytes + context + _OVERHEAD_BYTES


def gib(size_bytes: int) -> str:
    """A size for messages, such as `1.5 GiB`."""
    return f"{size_bytes / (1 << 30):.1f} GiB"


def read_shape(model: Path) -> Shape | None:
    """Return the memory shape of a GGUF model, or None when its header does not say. Raises ModelError when
    the file is no GGUF at all, so that a half-written file is named before a server is started on it."""
    try:
        with model.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(
                    f"{model} is not a GGUF file",
                    next_step=f"openjev models verify, or give another file instead of {model}",
                )
            return _shape(_header(file))
    except (OSError, struct.error, ValueError, KeyError):
        return None


def decision_type(model: Path) -> str | None:
    """Return what kind of native decision model a GGUF file says it is (`<arch>.decision.type`, common/common.h
    of llama.cpp b11434), or None: it is none, or cannot be read."""
    try:
        with model.open("rb") as file:
            if file.read(4) != b"GGUF":
                return None
            header = _header(file)
    except (OSError, struct.error, ValueError, KeyError):
        return None
    found = header.get(f"{header.get('general.architecture')}.decision.type")
    return found if isinstance(found, str) and found else None


def _header(file: IO[bytes]) -> dict[str, Any]:
    """Read the key-values of a GGUF file up to the tokenizer (a vocabulary of 248,320 strings takes longer to
    skip than the server takes to start). Format: ggml/include/gguf.h of llama.cpp."""
    version, _, count = struct.unpack("<IQQ", file.read(20))
    if version not in (2, 3):
        raise ValueError(version)
    found: dict[str, Any] = {}
    for _ in range(count):
        key = _string(file)
        if key.startswith("tokenizer."):
            break
        (kind,) = struct.unpack("<I", file.read(4))
        found[key] = _value(file, kind)
    return found


_SCALARS = ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d")


def _string(file: IO[bytes]) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MIB:
        raise ValueError(length)
    return file.read(length).decode("utf-8", "replace")


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == 8:
        return _string(file)
    if kind == 9:
        inner, length = struct.unpack("<IQ", file.read(12))
        if length > MIB:
            raise ValueError(length)
        return [_value(file, inner) for _ in range(length)]
    code = _SCALARS[kind] if kind < len(_SCALARS) else None
    if code is None:
        raise ValueError(kind)
    return struct.unpack(code, file.read(struct.calcsize(code)))[0]


def _shape(header: dict[str, Any]) -> Shape:
    """The sizes follow llama_hparams::n_embd_k_gqa, n_embd_r and n_embd_s (src/llama-hparams.cpp, b11434)."""
    arch = header["general.architecture"]

    def number(name: str, default: int = 0) -> int:
        value = header.get(f"{arch}.{name}", default)
        return int(value) if isinstance(value, int) else default

    layers = number("block_count")
    heads = number("attention.head_count", 1)
    width = number("embedding_length")
    kv_heads = header.get(f"{arch}.attention.head_count_kv", heads)
    interval = number("full_attention_interval")
    # Qwen3.5 and its like: full attention every n-th layer, the others keep a recurrent state.
    attending = [kv for kv in kv_heads if kv] if isinstance(kv_heads, list) else []
    if not attending:
        per_layer = kv_heads if isinstance(kv_heads, int) else heads
        attending = [per_layer] * (layers // interval if interval else layers)
    head_width = max(1, width // max(1, heads))
    key, value = number("attention.key_length", head_width), number("attention.value_length", head_width)
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    convolution = max(0, number("ssm.conv_kernel") - 1) * (inner + 2 * number("ssm.group_count") * state)
    recurrent = max(0, layers - len(attending)) if inner else 0
    f16, f32 = 2, 4
    return Shape(
        trained_context=number("context_length"),
        kv_bytes_per_token=sum(attending) * (key + value) * f16,
        state_bytes=recurrent * (convolution + inner * state) * f32,
    )


Reader = Callable[[str], str | None]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


def available_bytes(read: Reader = _read) -> int | None:
    """Return how much memory a new process could take: MemAvailable, or less under a cgroup limit.
    read: text of a file, None when there is none. None where the system has no /proc."""
    meminfo = read("/proc/meminfo")
    if meminfo is None:
        try:
            # No MemAvailable (macOS): half of the machine is a guess that leaves it usable.
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (ValueError, OSError):
            return None
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    free = int(fields.get("MemAvailable", fields.get("MemFree", "0 kB")).split()[0]) * 1024
    for folder, limit_name, used_name, cache_name in _cgroups(read, "memory"):
        limit, used = read(f"{folder}/{limit_name}"), read(f"{folder}/{used_name}")
        if limit is None or used is None or not limit.strip().isdigit():
            continue
        stat = dict(line.split(None, 1) for line in (read(f"{folder}/memory.stat") or "").splitlines())
        reclaimable = int(stat.get(cache_name, "0"))
        free = min(free, max(0, int(limit) - int(used) + reclaimable))
    return free


def total_bytes(read: Reader = _read) -> int | None:
    """Return the memory of this machine, or less under a cgroup limit; None where nothing says. Unlike
    `available_bytes` it stays the same from one call to the next."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    limits = (read(f"{folder}/{name}") or "" for folder, name, *_ in _cgroups(read, "memory"))
    return min([total, *(int(limit) for limit in limits if limit.strip().isdigit())])


def _cgroups(read: Reader, controller: str) -> list[tuple[str, str, str, str]]:
    """Folders of this process's cgroup and its parents, with the names of the limit, the usage and the
    reclaimable cache of version 2 or 1 (Linux Documentation/admin-guide/cgroup-v2.rst)."""
    two = ("memory.max", "memory.current", "inactive_file")
    one = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    found = []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, names = "/sys/fs/cgroup", two
        elif controller in controllers.split(","):
            root, names = f"/sys/fs/cgroup/{controllers}", one
        else:
            continue
        # In a container the path may be the host's and not exist here; then the root still holds the limit.
        parts = [part for part in path.split("/") if part]
        found += [("/".join([root, *parts[:depth]]), *names) for depth in range(len(parts), -1, -1)]
    return found


def threads(read: Reader = _read) -> int:
    """Return how many threads compute: the CPUs we may run on, no more than the cgroup's quota, and of more
    than four only the physical cores (as llama.cpp's own default: a second thread on a core only spins)."""
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except AttributeError:
        return max(1, (os.cpu_count() or 2) // 2)
    count = len(allowed)
    if count > 4:
        siblings = (
            read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in allowed
        )
        count = len(
            {found if found is not None else str(cpu) for cpu, found in zip(allowed, siblings, strict=True)}
        )
    quota = cpu_quota(read)
    return max(1, count if quota is None else min(count, int(quota)))


def cpu_quota(read: Reader = _read) -> float | None:
    """Return the CPUs the cgroup lets us use at once (2.5 = two and a half), or None without a limit."""
    quotas = []
    for folder, *_ in _cgroups(read, "cpu"):
        pair = (read(f"{folder}/cpu.max") or "").split()
        if len(pair) != 2:
            old = read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")
            pair = [text.strip() for text in old if text is not None]
        if len(pair) == 2 and pair[0].isdigit() and int(pair[1]) > 0:
            quotas.append(int(pair[0]) / int(pair[1]))
    return min(quotas, default=None)
