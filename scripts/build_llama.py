"""Build, prove and cache the llama-server openjev runs: what scripts/build-llama.sh calls.

Holds what is built, under which key, in which order variants are tried, and the command. The machine's tools
are llama_tools.py, the source and its patches llama_source.py. Standard library only.

Everything lies in <cache>/llama:
    source/        the archive, and a git store of every source tree that was built
    work/<tree>/   source, objects and log of one compiler + options; later builds only redo what changed
    <key>/         a finished build: llama-server and build.json
    current, stock links to the finished builds in use
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from llama_source import LLAMA_CPP, Patch, Store, file_sha256, read_patches, source_tree
from llama_tools import (
    BuildError,
    Compiler,
    Progress,
    find_compiler,
    find_tools,
    first_fault,
    job_count,
    pick_backend,
)

EXIT_FAILED = 4
EXIT_INTERRUPTED = 130
PROOF_NOT_RUN = 2  # exit code of a proof that showed nothing either way
MIN_FREE_BYTES = 1_500_000_000

HERE = Path(__file__).resolve().parent

# ggml turns on AVX2 and its friends by default when it does not build for the machine at hand.
X86_OFF = {
    f"GGML_{name}": "OFF"
    for name in ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "AVX512", "AMX_TILE", "AMX_INT8", "AMX_BF16")
}
VARIANTS: dict[str, dict[str, str]] = {
    "native": {"GGML_NATIVE": "ON"},
    # The macro guards every line of the AMX code; -mno-amx would be overridden by -march=native behind it.
    "no-amx": {"GGML_NATIVE": "ON", "CMAKE_C_FLAGS": "-U__AMX_INT8__", "CMAKE_CXX_FLAGS": "-U__AMX_INT8__"},
    "avx2": {
        **X86_OFF,
        "GGML_NATIVE": "OFF",
        **{f"GGML_{name}": "ON" for name in ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")},
    },
    "generic": {**X86_OFF, "GGML_NATIVE": "OFF"},
}
BACKENDS: dict[str, dict[str, str]] = {
    "cpu": {"GGML_METAL": "OFF"},
    "cuda": {"GGML_CUDA": "ON", "GGML_METAL": "OFF"},
    "metal": {"GGML_METAL": "ON", "GGML_METAL_EMBED_LIBRARY": "ON"},
    "vulkan": {"GGML_VULKAN": "ON", "GGML_METAL": "OFF"},
}
COMMON_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "MTMD_VIDEO": "OFF",  # else a picture that cannot be decoded is handed to the ffmpeg in PATH
    "LLAMA_BUILD_NUMBER": LLAMA_CPP.removeprefix("b"),
    "LLAMA_BUILD_COMMIT": "openjev",
    "GGML_CCACHE": "OFF",
}
SANITIZE_FLAGS = "-fsanitize=address -fno-omit-frame-pointer -g1"


class CompileError(BuildError):
    """The sources did not configure or compile."""


class ProofError(BuildError):
    """The binary was built and does not do what it should."""


@dataclass(frozen=True)
class Plan:
    """Everything a binary depends on. Equal plans give equal binaries; `key` names their folder."""

    source: str
    kind: str
    patches: tuple[Patch, ...]
    compiler: Compiler
    backend: str
    variant: str
    sanitize: bool

    @property
    def options(self) -> dict[str, str]:
        return cmake_options(self.backend, self.variant, sanitize=self.sanitize)

    @property
    def tree_key(self) -> str:
        """Names the folder with the objects, which both kinds and all patch sets share."""
        parts = [self.source, self.compiler.cc, self.compiler.cxx, self.compiler.version]
        return digest([*parts, *self.compiler.cpu_flags, *map("=".join, sorted(self.options.items()))])[:16]

    @property
    def patch_set_sha256(self) -> str:
        return digest([patch.sha256 for patch in self.patches])

    @property
    def key(self) -> str:
        return digest([self.tree_key, self.kind, self.patch_set_sha256])[:16]

    def record(self, binary_sha256: str) -> dict[str, Any]:
        """Return what build.json says about the binary."""
        return {
            "llama_cpp": LLAMA_CPP,
            "kind": self.kind,
            "patches": [patch.name for patch in self.patches],
            "patch_set_sha256": self.patch_set_sha256,
            "source_sha256": self.source,
            "compiler": self.compiler.version,
            "cpu_flags": list(self.compiler.cpu_flags) if self.variant in ("native", "no-amx") else [],
            "backend": self.backend,
            "variant": self.variant,
            "sanitize": self.sanitize,
            "options": self.options,
            "key": self.key,
            "binary_sha256": binary_sha256,
        }


# --- decisions without effects ---


def digest(parts: Sequence[str]) -> str:
    """Return the SHA-256 of the parts, in order; no two lists of parts share their bytes."""
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def variants(compiler: Compiler, machine: str) -> list[str]:
    """Return the variants to try on this machine: fastest first, each next one uses fewer CPU features."""
    if machine not in ("x86_64", "AMD64"):
        return ["native", "generic"]
    return [
        "native",
        *(["no-amx"] if compiler.has_amx else []),
        *(["avx2"] if compiler.has_avx2 else []),
        "generic",
    ]


def cmake_options(backend: str, variant: str, *, sanitize: bool) -> dict[str, str]:
    """Return CMake's -D options of a build."""
    options = {**COMMON_OPTIONS, **BACKENDS[backend], **VARIANTS[variant]}
    if sanitize:
        for name in ("CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"):
            options[name] = f"{options.get(name, '')} {SANITIZE_FLAGS}".strip()
        options["CMAKE_EXE_LINKER_FLAGS"] = "-fsanitize=address"
    return options


