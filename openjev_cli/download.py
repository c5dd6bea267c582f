"""Getting one pinned file from a model hub: resumed, hashed while it is written, put in place in one step.

A file is kept as `.NAME.part` until all of it is there and has the pinned SHA-256; what a broken connection
or a kill leaves of it is gone on from. What the file is for, and who else fetches it, is up to the caller.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from openjev_cli import errors
from openjev_cli.wheels import Progress

if TYPE_CHECKING:
    import httpx

MB = 1_000_000
# Left free beside the file: the stamp, logs, other programs.
_SPARE_BYTES = 64 * MB


class Hub(NamedTuple):
    """A place models are published. address_variable, token_variables: what the hub's own clients read.
    path: of a file, with {repo}, {revision} and {name}."""

    title: str
    address: str
    address_variable: str
    token_variables: tuple[str, ...]
    path: str


HUBS: dict[str, Hub] = {
    "huggingface": Hub(
        "Hugging Face",
        "https://huggingface.co",
        "HF_ENDPOINT",
        ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        "/{repo}/resolve/{revision}/{name}",
    ),
    # Its revisions are its own: the same file is found by name, and proven by its digest.
    "modelscope": Hub(
        "ModelScope",
        "https://modelscope.cn",
        "MODELSCOPE_DOMAIN",
        ("MODELSCOPE_API_TOKEN",),
        "/models/{repo}/resolve/master/{name}",
    ),
}


class Wanted(NamedTuple):
    """One file of a hub. by_hand: how to get it without us, as the end of a sentence. token is never
    shown."""

    name: str
    url: str
    size_bytes: int
    sha256: str
    hub: Hub
    token: str | None
    by_hand: str


class Transfer(NamedTuple):
    """How far a file is. verb: "fetching", or "checking" while what is kept of it is read again."""

    verb: str
    name: str
    done_bytes: int
    size_bytes: int
    bytes_per_s: float
    left_s: float | None


OnTransfer = Callable[[Transfer], None]


class Patience(NamedTuple):
    """tries: in a row that gain next to nothing. waits double up to most_s; a server that says how long to
    wait is obeyed up to most_s."""

    tries: int = 5
    first_wait_s: float = 1.0
    most_s: float = 60.0
    connect_s: float = 15.0
    silent_s: float = 60.0
    gain_bytes: int = MB


def wanted(
    source: str,
    env: Mapping[str, str],
    *,
    repo: str,
    revision: str,
    name: str,
    size_bytes: int,
    sha256: str,
    destination: Path,
) -> Wanted:
    """Return what to fetch from the hub `source`, with the user's token. Raises InputError: a bad token."""
    hub = HUBS[source]
    address = env.get(hub.address_variable, "").strip().rstrip("/") or hub.address
    if "://" not in address:
        address = f"https://{address}"
    url = address + hub.path.format(repo=repo, revision=revision, name=name)
    by_hand = (
        f"put {name} ({size_bytes} bytes) of the hub repository {repo} @ {revision[:12]} at {destination}"
    )
    return Wanted(name, url, size_bytes, sha256, hub, _token(hub, env, url), by_hand)


def _token(hub: Hub, env: Mapping[str, str], url: str) -> str | None:
    for variable in hub.token_variables:
        token = env.get(variable, "").strip()
        if not token:
            continue
        if not token.isascii() or not token.isprintable() or " " in token:
            # httpx would quote the header in its error.
            raise errors.InputError(
                f"{variable} holds characters that no token has (it is not shown here)",
                next_step=f"Set {variable} to the token alone, or unset it.",
            )
        host = url.split("://", 1)[-1].split("/", 1)[0].rsplit(":", 1)[0]
        # In the clear only to this very machine.
        return token if url.startswith("https://") or host in ("localhost", "127.0.0.1", "[::1]") else None
    return None


def part_path(destination: Path) -> Path:
    """Where a file is kept until all of it is there."""
    return destination.with_name(f".{destination.name}.part")


