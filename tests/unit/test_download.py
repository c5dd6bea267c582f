"""A pinned file from a hub that drops, lies, refuses or corrupts: a verified file, or a clear error."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from openjev_cli import download, errors
from tests import misbehaving_hub

CONTENT = random.Random(7).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
# No waiting; every gained byte counts, so that five tries are five without any.
IMPATIENT = download.Patience(first_wait_s=0.0, most_s=0.0, connect_s=5.0, silent_s=0.3, gain_bytes=1)


@pytest.fixture
def hub() -> Iterator[misbehaving_hub.Hub]:
    with misbehaving_hub.serving(misbehaving_hub.Hub(CONTENT)) as served:
        yield served


def wanted(hub: misbehaving_hub.Hub, folder: Path, **env: str) -> download.Wanted:
    return download.wanted(
        "huggingface",
        {"HF_ENDPOINT": hub.address, **env},
        repo="some/model",
        revision="0123456789abcdef",
        name="m.gguf",
        size_bytes=len(CONTENT),
        sha256=SHA256,
        destination=folder / "m.gguf",
    )


def fetch(hub: misbehaving_hub.Hub, folder: Path, **env: str) -> list[str]:
    """Fetch the file and return what was reported."""
    told: list[str] = []
    download.fetch(wanted(hub, folder, **env), folder / "m.gguf", report=told.append, patience=IMPATIENT)
    return told


def failure(hub: misbehaving_hub.Hub, folder: Path, **env: str) -> errors.OpenjevError:
    with pytest.raises(errors.ModelError) as caught:
        fetch(hub, folder, **env)
    assert not (folder / "m.gguf").exists()
    return caught.value


def kept(folder: Path) -> int | None:
    """How many bytes of the right content wait to be gone on from."""
    part = folder / ".m.gguf.part"
    if not part.exists():
        return None
    assert CONTENT.startswith(part.read_bytes())
    return part.stat().st_size


def test_a_file_is_fetched_from_its_pinned_revision(hub: misbehaving_hub.Hub, tmp_path: Path) -> None:
    seen: list[download.Transfer] = []
    file = wanted(hub, tmp_path)
    told: list[str] = []
    download.fetch(file, tmp_path / "m.gguf", report=told.append, on_transfer=seen.append)
    assert [path for path, _ in hub.asked] == ["/some/model/resolve/0123456789abcdef/m.gguf"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "m.gguf"]
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT
    assert told == ["fetching m.gguf (0 MB) from Hugging Face"]
    assert seen[-1]._replace(bytes_per_s=0, left_s=None) == download.Transfer(
        "fetching", "m.gguf", len(CONTENT), len(CONTENT), 0, None
    )


@pytest.mark.parametrize(
    ("behaviours", "ranges"),
    [
        (["drop:1000", "drop:70000", "good"], [None, "bytes=1000-", "bytes=71000-"]),
        (["429:0", "500", "503", "408", "good"], [None] * 5),
        # What cannot be gone on from is read over, and what was there before is not fetched for nothing.
        (["no-ranges-drop:1000", "no-ranges"], [None, "bytes=1000-"]),
        (["drop:1000", "416", "good"], [None, "bytes=1000-", None]),
        (["drop:1000", "wrong-range", "good"], [None, "bytes=1000-", None]),
        # The lie shows in the digest alone: everything is fetched again, in one piece.
        (["drop:1000", "lying-range", "good"], [None, "bytes=1000-", None]),
        # And from then on nothing is gone on from.
        (["drop:1000", "lying-range", "drop:1000", "good"], [None, "bytes=1000-", None, None]),
    ],
)
def test_a_hub_that_misbehaves_for_a_while_gives_the_whole_file(
    behaviours: list[str], ranges: list[str | None], hub: misbehaving_hub.Hub, tmp_path: Path
) -> None:
    hub.behaviours = behaviours
    fetch(hub, tmp_path)
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT
    assert (hub.ranges(), kept(tmp_path)) == (ranges, None)


def test_a_killed_fetch_is_gone_on_from(hub: misbehaving_hub.Hub, tmp_path: Path) -> None:
    (tmp_path / ".m.gguf.part").write_bytes(CONTENT[:123_456])
    told = fetch(hub, tmp_path)
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT
    assert hub.ranges() == ["bytes=123456-"]
    assert told == ["fetching m.gguf (0 MB) from Hugging Face, from 0 MB on"]


def test_a_whole_part_is_put_in_place_without_asking(hub: misbehaving_hub.Hub, tmp_path: Path) -> None:
    (tmp_path / ".m.gguf.part").write_bytes(CONTENT)
    fetch(hub, tmp_path)
    assert ((tmp_path / "m.gguf").read_bytes(), hub.asked) == (CONTENT, [])


@pytest.mark.parametrize("part", [b"\0" * 123_456, CONTENT + b"x", b"\0" * len(CONTENT)])
def test_a_damaged_part_is_thrown_away(part: bytes, hub: misbehaving_hub.Hub, tmp_path: Path) -> None:
    (tmp_path / ".m.gguf.part").write_bytes(part)
    fetch(hub, tmp_path)
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT


ANOTHER_FILE = " instead of the 300000 bytes of m.gguf: another file, or a page of a proxy"
REFUSALS = {
    "404": "Hugging Face has no m.gguf for us: it answered 404",
    "401": "Hugging Face wants a token (the file is gated or private) for m.gguf: it answered 401",
    "403": "Hugging Face wants a token (the file is gated or private) for m.gguf: it answered 403",
    "418": "Hugging Face has no m.gguf for us: it answered 418",
    "429": "m.gguf could not be fetched: Hugging Face answered 429",
    "503": "m.gguf could not be fetched: Hugging Face answered 503",
    "drop:0": "m.gguf could not be fetched: Hugging Face: the connection broke at 0 MB",
    "short": "Hugging Face sends 299997 bytes" + ANOTHER_FILE,
    "long": "Hugging Face sends 300004 bytes" + ANOTHER_FILE,
    "long-chunked": "Hugging Face sends more" + ANOTHER_FILE,
    "corrupt": "m.gguf as fetched from Hugging Face is damaged: its SHA-256 is not the pinned one",
    "silent": "m.gguf could not be fetched: Hugging Face: it fell silent at 0 MB",
    "no-ranges-drop:1000": "m.gguf could not be fetched: Hugging Face: the connection broke at 0 MB",
}


@pytest.mark.parametrize("behaviour", REFUSALS)
def test_a_hub_that_stays_bad_is_one_clear_error(
    behaviour: str, hub: misbehaving_hub.Hub, tmp_path: Path
) -> None:
    hub.behaviours = [behaviour]
    told = failure(hub, tmp_path)
    assert told.message == REFUSALS[behaviour]
    assert told.next_step
    kept(tmp_path)  # never anything but a beginning of the file
    hub.behaviours = ["good"]
    hub.gate.set()
    fetch(hub, tmp_path)
    assert (tmp_path / "m.gguf").read_bytes() == CONTENT


def test_what_arrived_is_kept_when_the_hub_gives_up(hub: misbehaving_hub.Hub, tmp_path: Path) -> None:
    hub.behaviours = ["drop:100000", "500"]
    told = failure(hub, tmp_path)
    assert kept(tmp_path) == 100_000
    assert told.next_step == (
        "Check the network and proxy, and repeat: what was fetched (0 MB) is kept. Or put m.gguf"
        f" (300000 bytes) of the hub repository some/model @ 0123456789ab at {tmp_path}/m.gguf."
    )
    # A corrupt rest is not kept, and the hub is not asked for ever.
    hub.behaviours = ["corrupt"]
    assert "damaged" in failure(hub, tmp_path).message
    assert kept(tmp_path) is None


def test_offline_says_which_file_to_put_where(tmp_path: Path) -> None:
    # The discard port: nobody listens.
    told = failure(misbehaving_hub.Hub(b"", address="http://127.0.0.1:9"), tmp_path)
    assert told.message == "m.gguf could not be fetched: Hugging Face cannot be reached (Connection refused)"
    assert kept(tmp_path) is None
    assert told.next_step == (
        "Check the network and proxy, and repeat. Or put m.gguf (300000 bytes) of the hub repository"
        f" some/model @ 0123456789ab at {tmp_path}/m.gguf."
    )


def test_a_token_goes_to_the_hub_alone_and_into_no_message(hub: misbehaving_hub.Hub, tmp_path: Path) -> None:
    with misbehaving_hub.serving(misbehaving_hub.Hub(CONTENT)) as elsewhere:
        hub.redirect_to = elsewhere.address
        told = fetch(hub, tmp_path, HF_TOKEN="hf_s3cret\n")
        assert hub.asked[0][1]["authorization"] == "Bearer hf_s3cret"
        assert "authorization" not in elsewhere.asked[0][1]
    hub.redirect_to, hub.behaviours = None, ["403"]
    (tmp_path / "m.gguf").unlink()
    refused = failure(hub, tmp_path, HF_TOKEN="hf_s3cret")
    assert refused.message == "Hugging Face does not accept the token for m.gguf: it answered 403"
    assert "s3cret" not in " ".join([*told, refused.message, refused.next_step])


def test_a_token_is_never_sent_in_the_clear_to_another_machine(tmp_path: Path) -> None:
    def token(address: str) -> str | None:
        return wanted(misbehaving_hub.Hub(b"", address=address), tmp_path, HF_TOKEN="t").token

    addresses = ("https://hub.example", "http://hub.example", "http://localhost:1", "hub.example")
    assert [token(address) for address in addresses] == ["t", None, "t", "t"]


@pytest.mark.parametrize("token", ["a b", "a\nb", "ä", "a\x00b"])
def test_a_token_that_is_none_is_refused_without_showing_it(token: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InputError) as caught:
        wanted(misbehaving_hub.Hub(b"", address="https://hub.example"), tmp_path, HF_TOKEN=token)
    assert caught.value.message == "HF_TOKEN holds characters that no token has (it is not shown here)"


def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    hub: misbehaving_hub.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "gopher://me:s3cret@proxy")
    told = failure(hub, tmp_path)
    assert told.message == "the proxy or certificate settings of the environment cannot be used"
    assert "s3cret" not in told.next_step


def test_a_proxy_of_the_environment_is_used(
    hub: misbehaving_hub.Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", hub.address)
    there = misbehaving_hub.Hub(b"", address="http://hub.example")
    fetch(there, tmp_path)
    assert [path for path, _ in hub.asked] == [
        "http://hub.example/some/model/resolve/0123456789abcdef/m.gguf"
    ]


def test_the_other_hub_is_asked_by_name(tmp_path: Path) -> None:
    file = download.wanted(
        "modelscope",
        {"HF_TOKEN": "not for this one"},
        repo="some/model",
        revision="0123456789abcdef",
        name="m.gguf",
        size_bytes=1,
        sha256=SHA256,
        destination=tmp_path / "m.gguf",
    )
    assert (file.url, file.token) == (
        "https://modelscope.cn/models/some/model/resolve/master/m.gguf",
        None,
    )