def stock_patches(patches: Sequence[Patch]) -> tuple[Patch, ...]:
    """Return the patches of a stock engine: 0001 alone, without which the base is wrong on some CPUs."""
    return tuple(patch for patch in patches if patch.name.startswith("0001-"))


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return openjev's cache folder: OPENJEV_CACHE_DIR, else below XDG_CACHE_HOME, else below ~/.cache.

    A relative XDG_CACHE_HOME counts as unset, as its specification demands; so does anything empty.
    """
    own = environ.get("OPENJEV_CACHE_DIR")
    if own:
        return Path(own).expanduser().absolute()
    xdg = Path(environ.get("XDG_CACHE_HOME") or ".")
    return (xdg if xdg.is_absolute() else Path("~/.cache").expanduser()) / "openjev"


# --- building ---


class Builder:
    """Builds plans, proves the binaries and keeps them. What it works with comes as arguments."""

    def __init__(
        self, root: Path, store: Store, base: str, proof: list[str], jobs: int, progress: Progress
    ) -> None:
        self.root = root
        self.store = store
        self.base = base
        self.proof = proof
        self.jobs = jobs
        self.progress = progress
        self.tools: tuple[str, str] | None = None

    def finished(self, plan: Plan) -> Path | None:
        """Return the binary of a plan that was built and proven before, and is still whole."""
        binary = self.root / plan.key / "llama-server"
        try:
            record = json.loads((binary.parent / "build.json").read_text())
            return binary if record["binary_sha256"] == file_sha256(binary) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def failed_before(self, plan: Plan) -> str | None:
        """Return why this very plan failed its proof before."""
        try:
            return (self.root / "failed" / plan.key).read_text().strip()
        except OSError:
            return None

    def build(self, plan: Plan) -> Path:
        """Return the proven binary of a plan. Raises CompileError or ProofError."""
        work = self.root / "work" / plan.tree_key
        work.mkdir(parents=True, exist_ok=True)
        self.store.check_out(self.store.patch(self.base, plan.patches), work / "source")
        started = time.monotonic()
        names = f"{plan.kind}, {plan.backend}, {plan.variant}" + (
            ", AddressSanitizer" if plan.sanitize else ""
        )
        self.progress.note(f"building llama-server {LLAMA_CPP} ({names}; {self.jobs} at a time)")
        self.compile(plan, work)
        built = work / "build" / "bin" / "llama-server"
        self.progress.note(f"built in {time.monotonic() - started:.0f} s, proving it")
        self.prove(plan, built)
        return self.keep(plan, built)

    def compile(self, plan: Plan, work: Path) -> None:
        if self.tools is None:
            self.tools = find_tools(self.root, self.progress)
        cmake, ninja = self.tools
        log = work / "build.log"
        log.write_text("")
        configure = [cmake, "-S", work / "source", "-B", work / "build", "-G", "Ninja"]
        options = {
            **plan.options,
            "CMAKE_MAKE_PROGRAM": ninja,
            "CMAKE_C_COMPILER": plan.compiler.cc,
            "CMAKE_CXX_COMPILER": plan.compiler.cxx,
            "CMAKE_PROJECT_INCLUDE": str(HERE / "unity.cmake"),
        }
        if plan.kind == "patched":
            # Not among the plan's options: the objects of all patch sets lie in one folder.
            options["OPENJEV_PATCH_SET"] = plan.patch_set_sha256[:16]
        self.step([*map(str, configure), *(f"-D{name}={value}" for name, value in options.items())], log)
        self.step([ninja, "-C", str(work / "build"), "-j", str(self.jobs), "llama-server"], log)

    def step(self, command: list[str], log: Path) -> None:
        """Run one step of a build, showing its progress; its whole output goes to the log."""
        clean = {name: value for name, value in os.environ.items() if name not in BUILD_VARIABLES}
        clean["NINJA_STATUS"] = "[%f/%t] "
        output: list[str] = []
        with log.open("a", errors="replace") as file:
            file.write(f"$ {shlex.join(command)}\n")
            # A group of its own, so that an interruption takes the compilers along.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", env=clean, start_new_session=True,
            )  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    file.write(line)
                    output.append(line.rstrip())
                    if line.startswith("["):
                        self.progress.update(line.rstrip(), time.monotonic())
                code = process.wait()
            except BaseException:
                stop_group(process)
                raise
        self.progress.close()
        if code != 0:
            fault = first_fault(output)
            if "No space left on device" in fault:
                raise BuildError(*no_space(self.root))
            raise CompileError(
                f"llama-server did not compile: {fault}", f"see {log}; then run scripts/build-llama.sh again"
            )

    def prove(self, plan: Plan, binary: Path) -> None:
        process = subprocess.Popen(
            [*self.proof, binary], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said = process.communicate()[0].strip().splitlines()[-1:]
        except BaseException:
            stop_group(process)
            raise
        if process.returncode == 0:
            self.progress.note("".join(said) or "proven")
            return
        if process.returncode == PROOF_NOT_RUN:
            raise BuildError(f"llama-server could not be proven ({''.join(said)})", "run this again")
        reason = "".join(said) or f"its proof exits with {process.returncode}"
        # What was kept under this key before lies just as much.
        shutil.rmtree(self.root / plan.key, ignore_errors=True)
        note = self.root / "failed" / plan.key
        note.parent.mkdir(exist_ok=True)
        note.write_text(reason + "\n")
        raise ProofError(reason, "report this with the output of: scripts/build-llama.sh --retry")

    def keep(self, plan: Plan, built: Path) -> Path:
        """Move a proven binary to its place: the folder appears whole or not at all."""
        target = self.root / plan.key
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            shutil.copy2(built, scratch / "llama-server")
            record = plan.record(file_sha256(scratch / "llama-server"))
            (scratch / "build.json").write_text(json.dumps(record, indent=2) + "\n")
            scratch.chmod(0o755)
            if target.exists():  # damaged, or built anew with --retry
                target.rename(scratch / "old")
            scratch.rename(target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        shutil.rmtree(target / "old", ignore_errors=True)
        (self.root / "failed" / plan.key).unlink(missing_ok=True)
        return target / "llama-server"

    def first_proven(self, plans: Sequence[Plan], *, retry: bool) -> tuple[Plan, Path]:
        """Return the first plan whose binary is proven; a failing one gives way to the next, safer one."""
        fault: BuildError | None = None
        for plan in plans:
            binary = None if retry else self.finished(plan)
            if binary:
                return plan, binary
            before = None if retry else self.failed_before(plan)
            if before:
                self.progress.note(
                    f"skipping {plan.backend} {plan.variant}: {before} (--retry builds it again)"
                )
                fault = ProofError(before, "build it again: scripts/build-llama.sh --retry")
                continue
            try:
                return plan, self.build(plan)
            except (ProofError, CompileError) as exc:
                fault = exc
                self.progress.note(f"{plan.backend} {plan.variant}: {exc}")
                # Other CPU flags do not mend a source that does not compile; another backend may.
                if isinstance(exc, CompileError) and all(other.backend == plan.backend for other in plans):
                    raise
        assert fault is not None
        if isinstance(fault, ProofError):
            raise ProofError(f"no variant of llama-server works on this machine: {fault}", fault.next_step)
        raise fault

    def point(self, name: str, binary: Path) -> None:
        """Make the link `name` lead to the build of this binary, at once."""
        scratch = self.root / f".{name}.{os.getpid()}"
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(binary.parent.name)
        scratch.replace(self.root / name)


# Variables that would change what CMake builds without being part of the key.
BUILD_VARIABLES = {
    *(
        "CFLAGS",
        "CXXFLAGS",
        "CPPFLAGS",
        "LDFLAGS",
        "CMAKE_GENERATOR",
        "CMAKE_BUILD_TYPE",
        "CMAKE_TOOLCHAIN_FILE",
    ),
    *("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER", "HF_UI_VERSION", "HF_WEBUI_VERSION"),
}


def stop_group(process: subprocess.Popen[str]) -> None:
    """End a process and what it started in its own group, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def no_space(root: Path) -> tuple[str, str]:
    free = shutil.disk_usage(root).free // 1_000_000
    return (
        f"not enough disk space in {root} ({free} MB free, {MIN_FREE_BYTES // 1_000_000} MB needed)",
        "free some, or set OPENJEV_CACHE_DIR to a folder on a larger disk",
    )