def fetch(
    file: Wanted,
    destination: Path,
    *,
    report: Progress,
    on_transfer: OnTransfer | None = None,
    patience: Patience | None = None,
) -> None:
    """Put the file at `destination`, in one step, once its size and SHA-256 are the pinned ones.

    The caller holds a lock: only one call at a time per folder. Raises ModelError (what was fetched so far is
    kept, except where it is damaged), or OSError for the disk.
    """
    part = part_path(destination)
    patience = patience or Patience()
    for is_last in (False, True):
        try:
            with part.open("a+b") as sink:
                one = _Fetch(file, sink, report, _Meter(file, on_transfer), patience, may_resume=not is_last)
                kept_bytes = one.read_what_is_kept()
                require_space(part.parent, file.size_bytes - kept_bytes)
                one.run()
                sink.flush()
                os.fsync(sink.fileno())  # or a power cut leaves a renamed file full of zeros
        finally:
            with suppress(OSError):
                if part.stat().st_size == 0:
                    part.unlink()
        if one.seen.hexdigest() == file.sha256:
            part.replace(destination)
            _sync_folder(part.parent)
            return
        part.unlink()
        # The hub's own bytes are to blame only when they came in one piece.
        if is_last or not one.was_resumed:
            raise errors.ModelError(
                f"{file.name} as fetched from {file.hub.title} is damaged: its SHA-256 is not the pinned one",
                next_step="Repeat; if it stays so, check memory, disk and proxy, or use another --source.",
            )
        report(f"what was kept of {file.name} is damaged: fetching all of it again")
    raise AssertionError("the last round returns or raises")


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise ModelError with both numbers if the folder's disk has no room for that much and a little more."""
    needed_bytes += _SPARE_BYTES if needed_bytes else 0
    stat = os.statvfs(folder)
    free_bytes = stat.f_bavail * stat.f_frsize
    if free_bytes < needed_bytes:
        raise errors.ModelError(
            f"not enough disk space in {folder}: {needed_bytes // MB} MB are needed,"
            f" {free_bytes // MB} MB are free",
            next_step="Free some space, or set OPENJEV_CACHE_DIR to a folder on another disk.",
        )


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _Meter:
    """Tells how far a file is, five times a second at most, with the rate of the last seconds."""

    _WINDOW_S = 5.0
    _EVERY_S = 0.2

    def __init__(self, file: Wanted, on_transfer: OnTransfer | None) -> None:
        self._file = file
        self._tell = on_transfer
        self._verb = ""
        self._told_at_s = 0.0
        self._points: list[tuple[float, int]] = []

    def at(self, verb: str, done_bytes: int) -> None:
        if self._tell is None:
            return
        now_s = time.monotonic()
        is_end = done_bytes == self._file.size_bytes
        if verb == self._verb and not is_end and now_s - self._told_at_s < self._EVERY_S:
            return
        if verb != self._verb:
            self._verb, self._points = verb, []
        self._told_at_s = now_s
        self._points = [each for each in self._points if now_s - each[0] <= self._WINDOW_S]
        self._points.append((now_s, done_bytes))
        first_s, first_bytes = self._points[0]
        rate = (done_bytes - first_bytes) / (now_s - first_s) if now_s > first_s else 0.0
        left_s = (self._file.size_bytes - done_bytes) / rate if rate > 0 else None
        self._tell(Transfer(verb, self._file.name, done_bytes, self._file.size_bytes, rate, left_s))


