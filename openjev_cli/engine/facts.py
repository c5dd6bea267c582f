"""What stays true while one llama-server lives: context, slots, abilities, labels, the template's skeleton.

A service would keep these in memory. A command that ends cannot, so they lie in a file beside the server's
record and die with it. No text of a user is in that file: prefixes are remembered as keyed hashes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from openjev_cli import errors, labels, prompt
from openjev_cli import state as states
from openjev_cli.engine.client import Client

_VERSION = 4
# Between pieces of one /tokenize request: not a token id, so it cannot come out of a text.
_SEPARATOR = -1
# Renderings whose local filling is compared with the engine's own before the skeleton is trusted alone.
CHECKED_RENDERINGS = 3
_REMEMBERED_PREFIXES = 32
_REMEMBERED_PRIORS = 256


@dataclass(frozen=True)
class Prefix:
    """A prefix that was asked about lately. digest: keyed hash of its token ids. is_kept: a checkpoint was
    made at its end."""

    digest: str
    is_kept: bool


@dataclass(frozen=True)
class Facts:
    """Everything known about one server. n_ctx: tokens per request. skeleton: None when every conversation has
    to be rendered by the engine. frames: token ids of frame texts. bos: ids that precede every prompt.
    can_cut: the model's memory can be cut anywhere (no checkpoints needed); None until seen. template: digest
    of the chat template's text. media_marker: what stands for an image in a text. markup: what is one token even
    where special tokens are not parsed. end: the id that ends an answer. priors: by keyed hash of a question, what
    its options' scores are when there is no state."""

    n_ctx: int
    n_slots: int
    build: str
    abilities: dict[str, int]
    labels: tuple[labels.Label, ...]
    skeleton: prompt.Skeleton | None
    bos: tuple[int, ...]
    day: str | None
    hash_key: str
    checked: int = 0
    can_cut: bool | None = None
    frames: dict[str, tuple[int, ...]] = field(default_factory=dict)
    prefixes: tuple[Prefix, ...] = ()
    template: str = ""
    sees_images: bool = False
    media_marker: str = ""
    markup: tuple[str, ...] = ()
    end: int = 0
    priors: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def digest(self, ids: Sequence[int]) -> str:
        """Return the keyed hash that stands for a prefix in the file."""
        return self.digest_of(b"".join(i.to_bytes(4, "little") for i in ids))

    def digest_of(self, data: bytes) -> str:
        """Return the keyed hash that stands for `data` in the file."""
        return _digest(data, key=bytes.fromhex(self.hash_key))

    def prefix(self, digest: str) -> Prefix | None:
        """Return what is remembered of a prefix."""
        return next((one for one in self.prefixes if one.digest == digest), None)

    def with_prefix(self, one: Prefix) -> Facts:
        """Return these facts with `one` as the most recent prefix."""
        rest = tuple(other for other in self.prefixes if other.digest != one.digest)
        return replace(self, prefixes=(one, *rest)[:_REMEMBERED_PREFIXES])

    def with_priors(self, learnt: dict[str, tuple[float, ...]]) -> Facts:
        """Return these facts with further priors; the oldest go when there are too many."""
        both = list({**self.priors, **learnt}.items())
        return replace(self, priors=dict(both[-_REMEMBERED_PRIORS:]))

    def merged_with(self, other: Facts) -> Facts:
        """Return these facts with what another request, asked meanwhile, has learnt beyond them."""
        both = replace(
            self,
            checked=max(self.checked, other.checked),
            can_cut=self.can_cut if self.can_cut is not None else other.can_cut,
            skeleton=self.skeleton if other.skeleton is not None else None,
            frames={**other.frames, **self.frames},
        ).with_priors(other.priors)
        return both.with_prefix(other.prefixes[0]) if other.prefixes else both


def _digest(data: bytes, *, key: bytes = b"") -> str:
    try:
        # hashlib loads OpenSSL, which costs 10 ms of every call.
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, key=key, digest_size=16).hexdigest()


# ---------------------------------------------------------------------------------------------- the file


