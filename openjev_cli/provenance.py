"""What produced an answer: model, projector, adapter, engine, machine, argv, template, wording, settings.

The answer cache keys on it, and an answer set's lock keeps it to say later what has changed. It reads files
and the machine; it never asks the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openjev_cli import models, profiles, prompt, record
from openjev_cli.config import Config
from openjev_cli.engine.facts import Facts

# Options that say where something is, or what the machine's memory allowed; none of them moves an answer.
_NO_PART_OF_AN_ANSWER = (
    *("--model", "--mmproj", "--lora", "--host", "--log-colors"),
    *("--cache-ram", "--ctx-checkpoints", "--exit-idle-seconds", "--sleep-idle-seconds"),
)
# Settings that decide what the model reads, or how.
_SETTINGS = ("compact_json", "prime_shared_prefix", "prime_repeated_state", "cache")


@dataclass(frozen=True)
class Provenance:
    """Each value is a short text; None where nothing is known (`--connect`). backend: cpu, cuda, ...

    model: its name. build: the key of the build, or what stands for an unknown one. patches: their digest.
    cpu: the features the engine may use. template: digest of the chat template. wording: of openjev's frame.
    """

    model: str
    model_sha256: str | None
    projector_sha256: str | None
    adapter_sha256: str | None
    release: str
    build: str
    patches: str
    backend: str
    cpu: str
    machine: str
    argv: tuple[str, ...]
    template: str
    wording: str
    settings: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in a lock."""
        return {
            "model": self.model,
            "model_sha256": self.model_sha256,
            "projector_sha256": self.projector_sha256,
            "adapter_sha256": self.adapter_sha256,
            "release": self.release,
            "build": self.build,
            "patches": self.patches,
            "backend": self.backend,
            "cpu": self.cpu,
            "machine": self.machine,
            "argv": " ".join(self.argv),
            "template": self.template,
            "wording": self.wording,
            "settings": dict(self.settings),
        }

    def with_settings(self, **more: str) -> Provenance:
        """Return it with settings that were used, of those that usually are not."""
        return replace(self, settings=(*self.settings, *more.items()))

    def key(self) -> bytes:
        """Return what the answer cache puts before every key: everything but names of things."""
        parts = {k: v for k, v in self.to_json().items() if k not in ("model", "machine", "settings")}
        return json.dumps(parts, sort_keys=True).encode()


def of_running(
    running: record.Running,
    model: models.Model,
    config: Config,
    readout: profiles.Readout | None,
    facts: Facts,
) -> Provenance:
    """Return the provenance of answers of a managed server. readout: how options are read; None when it makes its
    own prompts."""
    build = _build_facts(Path(str(running.facts.get("binary") or "")))
    cpu, machine = cpu_features()
    backend = str(build.get("backend") or "cpu").lower()
    return Provenance(
        model=model.name,
        model_sha256=models.digest(model, config),
        projector_sha256=_digest_of(model.mmproj, config),
        adapter_sha256=model.readout.adapter.sha256 if model.readout.adapter else None,
        release=str(build.get("llama_cpp") or facts.build),
        build=str(build.get("key") or build["identity"]),
        patches=str(build.get("patch_set_sha256") or "none"),
        backend=backend,
        cpu=cpu,
        machine=machine,
        argv=relevant(running.argv),
        template=facts.template,
        wording=wording(readout),
        settings=settings(config, readout),
    )


def of_connected(address: str, config: Config, readout: profiles.Readout | None, facts: Facts) -> Provenance:
    """Return what is known of an engine that somebody else runs: what it says of itself. readout: as above."""
    cpu, machine = cpu_features()
    return Provenance(
        model=address,
        model_sha256=None,
        projector_sha256=None,
        adapter_sha256=None,
        release=facts.build,
        build=facts.build,
        patches="unknown",
        backend="unknown",
        cpu=cpu,
        machine=machine,
        argv=(),
        template=facts.template,
        wording=wording(readout),
        settings=settings(config, readout),
    )


def settings(config: Config, readout: profiles.Readout | None) -> tuple[tuple[str, str], ...]:
    """Return the settings that belong to an answer, as text."""
    shown = tuple((name, config.shown(name)) for name in _SETTINGS)
    if readout is None:
        return shown
    return (*shown, ("readout", readout.kind), ("prior", f"{readout.prior:g}"))


def relevant(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a server without those that cannot move an answer."""
    kept: list[str] = []
    is_value_of_dropped = False
    for word in argv:
        if word.startswith("--"):
            is_value_of_dropped = word in _NO_PART_OF_AN_ANSWER
        if not is_value_of_dropped:
            kept.append(word)
    return tuple(kept)


def wording(readout: profiles.Readout | None) -> str:
    """Return a digest of what openjev itself writes round states, questions and options; "none" for nothing."""
    if readout is None:
        return "none"
    replies: tuple[str, ...] = (prompt.REPLY_OPTION, prompt.REPLY_LEVEL)
    if readout.kind == "words":
        replies = (prompt.BULLET, prompt.REPLY_OPTION_WORDS, prompt.REPLY_LEVEL_WORDS, prompt.ANSWER_WORDS)
    words = (prompt.ASK, prompt.OPTIONS, prompt.LEVELS, *replies)
    stateless = (prompt.NO_STATE,) if readout.prior else ()
    return record.digest(json.dumps([*words, prompt.STATE_TO_QUESTION, prompt.LEVELS_DESCENDING, *stateless]))


def cpu_features() -> tuple[str, str]:
    """Return (digest of the instruction sets, name) of this machine's processor."""
    import platform

    name = platform.machine()
    features = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            title, _, value = line.partition(":")
            if title.strip() == "model name":
                name = value.strip()
            elif title.strip() in ("flags", "Features"):
                features = " ".join(sorted(value.split()))
                break
    except OSError:
        features = platform.processor()
    return record.digest(f"{platform.machine()} {features}"), name


def _digest_of(path: Path | None, config: Config) -> str | None:
    if path is None:
        return None
    return models.digest(models.Model(path, path.stem, 0, 0), config)


def _build_facts(binary: Path) -> Mapping[str, Any]:
    """Return what build.json says, and an `identity` for a binary without one."""
    try:
        found = binary.stat()
        identity = record.digest(f"{binary}:{found.st_size}:{found.st_mtime_ns}")
    except OSError:
        identity = "gone"
    try:
        facts = json.loads((binary.parent / "build.json").read_bytes())
    except (OSError, ValueError):
        facts = None
    return {**(facts if isinstance(facts, dict) else {}), "identity": identity}