class _Trouble(Exception):
    """This try did not get the rest; the next one may. wait_s: what the server asked for, or None."""

    def __init__(self, reason: str, wait_s: float | None = None, *, is_unreachable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_s = wait_s
        self.is_unreachable = is_unreachable


class _Fetch:
    """One file on its way. seen: the hash of what `sink` holds; done_bytes: how much that is."""

    def __init__(
        self,
        file: Wanted,
        sink: IO[bytes],
        report: Progress,
        meter: _Meter,
        patience: Patience,
        *,
        may_resume: bool,
    ) -> None:
        import hashlib

        self._file = file
        self._sink = sink
        self._report = report
        self._meter = meter
        self._patience = patience
        self.seen = hashlib.sha256()
        self.done_bytes = 0
        self.was_resumed = False
        self._can_resume = may_resume

    def read_what_is_kept(self) -> int:
        """Hash what an earlier call left. Returns how many bytes that were."""
        self._sink.seek(0, os.SEEK_END)
        if self._sink.tell() > self._file.size_bytes:
            self._sink.truncate(0)
        self._sink.seek(0)
        while block := self._sink.read(1 << 20):
            self.seen.update(block)
            self.done_bytes += len(block)
            self._meter.at("checking", self.done_bytes)
        self.was_resumed = self.done_bytes > 0
        return self.done_bytes

    def run(self) -> None:
        """Get the rest. Raises ModelError when the hub refuses, or stops giving."""
        if self.done_bytes == self._file.size_bytes:
            return
        self._report(
            f"fetching {self._file.name} ({self._file.size_bytes // MB} MB) from {self._file.hub.title}"
            + (f", from {self.done_bytes // MB} MB on" if self.done_bytes else "")
        )
        with _client(self._patience, self._file) as client:
            self._try_until_whole(client)

    def _try_until_whole(self, client: httpx.Client) -> None:
        failures, wait_s = 0, self._patience.first_wait_s
        while self.done_bytes < self._file.size_bytes:
            before_bytes = self.done_bytes
            try:
                self._receive(client)
            except _Trouble as trouble:
                if self.done_bytes - before_bytes >= self._patience.gain_bytes:
                    failures, wait_s = 0, self._patience.first_wait_s
                failures += 1
                if failures >= (2 if trouble.is_unreachable else self._patience.tries):
                    raise self._gave_up(trouble) from trouble
                pause_s = min(trouble.wait_s if trouble.wait_s is not None else wait_s, self._patience.most_s)
                self._report(f"{trouble.reason}; trying again in {pause_s:.0f} s")
                time.sleep(pause_s)
                wait_s *= 2

    def _receive(self, client: httpx.Client) -> None:
        """Make one request and write what it brings. Raises _Trouble, ModelError, OSError of the disk."""
        import httpx

        headers = {"Accept-Encoding": "identity"}
        if self._file.token:
            headers["Authorization"] = f"Bearer {self._file.token}"
        if self.done_bytes and self._can_resume:
            headers["Range"] = f"bytes={self.done_bytes}-"
            self.was_resumed = True
        hub = self._file.hub.title
        try:
            with client.stream("GET", self._file.url, headers=headers) as response:
                skip_bytes = self._check(response)
                for block in response.iter_raw():
                    self._write(block[skip_bytes:])
                    skip_bytes = max(0, skip_bytes - len(block))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as exc:
            reason = _brief(exc) or "no answer"
            raise _Trouble(f"{hub} cannot be reached ({reason})", is_unreachable=True) from exc
        except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects) as exc:
            raise self._refused(f"it leads to an address that cannot be used ({type(exc).__name__})") from exc
        except httpx.TransportError as exc:
            reason = "it fell silent" if isinstance(exc, httpx.TimeoutException) else "the connection broke"
            raise _Trouble(f"{hub}: {reason} at {self.done_bytes // MB} MB") from exc
        if self.done_bytes < self._file.size_bytes:
            raise _Trouble(f"{hub} ended at {self.done_bytes // MB} MB")

    def _write(self, block: bytes) -> None:
        if self.done_bytes + len(block) > self._file.size_bytes:
            raise self._another_file("more")
        self._sink.write(block)
        self.seen.update(block)
        self.done_bytes += len(block)
        self._meter.at("fetching", self.done_bytes)

    def _check(self, response: httpx.Response) -> int:
        """Return how many bytes at the start of this reply are here already."""
        status, hub = response.status_code, self._file.hub.title
        if status == 429 or status >= 500 or status == 408:
            raise _Trouble(f"{hub} answered {status}", _retry_after_s(response))
        if status == 416 and self._can_resume:
            self._can_resume = False
            raise _Trouble(f"{hub} does not go on from {self.done_bytes // MB} MB", 0.0)
        if status in (401, 403):
            raise self._not_allowed(status)
        if status not in (200, 206):
            raise self._refused(f"it answered {status}")
        start_bytes = 0
        if status == 206:
            first, total = _content_range(response)
            if first is None or first > self.done_bytes:
                # A part that starts elsewhere than asked would leave a hole.
                self._can_resume = False
                raise _Trouble(f"{hub} sent another part than was asked for", 0.0)
            start_bytes = first
            if total not in (None, self._file.size_bytes):
                raise self._another_file(f"{total} bytes")
        length = response.headers.get("content-length", "")
        if length.isdigit() and status == 200 and int(length) != self._file.size_bytes:
            raise self._another_file(f"{length} bytes")
        return self.done_bytes - start_bytes

    # The errors, each with what helps.

    def _gave_up(self, trouble: _Trouble) -> errors.ModelError:
        kept = f": what was fetched ({self.done_bytes // MB} MB) is kept" if self.done_bytes else ""
        return errors.ModelError(
            f"{self._file.name} could not be fetched: {trouble.reason}",
            next_step=f"Check the network and proxy, and repeat{kept}. Or {self._file.by_hand}.",
        )

    def _refused(self, why: str) -> errors.ModelError:
        return errors.ModelError(
            f"{self._file.hub.title} has no {self._file.name} for us: {why}",
            next_step=f"Try another --source ({', '.join(HUBS)}), or {self._file.by_hand}.",
        )

    def _not_allowed(self, status: int) -> errors.ModelError:
        variable = self._file.hub.token_variables[0]
        what = (
            "does not accept the token"
            if self._file.token
            else "wants a token (the file is gated or private)"
        )
        return errors.ModelError(
            f"{self._file.hub.title} {what} for {self._file.name}: it answered {status}",
            next_step=f"Accept the model's terms on its page and set {variable}, or {self._file.by_hand}.",
        )

    def _another_file(self, size: str) -> errors.ModelError:
        return errors.ModelError(
            f"{self._file.hub.title} sends {size} instead of the {self._file.size_bytes} bytes of"
            f" {self._file.name}: another file, or a page of a proxy",
            next_step=f"Check the network and proxy and repeat, or {self._file.by_hand}.",
        )