def load(path: Path) -> Facts | None:
    """Return the facts in `path`, or None if there are none that this version can use."""
    try:
        raw = json.loads(path.read_bytes())
        if raw.pop("version") != _VERSION:
            return None
        skeleton = raw["skeleton"]
        if skeleton is not None:
            system = skeleton["system"]
            skeleton = prompt.Skeleton(**{**skeleton, "system": tuple(system) if system else None})
        facts = Facts(
            **{
                **raw,
                "labels": tuple(labels.Label(**one) for one in raw["labels"]),
                "skeleton": skeleton,
                "bos": tuple(raw["bos"]),
                "markup": tuple(raw["markup"]),
                "frames": {text: tuple(ids) for text, ids in raw["frames"].items()},
                "priors": {digest: tuple(scores) for digest, scores in raw["priors"].items()},
                "prefixes": tuple(Prefix(**one) for one in raw["prefixes"]),
            }
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    # A template may write today's date.
    return facts if facts.day in (None, _today()) else None


def save(path: Path, facts: Facts) -> None:
    """Write the facts to `path` in one step. A failure is not an error: they are learnt again next time."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps({"version": _VERSION, **asdict(facts)}), encoding="utf-8")
        temporary.chmod(0o600)
        temporary.replace(path)


def _today() -> str:
    return time.strftime("%Y-%m-%d")


# ------------------------------------------------------------------------------------------- learning them


def nothing(*, n_slots: int) -> Facts:
    """Return the facts about a server that makes its own prompts: how many requests to send it at once."""
    return Facts(
        n_ctx=0,
        n_slots=n_slots,
        build="unknown",
        abilities={},
        labels=(),
        skeleton=None,
        bos=(),
        day=None,
        hash_key="",
    )


def learn(client: Client) -> Facts:
    """Ask a server everything that is worth remembering. Raises EngineError if it cannot serve decisions."""
    props = client.get("/props")
    settings = props.get("default_generation_settings") or {}
    n_ctx = int(settings.get("n_ctx") or (settings.get("params") or {}).get("n_ctx") or 0)
    if n_ctx <= 0:
        raise errors.EngineError(
            "llama-server does not say how long its context is (/props has no n_ctx)",
            next_step="use llama-server b9670 or newer, or build ours: scripts/build-llama.sh",
        )
    _refuse_space_prefix(client)
    skeleton = learn_skeleton(client)
    if skeleton is not None:
        cue = skeleton.closing
    else:
        cue = render(client, (("user", _placeholder()), ("user", _placeholder()))).around[-1]
    template = str(props.get("chat_template") or "")
    first = skeleton.opening if skeleton is not None else cue
    return Facts(
        n_ctx=n_ctx,
        n_slots=int(props.get("total_slots") or 1),
        build=str(props.get("build_info") or "unknown"),
        abilities={k: v for k, v in (props.get("openjev") or {}).items() if isinstance(v, int)},
        labels=_verify_labels(client, cue),
        skeleton=skeleton,
        bos=_bos(client, first),
        day=_today() if "strftime_now" in template else None,
        hash_key=os.urandom(16).hex(),
        template=_digest(template.encode()),
        sees_images=bool((props.get("modalities") or {}).get("vision")),
        media_marker=str(props.get("media_marker") or "<__media__>"),
        markup=_markup(client, template),
        end=_end(client, str(props.get("eos_token") or "")),
    )


# Added tokens of chat models that are no control tokens, so that llama.cpp finds them in any text (`USER_DEFINED`,
# llama-vocab.cpp `tokenizer_st_partition`). Others are looked for in the model's own template.
_KNOWN_MARKUP = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>"),
    *(
        "</tools>",
        "<answer>",
        "</answer>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|fim_pad|>",
    ),
    *(
        "<|repo_name|>",
        "<|file_sep|>",
        "<reponame>",
        "<filename>",
        "<file_sep>",
        "<gh_stars>",
        "<issue_start>",
    ),
    *(
        "<s>",
        "</s>",
        "<pad>",
        "<unk>",
        "<mask>",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "<</SYS>>",
        "<start_of_turn>",
    ),
    *("<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image>", "<__media__>"),
)
_MARKUP = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,40}\]")


def _markup(client: Client, template: str) -> tuple[str, ...]:
    """Return what stands for one token of this model in any text, although it is no word but markup."""
    return _single(client, (*_KNOWN_MARKUP, *_MARKUP.findall(template)))


def markup_in(client: Client, texts: Sequence[str]) -> tuple[str, ...]:
    """Return what of these texts stands for one token of this model although it is no word but markup. Asks the
    server only when a text holds something that looks like it."""
    known = (one for one in _KNOWN_MARKUP if any(one in text for text in texts))
    return _single(client, (*known, *(one for text in texts for one in _MARKUP.findall(text))))


def _single(client: Client, texts: Sequence[str]) -> tuple[str, ...]:
    tried = tuple(dict.fromkeys(texts))
    read = tokenize(client, tried, special=False)
    return tuple(text for text, ids in zip(tried, read, strict=True) if len(ids) == 1)


def _refuse_space_prefix(client: Client) -> None:
    """Refuse tokenizers that put a space before every piece: their segments would not join to the text."""
    reply = client.post("/tokenize", {"content": "x", "add_special": False, "with_pieces": True})
    try:
        text = "".join(token["piece"] for token in reply["tokens"])
    except (KeyError, TypeError) as exc:
        raise errors.EngineError(
            "llama-server's /tokenize does not give the text of tokens",
            next_step="use llama-server b9670 or newer, or build ours: scripts/build-llama.sh",
        ) from exc
    if text != "x":
        raise errors.EngineError(
            "this model's tokenizer changes the start of every piece of text (it reads 'x' as "
            f"{text!r}), so a prompt cannot be put together from pieces",
            next_step="choose a model with a byte-level tokenizer, for example: openjev models list",
        )


def _bos(client: Client, first: str) -> tuple[int, ...]:
    """Return the ids the model wants before every prompt: none, or its BOS if the template has not written it."""
    (bare,) = tokenize(client, [first], special=True)
    marked = _ids(client.post("/tokenize", {"content": first, "add_special": True, "parse_special": True}))
    for n in range(len(marked) - len(bare) + 1):
        if marked[n : n + len(bare)] == bare:
            bos = marked[:n]
            return () if bos and bare[:n] == bos else bos
    raise errors.EngineError(
        "this model's tokenizer gives other tokens with and without BOS",
        next_step="choose another model: openjev models list",
    )


def _end(client: Client, eos: str) -> int:
    """Return the id of the token that ends an answer: the model's own, else a line break."""
    ends, line_break = tokenize(client, [eos, "\n"], special=True)
    return ends[0] if len(ends) == 1 else line_break[-1]


def _verify_labels(client: Client, cue: str) -> tuple[labels.Label, ...]:
    tried = labels.candidates()
    alone, *followed = tokenize(client, [cue, *(cue + text for text in tried)], special=True)
    found = labels.verify(alone, tuple(zip(tried, followed, strict=True)))
    if len(found) < 2:
        raise errors.EngineError(
            "this model has no single-token labels A, B, ... behind its answer cue",
            next_step="choose another model: openjev models list",
        )
    return found


# --------------------------------------------------------------------------------------------- tokenizing


def tokenize(client: Client, texts: Sequence[str], *, special: bool) -> list[tuple[int, ...]]:
    """Return the token ids of each text, tokenized apart from the others, in one request.

    special: parse special tokens (frame text) or read them as plain text (user text). No BOS is added.
    """
    if not texts:
        return []
    content: list[str | int] = []
    for text in texts:
        content.extend((text, _SEPARATOR))
    body = {"content": content, "add_special": False, "parse_special": special}
    pieces: list[tuple[int, ...]] = []
    current: list[int] = []
    for token in _ids(client.post("/tokenize", body)):
        if token == _SEPARATOR:
            pieces.append(tuple(current))
            current = []
        else:
            current.append(token)
    if len(pieces) != len(texts) or current:
        raise errors.EngineError(
            f"llama-server tokenized {len(texts)} pieces of text into {len(pieces)}",
            next_step="use llama-server b9670 or newer, or build ours: scripts/build-llama.sh",
        )
    return pieces


def _ids(reply: Any) -> tuple[int, ...]:
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise errors.EngineError(
            "llama-server's /tokenize gave no list of token ids",
            next_step="use llama-server b9670 or newer, or build ours: scripts/build-llama.sh",
        )
    return tuple(tokens)


# ---------------------------------------------------------------------------------------------- templates


def _placeholder() -> str:
    # Letters and digits only: nothing a template trims, escapes or parses; random: in no user's text.
    return f"Qz{os.urandom(12).hex()}zQ"


def _apply(client: Client, messages: Sequence[tuple[str, str]]) -> str:
    body = {
        "messages": [{"role": role, "content": content} for role, content in messages],
        "add_generation_prompt": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    reply = client.post("/apply-template", body)
    text = reply.get("prompt") if isinstance(reply, dict) else None
    if not isinstance(text, str):
        raise errors.EngineError(
            "llama-server's /apply-template gave no prompt",
            next_step="use llama-server b9670 or newer, or build ours: scripts/build-llama.sh",
        )
    return text


class TemplateRefusal(errors.EngineError):
    """The chat template does not take this conversation, or drops a part of it."""


def render(client: Client, messages: Sequence[tuple[str, str]]) -> prompt.Frame:
    """Return the frame the engine's own template puts round these messages, contents replaced by placeholders.

    Raises TemplateRefusal if the template raises, or if a content is dropped, moved or shown twice.
    """
    marks = [_placeholder() for _ in messages]
    try:
        text = _apply(client, [(role, mark) for (role, _), mark in zip(messages, marks, strict=True)])
    except errors.ConnectionLost:
        raise
    except errors.EngineError as exc:
        raise TemplateRefusal(exc.message, next_step=exc.next_step) from exc
    pieces = prompt.split(text, marks)
    if pieces is None:
        raise TemplateRefusal(
            "the model's chat template does not show every message once, in order",
            next_step="ask about the conversation as JSON: --json",
        )
    return prompt.Frame(pieces)


def learn_skeleton(client: Client) -> prompt.Skeleton | None:
    """Return what the template writes round user messages, or None if it is not that regular."""

    def pieces(*message_roles: str) -> tuple[str, ...] | None:
        try:
            return render(client, [(role, "") for role in message_roles]).around
        except TemplateRefusal:
            return None

    return prompt.learn(
        pieces("user"),
        pieces("user", "user"),
        pieces("user", "user", "user"),
        pieces("system", "user", "user"),
    )


def frame_for(client: Client, facts: Facts, state: states.State) -> tuple[prompt.Frame, bool]:
    """Return the frame of a request about `state`, and whether it was filled from the skeleton.

    Raises TemplateRefusal when the template takes the conversation in no way.
    """
    roles = (*prompt.roles(state), "user")
    if facts.skeleton is not None:
        frame = facts.skeleton.frame(roles)
        if frame is not None:
            return frame, True
    return render(client, [(role, "") for role in roles]), False


def agrees(client: Client, frame: prompt.Frame, state: states.State) -> bool:
    """Return whether the engine renders this state as the local frame does.

    Contents that a template may trim or that hold markup or images are compared by placeholder, as they are
    put into the prompt untouched in any case.
    """
    shown = [_comparable(parts) for parts in (*prompt.contents(state), (_placeholder(),))]
    if frame.merged:
        shown = [shown[0] + frame.around[1] + shown[1]]
        around: tuple[str, ...] = (frame.around[0], frame.around[2])
        roles: tuple[str, ...] = ("user",)
    else:
        around, roles = frame.around, (*prompt.roles(state), "user")
    local = around[0] + "".join(text + after for text, after in zip(shown, around[1:], strict=True))
    return _apply(client, list(zip(roles, shown, strict=True))) == local


def _comparable(parts: Sequence[states.Part]) -> str:
    text = parts[0] if len(parts) == 1 else None
    is_plain = isinstance(text, str) and text == text.strip() and text.isprintable()
    return text if is_plain and isinstance(text, str) else _placeholder()
