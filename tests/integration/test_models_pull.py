"""Profiles pulled from a hub by processes that are killed, run side by side, or have no room."""

from __future__ import annotations

import hashlib
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openjev_cli import config, models, profiles
from tests import misbehaving_hub
from tests.conftest import Command

ROOT = Path(__file__).resolve().parent.parent.parent
CONTENT = b"GGUF" + random.Random(11).randbytes(3_000_000)
WEIGHTS = profiles.PinnedFile(
    "small.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "some/model", "0123456789abcdef"
)
SMALL = profiles.Profile("small", "Small-Q4_0", 2048, WEIGHTS)

# What `openjev models pull` does, for a profile that is small enough for a test.
PULL = f"""
import os, sys
from pathlib import Path
from openjev_cli import config, download, errors, models, profiles
small = profiles.Profile("small", "Small-Q4_0", 2048, profiles.PinnedFile(*{tuple(WEIGHTS)!r}))
loaded = config.load({{}}, env=os.environ, cwd=Path("/"))
def report(line):
    print(line, file=sys.stderr, flush=True)
    filler = os.environ.get("FILL_WHEN_FETCHING")
    if filler and line.startswith("fetching"):
        with open(filler, "wb", 0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
if "FILL_WHEN_FETCHING" in os.environ:
    download._SPARE_BYTES = 0
try:
    print(*models.pull(small, loaded, os.environ, report=report))
except errors.ModelError as exc:
    print(exc.message, exc.next_step, sep="\\n")
    sys.exit(exc.exit_code)
"""


@pytest.fixture
def hub() -> Iterator[misbehaving_hub.Hub]:
    with misbehaving_hub.serving(misbehaving_hub.Hub(CONTENT)) as served:
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "small"


def start(hub: misbehaving_hub.Hub, tmp_path: Path, *before: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", PULL],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "OPENJEV_CACHE_DIR": str(tmp_path / "cache"),
            "HF_ENDPOINT": hub.address,
            **env,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


WHOLE = [".lock", "small.gguf", "small.gguf.verified"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_pull_is_gone_on_from_by_the_next(
    how: signal.Signals, hub: misbehaving_hub.Hub, folder: Path, tmp_path: Path
) -> None:
    hub.behaviours = ["slow", "good"]
    part = folder / ".small.gguf.part"
    with start(hub, tmp_path) as child:
        wait_for(lambda: part.exists() and part.stat().st_size > 1_000_000)
        child.send_signal(how)
        child.communicate()
    kept = part.stat().st_size
    assert CONTENT.startswith(part.read_bytes())
    assert names_in(folder) == [".lock", part.name]
    with start(hub, tmp_path) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, f"{folder / 'small.gguf'}\n"), err
    assert (folder / "small.gguf").read_bytes() == CONTENT
    assert (hub.ranges(), names_in(folder)) == ([None, f"bytes={kept}-"], WHOLE)


def test_pulls_at_once_make_one_download(hub: misbehaving_hub.Hub, folder: Path, tmp_path: Path) -> None:
    children = [start(hub, tmp_path) for _ in range(3)]
    results = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], results
    assert {out for out, _ in results} == {f"{folder / 'small.gguf'}\n"}
    assert (len(hub.asked), names_in(folder)) == (1, WHOLE)
    assert (folder / "small.gguf").read_bytes() == CONTENT


def test_a_profile_is_not_removed_while_it_is_pulled(
    hub: misbehaving_hub.Hub, folder: Path, tmp_path: Path
) -> None:
    hub.behaviours = ["slow"]
    part = folder / ".small.gguf.part"
    settings = config.load({}, env={"OPENJEV_CACHE_DIR": str(tmp_path / "cache")}, cwd=tmp_path)
    with start(hub, tmp_path) as child:
        wait_for(lambda: part.exists() and part.stat().st_size > 0)
        with pytest.raises(models.errors.ModelError) as caught:
            models.remove(SMALL, settings)
        hub.gate.set()
        assert child.communicate(timeout=60)[0] == f"{folder / 'small.gguf'}\n"
    assert caught.value.message == f"another openjev is fetching into {folder}"
    assert models.remove(SMALL, settings) == (folder / "small.gguf",)
    assert names_in(folder) == [".lock"]


def test_a_file_that_is_damaged_later_is_fetched_again(
    hub: misbehaving_hub.Hub, folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / "small.gguf").write_bytes(bytes(len(CONTENT)))
    with start(hub, tmp_path) as child:
        child.communicate(timeout=60)
    assert ((folder / "small.gguf").read_bytes(), names_in(folder)) == (CONTENT, WHOLE)