def _client(patience: Patience, file: Wanted) -> httpx.Client:
    """Return a client that honours the usual proxy and certificate variables, as downloads should."""
    import httpx

    timeout = httpx.Timeout(patience.silent_s, connect=patience.connect_s)
    try:
        return httpx.Client(timeout=timeout, follow_redirects=True, headers={"User-Agent": "openjev"})
    except (ValueError, ImportError, httpx.InvalidURL, OSError) as exc:
        # Not quoted: a proxy's address may hold a password.
        raise errors.ModelError(
            "the proxy or certificate settings of the environment cannot be used",
            next_step="Check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE (http:// and https:// proxies"
            f" work), or {file.by_hand}.",
        ) from exc


def _brief(exc: Exception) -> str:
    text = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(exc).split()))
    return text if len(text) <= 120 else text[:117] + "..."


def _retry_after_s(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "").strip()
    return float(value) if value.isdecimal() and len(value) < 6 else None


def _content_range(response: httpx.Response) -> tuple[int | None, Any]:
    """Return (first byte, total or None) of a 206; (None, None) where it does not say (RFC 9110, 14.4)."""
    unit, _, rest = response.headers.get("content-range", "").partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0].strip()
    if unit.lower() != "bytes" or not first.isdecimal():
        return None, None
    return int(first), int(total) if total.strip().isdecimal() else None