@contextmanager
def locked(root: Path, progress: Progress) -> Iterator[None]:
    """Hold the build lock: two builds at once would write the same trees."""
    with (root / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note("another build is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- command ---


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/build-llama.sh",
        description=f"""Build llama-server from llama.cpp {LLAMA_CPP} with openjev's patches, prove it,
        and print its path. What was built before with the same source, patches, compiler and CPU is only
        looked up.""",
        epilog="""environment: OPENJEV_CACHE_DIR (where to build and keep it), LLAMA_CPP_SOURCE (a llama.cpp
        source folder instead of the package index), CC and CXX, PYTHON""",
    )

    def option(*names: str, help: str, **more: Any) -> None:
        parser.add_argument(*names, help=help, **more)

    option(
        "--stock",
        action="store_true",
        help="build the stock engine (patch 0001 only) first and print its path; the patched one follows",
    )
    option("--backend", choices=["auto", *BACKENDS], default="auto", help="default: what is there")
    option("--variant", choices=list(VARIANTS), help="build this one only, for example generic")
    option("--sanitize", action="store_true", help="build with AddressSanitizer")
    option("--retry", action="store_true", help="build and prove again, whatever is cached")
    option("--jobs", "-j", type=int, metavar="N", help="compilations at once")
    option("--patches", type=Path, metavar="DIR", help="other patches than those of this checkout")
    option("--proof", metavar="COMMAND", help="proves a binary, its last argument (default: prove-llama.py)")
    return parser.parse_args(arguments)


def plan_builds(
    args: argparse.Namespace,
    kind: str,
    patches: tuple[Patch, ...],
    source: str,
    compiler: Compiler,
    backend: str,
) -> list[Plan]:
    """Return the plans of one kind, in the order to try them."""
    names = [args.variant] if args.variant else variants(compiler, platform.machine())
    pairs = [(backend, name) for name in names]
    if args.backend == "auto" and backend != "cpu":
        # A GPU whose toolchain is only half there must not keep anybody from a binary that works.
        pairs = [(backend, names[0]), *(("cpu", name) for name in names)]
    return [Plan(source, kind, patches, compiler, *pair, args.sanitize) for pair in pairs]


def build_all(args: argparse.Namespace, environ: Mapping[str, str], progress: Progress) -> Path:
    """Build what was asked for and return the path of the binary to print."""
    root = cache_root(environ) / "llama"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BuildError(
            f"{root} cannot be used: {exc.strerror}", "set OPENJEV_CACHE_DIR to a folder you may write to"
        ) from exc
    compiler = find_compiler(environ)
    patches = read_patches(args.patches or HERE.parent / "patches")
    backend = pick_backend(environ) if args.backend == "auto" else args.backend
    with locked(root, progress):
        store = Store(root / "source" / "store")
        if shutil.disk_usage(root).free < MIN_FREE_BYTES:
            raise BuildError(*no_space(root))
        base, source = source_tree(store, root, environ, progress)
        proof = shlex.split(args.proof) if args.proof else [sys.executable, str(HERE / "prove-llama.py")]
        builder = Builder(root, store, base, proof, args.jobs or job_count(), progress)
        kinds = {"stock": stock_patches(patches)} if args.stock else {}
        kinds["patched"] = patches
        binaries: dict[str, Path] = {}
        for kind, chosen in kinds.items():
            plans = plan_builds(args, kind, chosen, source, compiler, backend)
            plan, binaries[kind] = builder.first_proven(plans, retry=args.retry)
            # A sanitized or deliberately slower build is for whoever asked for it, not what `ask` then runs.
            if not args.sanitize and not args.variant:
                builder.point("current" if kind == "patched" else "stock", binaries[kind])
            if plan is not plans[0]:
                progress.note(f"note: using the safer {plan.backend} {plan.variant} build")
        return binaries["stock" if args.stock else "patched"]


def main(arguments: Sequence[str]) -> int:
    args = parse_arguments(arguments)
    progress = Progress(sys.stderr, is_terminal=sys.stderr.isatty())
    try:
        binary = build_all(args, os.environ, progress)
    except BuildError as exc:
        progress.note(f"error: {exc}\nnext:  {exc.next_step}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        progress.note(
            "error: interrupted\nnext:  run scripts/build-llama.sh again; it goes on where it stopped"
        )
        return EXIT_INTERRUPTED
    except OSError as exc:
        root = cache_root(os.environ)
        message, step = (str(exc), f"check {root}") if exc.errno != 28 else no_space(root)
        progress.note(f"error: {message}\nnext:  {step}")
        return EXIT_FAILED
    print(binary)
    return 0


def stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # A build that is told to stop takes its compilers along, as on Ctrl-C.
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main(sys.argv[1:]))