def test_the_quant_and_the_projector_that_belong_together_are_pulled(
    hub: misbehaving_hub.Hub, folder: Path, tmp_path: Path
) -> None:
    settings = config.load({}, env={"OPENJEV_CACHE_DIR": str(tmp_path / "cache")}, cwd=tmp_path)
    other = WEIGHTS._replace(name="small-Q8_0.gguf")
    profile = SMALL._replace(quants={"Q8_0": other}, projector=WEIGHTS._replace(name="mmproj-F16.gguf"))
    env = {"HF_ENDPOINT": hub.address}
    pulled = models.pull(profile, settings, env, quant="q8_0")
    assert pulled == (folder / "small-Q8_0.gguf", folder / "mmproj-F16.gguf")
    assert [path.rsplit("/", 1)[1] for path, _ in hub.asked] == ["small-Q8_0.gguf", "mmproj-F16.gguf"]
    assert models.in_use(profile, settings) is other
    # The other weights are fetched, the projector is here, and what was pulled last is used.
    assert models.pull(profile, settings, env) == (folder / "small.gguf", folder / "mmproj-F16.gguf")
    assert (len(hub.asked), models.in_use(profile, settings)) == (3, WEIGHTS)
    models.pull(profile, settings, env, quant="Q8_0")
    assert (len(hub.asked), models.in_use(profile, settings)) == (3, other)


def on_a_small_disk(tmp_path: Path, size: str) -> list[str]:
    """What comes before a command to give it a cache folder of `size` on a disk of its own."""
    words = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("this system does not let a user mount a small disk (unshare)")
    (tmp_path / "cache").mkdir()
    return [
        *words,
        "sh",
        "-c",
        f'mount -t tmpfs -o size={size} none "$0" && exec "$@"',
        str(tmp_path / "cache"),
    ]


def test_a_disk_without_room_is_found_before_the_first_byte(
    hub: misbehaving_hub.Hub, folder: Path, tmp_path: Path
) -> None:
    with start(hub, tmp_path, *on_a_small_disk(tmp_path, "2m")) as child:
        out, _ = child.communicate(timeout=60)
    assert (child.returncode, hub.asked) == (3, [])
    assert out.splitlines() == [
        f"not enough disk space in {folder}: 67 MB are needed, 2 MB are free",
        "Free some space, or set OPENJEV_CACHE_DIR to a folder on another disk.",
    ]


def test_a_disk_that_fills_up_meanwhile_is_one_clear_error(
    hub: misbehaving_hub.Hub, folder: Path, tmp_path: Path
) -> None:
    filler = str(tmp_path / "cache" / "filler")
    with start(hub, tmp_path, *on_a_small_disk(tmp_path, "4m"), FILL_WHEN_FETCHING=filler) as child:
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 3
    assert out.splitlines() == [
        f"no space left on the disk of {folder}",
        "Free some space, or set OPENJEV_CACHE_DIR to a folder on another disk.",
    ]


# The command itself.


def test_pull_of_a_hub_that_has_another_file_names_both_sizes(
    hub: misbehaving_hub.Hub, offline: Command, tmp_path: Path
) -> None:
    done = offline("models", "pull", "fast", "--quiet", env={"HF_ENDPOINT": hub.address})
    assert (done.returncode, done.stdout) == (3, b"")
    error, step = done.stderr.decode().splitlines()
    assert error == (
        f"error: Hugging Face sends {len(CONTENT)} bytes instead of the 532517120 bytes of"
        " Qwen3.5-0.8B-Q4_K_M.gguf: another file, or a page of a proxy"
    )
    assert step.startswith("next: Check the network and proxy and repeat, or put Qwen3.5-0.8B-Q4_K_M.gguf ")


def test_pull_asks_the_hub_that_was_named(hub: misbehaving_hub.Hub, offline: Command) -> None:
    hub.behaviours = ["404"]
    words = ("models", "pull", "fast", "--source", "modelscope", "--quiet")
    done = offline(*words, env={"MODELSCOPE_DOMAIN": hub.address})
    assert [path for path, _ in hub.asked] == [
        "/models/unsloth/Qwen3.5-0.8B-GGUF/resolve/master/Qwen3.5-0.8B-Q4_K_M.gguf"
    ]
    assert (done.returncode, done.stdout) == (3, b"")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("max", "--quant", "Q2"), "error: profile max has no 'Q2'"),
        (
            ("fast", "--source", "hugingface"),
            "error: --source: 'hugingface' is not one of huggingface, modelscope",
        ),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_ones(
    words: tuple[str, ...], told: str, offline: Command
) -> None:
    done = offline("models", "pull", *words)
    assert done.stderr.decode().startswith(told)
    assert (done.returncode in (2, 3), done.stdout) == (True, b"")


def test_a_terminal_sees_a_bar_that_stays_on_its_line(hub: misbehaving_hub.Hub, tmp_path: Path) -> None:
    script = PULL.replace("report=report", "report=console.report, on_transfer=console.transfer").replace(
        "try:\n    print(",
        "from openjev_cli import output\nconsole = output.Progress(quiet=False)\ntry:\n    print(",
    )
    leader, follower = pty.openpty()
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "OPENJEV_CACHE_DIR": str(tmp_path / "cache"),
        "HF_ENDPOINT": hub.address,
        "COLUMNS": "60",
        "PYTHONUTF8": "1",
    }
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stderr=follower, stdout=subprocess.DEVNULL
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert child.wait() == 0
    lines = seen.decode().split("\r")
    bars = [line.removesuffix("\x1b[K") for line in lines if "█" in line]
    assert bars[-1].startswith("... ██████████ 100% 0.00 of 0.00 GB")
    assert max(map(len, bars)) < 60
