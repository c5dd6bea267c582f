"""Findings about this machine and this installation: what was looked at, how it is, and what mends it.

Each check looks at one thing and never raises for it. The last ones ask the engine, so a server may be started;
it stays, as after any question. Nothing else is changed, and nothing is fetched except `tiny` by asking it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from openjev_cli import (
    answers,
    binary,
    capacity,
    decide,
    errors,
    models,
    profiles,
    questions,
    record,
    request,
    runtime,
    server,
    state,
    timing,
)
from openjev_cli.config import Config

GIB = 1 << 30
# What the state of the known question is about is plain to any model that judges at all.
_STATE = "Hello, I was charged twice for my order last week. Please give me my money back."
_QUESTIONS = """\
refund: Does the customer ask for a refund?
team: Which team should handle this? [billing: Payments and refunds | technical: Bugs and errors | sales: New orders]
urgency: How urgent is it? [Routine < This week < Today < Blocked right now]
spam: Is it spam?
"""
# P(yes) of `refund` and P(billing) by what answers, measured with the pinned files on x86-64.
_EXPECTED: dict[str, dict[str, float]] = {
    "SmolLM2-135M-Instruct-Q4_1": {"refund": 0.352, "team": 0.206},
    "SmolLM2-135M-Instruct-Q4_1+words-2": {"refund": 0.997, "team": 0.999},
}
# As between two backends in an answer set: kernels round differently.
_TOLERANCE = 0.05
# One request's questions against each alone: the settings of the engine make them the same sums.
_SAME = 1e-5
# A stock engine reads questions in whatever batches it likes.
_SAME_ON_STOCK = 0.02


@dataclass(frozen=True)
class Finding:
    """One check. level: "ok", "warning" (works, could be better) or "problem" (must be fixed). next_step: ""
    when there is nothing to do."""

    check: str
    level: str
    what: str
    next_step: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as an object of `--json`."""
        return {"check": self.check, "level": self.level, "what": self.what, "next": self.next_step}


def must_fix(findings: list[Finding]) -> bool:
    """Return whether something has to be mended before openjev works as it should."""
    return any(finding.level == "problem" for finding in findings)


def examine(settings: Config, environ: Mapping[str, str], report: Callable[[str], None]) -> Iterator[Finding]:
    """Yield the findings in the order in which things are needed. report: told about long steps."""
    yield _settings(settings)
    yield _cpu()
    if settings.connect is not None:
        yield from _answers(settings, environ, report)
        return
    found, about = _binary(settings, environ)
    yield about
    yield _compiler(environ, is_needed=found is None)
    folder = _folder(environ)
    yield folder
    yield _disk(settings)
    yield from _files(settings)
    chosen, memory = _memory(settings)
    yield memory
    if found is None or chosen is None or folder.level == "problem":
        yield Finding("known question", "problem", "not asked: see above", "openjev doctor")
        return
    yield from _answers(settings, environ, report)


def _failed(check: str, exc: errors.OpenjevError) -> Finding:
    return Finding(check, "problem", "; ".join(exc.problems), exc.next_step)


def _settings(settings: Config) -> Finding:
    files = [str(path) for path in (settings.project_file, settings.user_file) if path and path.is_file()]
    changed = [key for key, source in settings.sources.items() if source.kind != "default"]
    what = f"read from {', '.join(files)}" if files else "no config file"
    return Finding("settings", "ok", what + (f"; set: {', '.join(changed)}" if changed else ""))


# The machine.

