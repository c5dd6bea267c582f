"""scripts/build-llama.sh with a real compiler and CMake on a source folder of one file, and the real proof.

Everything around llama.cpp is what it is for users: git applies real patches, Ninja compiles, the result is
run. Only the source is small, so that a build takes a second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import build_llama

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "build-llama.sh"
PROOF = ROOT / "scripts" / "prove-llama.py"
# Where cmake and ninja are no programs of this machine, the ones the real build fetched are used.
TOOLS = build_llama.cache_root(os.environ) / "llama" / "tools" / "bin"
PATH = f"{os.environ['PATH']}:{TOOLS}"
OFFLINE = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_FIND_LINKS": "",
    "PIP_RETRIES": "0",
    "PIP_CONFIG_FILE": os.devnull,
}

CMAKELISTS = """\
cmake_minimum_required(VERSION 3.18)
project(mini C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_executable(llama-server src/main.cpp src/other.cpp)
if(GGML_NATIVE)
    target_compile_definitions(llama-server PRIVATE VARIANT="native")
elseif(GGML_AVX2)
    target_compile_definitions(llama-server PRIVATE VARIANT="avx2")
else()
    target_compile_definitions(llama-server PRIVATE VARIANT="generic")
endif()
"""
MAIN = """\
#include <cstdio>
const char * other();
int main() {
    std::puts("base");
    std::puts(VARIANT);
    return 0;
}
"""
PATCH_1 = """\
Subject: say one

--- a/src/main.cpp
+++ b/src/main.cpp
@@ -1,5 +1,6 @@
 #include <cstdio>
 const char * other();
 int main() {
+    std::puts("one");
     std::puts("base");
     std::puts(VARIANT);
"""
PATCH_2 = """\
--- a/src/main.cpp
+++ b/src/main.cpp
@@ -2,5 +2,6 @@
 const char * other();
 int main() {
     std::puts("one");
+    std::puts("two");
     std::puts("base");
     std::puts(VARIANT);
"""


@dataclass(frozen=True)
class Checkout:
    """A small source, patches for it, a cache, and a proof that writes down what it was given."""

    folder: Path

    @property
    def cache(self) -> Path:
        return self.folder / "cache" / "llama"

    def environment(self, **more: str) -> Mapping[str, str]:
        return {
            "PATH": PATH,
            "HOME": str(self.folder / "home"),
            "PYTHON": sys.executable,
            "OPENJEV_CACHE_DIR": str(self.folder / "cache"),
            "LLAMA_CPP_SOURCE": str(self.folder / "source"),
            **more,
        }

    def command(self, *options: str, proof: str | None = "true") -> list[str | Path]:
        more = [] if proof is None else ["--proof", proof]
        return [SCRIPT, "--backend", "cpu", "--patches", self.folder / "patches", *more, *options]

    def build(
        self, *options: str, proof: str | None = "true", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*options, proof=proof),
            env=self.environment(**environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def proof(self, body: str) -> str:
        """Return a proof command made of shell lines; the binary is $1."""
        path = self.folder / "proof.sh"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    def finished(self) -> list[str]:
        """The folders of finished builds."""
        return sorted(
            path.parent.name for path in self.cache.glob("*/build.json") if not path.parent.is_symlink()
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(CMAKELISTS)
    (source / "src" / "main.cpp").write_text(MAIN)
    (source / "src" / "other.cpp").write_text('const char * other() { return "other"; }\n')
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "0001-one.patch").write_text(PATCH_1)
    return Checkout(tmp_path)


def said(binary: str | Path) -> list[str]:
    return subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split()


def test_path_of_the_binary_is_all_that_stdout_gets(checkout: Checkout) -> None:
    result = checkout.build()
    assert result.returncode == 0, result.stderr
    (key,) = checkout.finished()
    binary = checkout.cache / key / "llama-server"
    assert result.stdout == f"{binary}\n"
    assert said(binary) == ["one", "base", "native"]
    assert (checkout.cache / "current" / "llama-server").resolve() == binary
    record = json.loads((binary.parent / "build.json").read_text())
    told = {name: record[name] for name in ("llama_cpp", "kind", "patches", "backend", "variant", "key")}
    assert told == {
        "llama_cpp": "b11434",
        "kind": "patched",
        "patches": ["0001-one"],
        "backend": "cpu",
        "variant": "native",
        "key": key,
    }


def test_second_run_only_looks_the_binary_up(checkout: Checkout) -> None:
    proof = checkout.proof(f"echo proven >> {checkout.folder}/proofs")
    first, second = checkout.build(proof=proof), checkout.build(proof=proof)
    assert (second.returncode, second.stdout, second.stderr) == (0, first.stdout, "")
    assert (checkout.folder / "proofs").read_text() == "proven\n"


def test_changed_patches_make_a_new_build_and_the_old_one_stays(checkout: Checkout) -> None:
    old = checkout.build().stdout.strip()
    (checkout.folder / "patches" / "0002-two.patch").write_text(PATCH_2)
    new = checkout.build().stdout.strip()
    assert (said(old), said(new)) == (["one", "base", "native"], ["one", "two", "base", "native"])
    (checkout.folder / "patches" / "0002-two.patch").unlink()
    again = checkout.build()
    assert (again.stdout.strip(), again.stderr) == (old, "")
    assert (checkout.cache / "current" / "llama-server").resolve() == Path(old)


def test_changed_source_makes_a_new_build(checkout: Checkout) -> None:
    old = checkout.build().stdout
    main = checkout.folder / "source" / "src" / "main.cpp"
    main.write_text(main.read_text().replace("    return 0;", '    std::puts("more");\n    return 0;'))
    new = checkout.build()
    assert new.stdout != old
    assert said(new.stdout.strip()) == ["one", "base", "native", "more"]


def test_stock_and_patched_come_out_of_one_tree(checkout: Checkout) -> None:
    (checkout.folder / "patches" / "0002-two.patch").write_text(PATCH_2)
    result = checkout.build("--stock")
    stock, current = (checkout.cache / name / "llama-server" for name in ("stock", "current"))
    assert result.stdout.strip() == str(stock.resolve())
    assert (said(stock), said(current)) == (["one", "base", "native"], ["one", "two", "base", "native"])
    assert json.loads((stock.parent / "build.json").read_text())["kind"] == "stock"
    assert len(list((checkout.cache / "work").iterdir())) == 1
    # The second build compiles the one file that patch 0002 touches, and nothing else.
    log = (next((checkout.cache / "work").iterdir()) / "build.log").read_text()
    assert [line for line in log.splitlines() if "Building" in line and "other.cpp" in line] == []
    assert len([line for line in log.splitlines() if "Building" in line]) == 1


def test_failing_proof_leads_to_the_next_safer_variant(checkout: Checkout) -> None:
    proof = checkout.proof('if "$1" | grep -q native; then echo "wrong numbers"; exit 1; fi; echo fine')
    result = checkout.build(proof=proof)
    assert result.returncode == 0, result.stderr
    binary = result.stdout.strip()
    assert said(binary)[-1] in ("avx2", "generic")
    assert "cpu native: wrong numbers\n" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("note: using the safer cpu ")
    assert checkout.finished() == [Path(binary).parent.name]
    assert (checkout.cache / "current" / "llama-server").resolve() == Path(binary)
    again = checkout.build(proof=proof)
    assert again.stdout == result.stdout
    assert "building" not in again.stderr
    assert "skipping cpu native: wrong numbers" in again.stderr


def test_no_binary_is_left_when_every_variant_fails_its_proof(checkout: Checkout) -> None:
    result = checkout.build(proof=checkout.proof("echo 'wrong numbers'; exit 1"))
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.splitlines()[-2:] == [
        "error: no variant of llama-server works on this machine: wrong numbers",
        "next:  report this with the output of: scripts/build-llama.sh --retry",
    ]
    assert checkout.finished() == []
    assert not (checkout.cache / "current").exists()


def test_proof_that_shows_nothing_either_way_condemns_no_binary(checkout: Checkout) -> None:
    result = checkout.build(proof=checkout.proof("echo 'not run: too busy'; exit 2"))
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.splitlines()[-2:] == [
        "error: llama-server could not be proven (not run: too busy)",
        "next:  run this again",
    ]
    assert said(checkout.build().stdout.strip()) == ["one", "base", "native"]


def test_retry_takes_back_a_binary_that_no_longer_proves(checkout: Checkout) -> None:
    assert checkout.build("--variant", "native").returncode == 0
    assert checkout.build("--variant", "native", "--retry", proof="false").returncode == 4
    assert checkout.finished() == []


def test_damaged_binary_is_built_again(checkout: Checkout) -> None:
    binary = Path(checkout.build().stdout.strip())
    binary.write_bytes(bytes(binary.stat().st_size))
    assert checkout.build().stdout.strip() == str(binary)
    assert said(binary) == ["one", "base", "native"]


def test_patch_that_does_not_apply_is_named(checkout: Checkout) -> None:
    (checkout.folder / "patches" / "0002-two.patch").write_text(PATCH_2.replace('"base"', '"nothing"'))
    result = checkout.build()
    assert (result.returncode, result.stdout) == (4, "")
    error, step = result.stderr.splitlines()[-2:]
    assert error.startswith("error: 0002-two.patch does not apply to this llama.cpp")
    assert step == f"next:  use llama.cpp b11434, or renew the patch: {checkout.folder}/patches/README.md"


def test_source_that_does_not_compile_shows_the_compilers_line_and_tries_no_other_variant(
    checkout: Checkout,
) -> None:
    (checkout.folder / "source" / "src" / "other.cpp").write_text("int other( { return 0; }\n")
    result = checkout.build()
    assert (result.returncode, result.stdout) == (4, "")
    error, step = result.stderr.splitlines()[-2:]
    assert error.startswith("error: llama-server did not compile: ")
    assert "other.cpp:1:" in error
    assert step.endswith("build.log; then run scripts/build-llama.sh again")
    assert result.stderr.count("building llama-server") == 1


def tools_without(folder: Path, *missing: str) -> str:
    """Return a PATH that has the tools a build looks for, except some."""
    folder.mkdir()
    for name in ("bash", "dirname", "git", "cmake", "ninja", "c++", "cc", "as", "ld", "ar", "ranlib"):
        found = shutil.which(name, path=PATH)
        if found and name not in missing:
            (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("c++", ["no working C++ compiler found (looked for c++, g++, clang++)", "install one", "g++"]),
        ("git", ["git is missing (it applies the patches)", "install it", "git"]),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the advice names Debian's packages")
def test_missing_tool_is_one_line_and_what_to_install(
    checkout: Checkout, missing: str, expected: str
) -> None:
    result = checkout.build(PATH=tools_without(checkout.folder / "bin", missing))
    message, advice, package = expected
    lines = f"error: {message}\nnext:  {advice}, for example: apt install {package}\n"
    assert (result.returncode, result.stdout, result.stderr) == (4, "", lines)


def test_unreachable_package_index_is_one_line(checkout: Checkout) -> None:
    result = checkout.build(LLAMA_CPP_SOURCE="", **OFFLINE)
    assert (result.returncode, result.stdout) == (4, "")
    error, step = result.stderr.splitlines()[-2:]
    assert error.startswith("error: the llama.cpp source could not be fetched: ")
    assert step == "next:  check the network, or set LLAMA_CPP_SOURCE to a folder with llama.cpp b11434"


def test_missing_cmake_that_cannot_be_fetched_is_one_line(checkout: Checkout) -> None:
    path = tools_without(checkout.folder / "bin", "cmake", "ninja")
    result = checkout.build(PATH=path, **OFFLINE)
    assert (result.returncode, result.stdout) == (4, "")
    error, step = result.stderr.splitlines()[-2:]
    assert error.startswith("error: cmake and ninja are missing and could not be fetched: ")
    assert step == "next:  check the network, or install them, for example: apt install cmake ninja-build"


def test_folder_that_is_no_source_is_refused(checkout: Checkout) -> None:
    result = checkout.build(LLAMA_CPP_SOURCE=str(checkout.folder / "patches"))
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith(
        f"error: LLAMA_CPP_SOURCE={checkout.folder}/patches is no llama.cpp source"
    )


def test_two_builds_at_once_build_once(checkout: Checkout) -> None:
    proof = checkout.proof(f"echo proven >> {checkout.folder}/proofs; sleep 1")
    command = checkout.command(proof=proof)
    both = [
        subprocess.Popen(
            command, env=checkout.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    results = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert results[0][0] == results[1][0]
    assert sum("another build is running; waiting for it\n" in errors for _, errors in results) == 1
    assert (checkout.folder / "proofs").read_text() == "proven\n"


def test_build_that_is_stopped_leaves_nothing_that_looks_finished(checkout: Checkout) -> None:
    started = checkout.folder / "started"
    proof = checkout.proof(f"echo $$ > {started}; exec sleep 300")
    process = subprocess.Popen(
        checkout.command(proof=proof),
        env=checkout.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not (started.is_file() and started.read_text().strip()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert errors.decode().splitlines()[-2].startswith("error: interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert checkout.finished() == []
    assert not (checkout.cache / "current").exists()
    assert checkout.build().returncode == 0


# --- the proof ---

# A small server that speaks just enough of llama-server's protocol, and is wrong in the way its name says.
LIAR = """\
#!{python}
import http.server, json, os, signal, socketserver, sys
KNOWN = {{"noul": 0.2817, "choice": 0.0520, "score": 0.1735, "other": 0.0639}}
FAULT = {fault!r}
class Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self): return "proof"
    def reply(self, value):
        data = json.dumps(value).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers()
        self.wfile.write(data)
    def do_GET(self): self.reply({{"status": "ok"}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/completion":
            if FAULT == "dies": os.kill(os.getpid(), signal.SIGILL)
            return self.reply({{"content": "x"}})
        answers = {{}}
        for key, question in body["questions"].items():
            p = KNOWN[key]
            if FAULT == "batch" and len(body["questions"]) > 1: p += 0.3
            if FAULT == "numbers": p += 0.3
            if FAULT == "nan": p = None
            rest = {{f"{{n}}": 0.0 for n in range(2, 5)}}
            if question["type"] == "noul": answers[key] = {{"type": "noul", "noul": p}}
            else: answers[key] = {{"type": question["type"], "probabilities": {{"1": p, **rest}}}}
        self.reply({{"answers": answers}})
class Server(socketserver.UnixStreamServer):
    def get_request(self): return self.socket.accept()[0], ("proof", 0)
Server(sys.argv[sys.argv.index("--host") + 1], Handler).serve_forever()
"""


def prove(binary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROOF, binary], capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("dies", "proof failed: the server died with signal 4 (SIGILL) while reading one prompt"),
        ("batch", "proof failed: four questions in one batch differ from the four alone by 0.3"),
        ("numbers", "proof failed: a known answer is wrong: 0.5817 instead of 0.2817 (noul)"),
        ("nan", "proof failed: the server answered with None instead of a probability"),
    ],
)
def test_binary_that_crashes_or_lies_fails_the_proof(tmp_path: Path, fault: str, expected: str) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(LIAR.format(python=sys.executable, fault=fault))
    binary.chmod(0o755)
    result = prove(binary)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.strip().startswith(expected)


def test_server_that_does_not_answer_is_not_called_wrong(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    result = subprocess.run(
        [sys.executable, PROOF, binary, "--timeout", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "proof not run: the server did not get ready in time\n"


def test_small_server_without_a_fault_passes_the_proof(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(LIAR.format(python=sys.executable, fault="none"))
    binary.chmod(0o755)
    assert prove(binary).returncode == 0


def test_real_server_passes_the_proof(llama_server: Path) -> None:
    result = prove(llama_server)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("one prompt read; four questions in one batch equal the four alone")