_TELLING_FEATURES = (
    *("sse4_2", "avx", "avx2", "f16c", "fma", "avx512f", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimddp", "i8mm", "sve", "bf16"),
)


def _cpu() -> Finding:
    known = cpu_flags()
    features = [name for name in _TELLING_FEATURES if name in known]
    quota = capacity.cpu_quota()
    limit = f", the cgroup allows {quota:g} CPUs" if quota is not None else ""
    what = (
        f"{capacity.threads()} of {os.cpu_count()} threads{limit}; {' '.join(features) or 'unknown features'}"
    )
    if known and "sse4_2" in known and "avx2" not in known:
        return Finding(
            "processor", "warning", f"{what}: without AVX2 prompts are read slowly", "-p tiny or fast"
        )
    return Finding("processor", "ok", what)


def cpu_flags() -> frozenset[str]:
    """Return the instruction sets the system lists; empty where it lists none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    listed = [line.partition(":") for line in lines]
    return next(
        (frozenset(value.split()) for name, _, value in listed if name.strip() in ("flags", "Features")),
        frozenset(),
    )


def _folder(environ: Mapping[str, str]) -> Finding:
    try:
        path = runtime.folder(environ)
    except errors.OpenjevError as exc:
        return _failed("socket folder", exc)
    return Finding("socket folder", "ok", f"{path}: ours alone")


def _disk(settings: Config) -> Finding:
    try:
        path = settings.cache_dir
    except errors.OpenjevError as exc:
        return _failed("disk", exc)
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    advice = "Set OPENJEV_CACHE_DIR to a folder that you can write to."
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding("disk", "problem", f"{there} cannot be written to", advice)
    stat = os.statvfs(there)
    free_bytes = stat.f_bavail * stat.f_frsize
    what = f"{capacity.gib(free_bytes)} free in {path}"
    if free_bytes < GIB:
        return Finding("disk", "warning", what, "Free some space, or set OPENJEV_CACHE_DIR to another disk.")
    return Finding("disk", "ok", what)


# The engine's program.


def _binary(settings: Config, environ: Mapping[str, str]) -> tuple[binary.Binary | None, Finding]:
    check = "llama-server"
    try:
        found = binary.find_binary(settings.llama_server, settings.known_cache_dir, environ)
        binary.options_of(found, runtime.folder(environ) / record.OPTIONS_FILE)
    except errors.OpenjevError as exc:
        return None, _failed(check, exc)
    except OSError as exc:
        return None, Finding(check, "problem", f"{exc.filename}: {exc.strerror}", "openjev server stop")
    release = f" {found.release}" if found.release else ""
    build = f", build {found.build[:12]}" if found.build else ""
    abilities = f", can {' '.join(sorted(found.abilities))}" if found.abilities else ""
    what = f"{found.path}: {found.kind}{release}{build}{_patches(found)}, {found.backend}{abilities}"
    if found.kind != "patched":
        faster = "scripts/build-llama.sh builds the one that answers many questions at once"
        return found, Finding(check, "warning", what, faster)
    return found, Finding(check, "ok", what)


def _patches(found: binary.Binary) -> str:
    """Which patches are in it, as its build script wrote down; "" where nothing is written."""
    import json

    try:
        names = json.loads((found.path.parent / "build.json").read_bytes())["patches"]
        numbers = [str(name).partition("-")[0] for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f", patches {' '.join(numbers)}" if numbers else ", no patches"


def _compiler(environ: Mapping[str, str], *, is_needed: bool) -> Finding:
    import shutil

    path = environ.get("PATH")
    names = [environ.get("CXX") or "", "c++", "g++", "clang++"]
    compiler = next((where for name in names if name and (where := shutil.which(name, path=path))), None)
    if compiler is not None:
        return Finding("compiler", "ok", compiler)
    if is_needed:
        install = "xcode-select --install" if sys.platform == "darwin" else "Install g++ or clang++"
        return Finding("compiler", "problem", "no C++ compiler to build llama-server with", install)
    return Finding("compiler", "ok", "none, and none is needed: llama-server is there")


# The models.


def _files(settings: Config) -> Iterator[Finding]:
    try:
        listed = models.installed(settings)
    except errors.OpenjevError as exc:
        yield _failed("model files", exc)
        return
    here = [found for found in listed if found.state != "absent"]
    for found in here:
        name = found.profile.name
        if found.state.endswith("fetched"):
            yield Finding(f"model {name}", "warning", found.state, f"openjev models pull {name}")
        elif not models.is_verified(found.path, found.pinned):
            error = models.missing_files_error(found.profile, settings, found.pinned)
            yield _failed(f"model {name}", error)
        else:
            yield _verified(found, settings)
    if not here:
        yield Finding(
            "model files", "warning", "none yet; a question fetches tiny", "openjev models pull fast"
        )


def _verified(found: models.Installed, settings: Config) -> Finding:
    check, projector = f"model {found.profile.name}", found.profile.projector
    what = f"{found.path.name}: sha256 {found.pinned.sha256[:12]} as pinned"
    if projector is None:
        return Finding(check, "ok", what)
    path = models.path_of(found.profile, settings, projector)
    if models.is_verified(path, projector):
        return Finding(check, "ok", f"{what}, sees images")
    damaged = "its projector is damaged" if path.exists() else "without its projector it sees no images"
    return Finding(check, "warning", f"{what}; {damaged}", f"openjev models pull {found.profile.name}")


def _memory(settings: Config) -> tuple[models.Model | None, Finding]:
    """Look at the model that would answer and whether it fits. Fetches nothing."""
    asks = "model"
    try:
        asks = models.described(settings)
        if (
            asks.startswith("profile tiny")
            and not models.path_of(profiles.PROFILES["tiny"], settings).exists()
        ):
            wanted = profiles.PROFILES["tiny"]
            path = models.path_of(wanted, settings)
            chosen = models.Model(path, wanted.title, wanted.weights.size_bytes, wanted.n_ctx, profile="tiny")
        else:
            chosen = models.resolve(settings)
        shape = capacity.read_shape(chosen.path)
    except errors.OpenjevError as exc:
        return None, _failed("memory", exc)
    weights_bytes = chosen.size_bytes + (chosen.mmproj.stat().st_size if chosen.mmproj else 0)
    available_bytes = capacity.available_bytes()
    plan = capacity.plan(
        n_ctx=chosen.n_ctx,
        slots=server.Spec.slots,
        weights_bytes=weights_bytes,
        shape=shape,
        available_bytes=available_bytes,
    )
    free = "" if available_bytes is None else f", {capacity.gib(available_bytes)} are free"
    what = f"{asks} takes {capacity.gib(plan.need_bytes)} with {plan.slots} x {plan.n_ctx} tokens{free}"
    if available_bytes is not None and plan.need_bytes > available_bytes:
        smaller = models.largest_below(weights_bytes, available_bytes)
        name = smaller.name if smaller else "tiny"
        return None, Finding("memory", "problem", what, f"openjev config set profile {name}")
    if plan.notice:
        return chosen, Finding("memory", "warning", f"{what}; {plan.notice}", "openjev server stop; -p fast")
    return chosen, Finding("memory", "ok", what)


# Asking.


def _answers(
    settings: Config, environ: Mapping[str, str], report: Callable[[str], None]
) -> Iterator[Finding]:
    asked = questions.load([questions.Source("doctor", _QUESTIONS.encode())])
    judged = state.from_text(_STATE)
    # What is expected was measured so, whatever the user made of the probabilities since.
    settings = replace(settings, calibration="off", readout=None, prior=None)
    try:
        with decide.Session(settings, environ, report) as session:
            first, first_s = _timed(session, judged, asked)
            yield _known_question(first)
            _, again_s = _timed(session, judged, asked)
        yield _times(first, first_s, again_s)
        report("asking the same questions together and alone, nothing cached")
        yield _together_and_alone(settings, environ, judged, asked)
    except errors.OpenjevError as exc:
        yield _failed("known question", exc)


def _timed(
    session: decide.Session, judged: state.State, asked: tuple[questions.Question, ...]
) -> tuple[answers.Decision, float]:
    began_at_s = time.perf_counter()
    decision = session.decide(request.Request(judged, asked), timing.Stages(began_at_s))
    return decision, time.perf_counter() - began_at_s


def _p(decision: answers.Decision) -> dict[str, dict[str, float]]:
    """Every probability, by question id and option."""
    return {one.id: dict(one.ranked) for one in decision.answers}


def _known_question(decision: answers.Decision) -> Finding:
    p = _p(decision)
    seen = {"refund": p["refund"]["yes"], "team": p["team"]["billing"]}
    shown = ", ".join(f"P({name}) = {value:.3f}" for name, value in seen.items())
    expected = _EXPECTED.get(decision.model)
    if expected is not None:
        off = max(abs(seen[name] - expected[name]) for name in expected)
        told = f"{decision.model}: {shown}, off by {off:.4f} at most"
        if off <= _TOLERANCE:
            return Finding("known question", "ok", told)
        wanted = ", ".join(f"{value:.3f}" for value in expected.values())
        mend = "openjev models verify; scripts/build-llama.sh"
        return Finding("known question", "problem", f"{told}: {wanted} was expected", mend)
    profile = next((each for each in profiles.PROFILES.values() if each.title == decision.model), None)
    if profile is None:
        return Finding("known question", "ok", f"{decision.model}: {shown} (no expectation for this model)")
    if seen["refund"] > 0.5 and seen["team"] > 0.5:
        return Finding("known question", "ok", f"{decision.model}: {shown}, both right")
    mend = f"openjev models verify {profile.name}; scripts/build-llama.sh"
    return Finding("known question", "problem", f"{decision.model}: {shown}, but both are plain", mend)


def _times(first: answers.Decision, first_s: float, again_s: float) -> Finding:
    started = first.timing.start_ms
    cold = f"{first_s * 1000:.0f} ms" + (
        f", {started:.0f} ms of them to start" if started else ", server was up"
    )
    return Finding("time", "ok", f"4 questions: first {cold}; again {again_s * 1000:.0f} ms")


def _together_and_alone(
    settings: Config,
    environ: Mapping[str, str],
    judged: state.State,
    asked: tuple[questions.Question, ...],
) -> Finding:
    with decide.Session(replace(settings, cache=False), environ) as session:
        together, _ = _timed(session, judged, asked)
        alone: dict[str, dict[str, float]] = {}
        for one in asked:
            alone.update(_p(_timed(session, judged, (one,))[0]))
    both = _p(together)
    off = max(abs(both[id][name] - alone[id][name]) for id in both for name in both[id])
    what = f"4 questions at once and each alone differ by {off:.1e} at most"
    if off <= _SAME:
        return Finding("batching", "ok", what)
    if off <= _SAME_ON_STOCK:
        return Finding(
            "batching", "warning", what, "scripts/build-llama.sh builds an engine where they do not"
        )
    return Finding(
        "batching", "problem", what, "scripts/build-llama.sh (this build computes batches wrongly)"
    )
