"""The prompt: frame text and user text in segments, and the skeleton that frames them.

A prompt is a list of segments; its token ids are the concatenation of the segments' token ids. Frame segments
come from the model's chat template and are tokenized with special tokens; user segments never are, so nothing
a user writes can end a message. Everything here is pure: `engine` renders templates and tokenizes.

Layout: the state (one user message, or the messages of a chat), then the question as a last user message,
then the answer cue. What is the same for every question of a request is its prefix; the rest is a question's
suffix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openjev_cli import errors, questions, reading
from openjev_cli import images as images_
from openjev_cli import state as states
from openjev_cli.labels import Label

# The wording of the frame. A change here changes every answer: it belongs in the changelog.
ASK = "Question:"
OPTIONS = "\nOptions:\n"
LEVELS = "\nLevels, from lowest to highest:\n"
LEVELS_DESCENDING = "\nLevels, from highest to lowest:\n"  # in the second of several orders (`orders`)
REPLY_OPTION = "\nReply with the letter of the option that fits best."
REPLY_LEVEL = "\nReply with the letter of the level that fits best."
# Options read by their own text.
BULLET = "-"
REPLY_OPTION_WORDS = "\nReply with the option that fits best, as it is written."
REPLY_LEVEL_WORDS = "\nReply with the level that fits best, as it is written."
ANSWER_WORDS = "Answer:"
# Stands for the state where a question is read without one.
NO_STATE = "N/A"
STATE_TO_QUESTION = "\n\n"  # only for templates that refuse two user messages in a row


@dataclass(frozen=True)
class Segment:
    """A piece of a prompt. special: frame text, whose special tokens count; else user text, literally."""

    text: str
    special: bool


@dataclass(frozen=True)
class ImageSegment:
    """An image in its place in a prompt."""

    image: images_.Image


@dataclass(frozen=True)
class Suffix:
    """A question's own part of the prompt, from its text to the answer cue, and what may follow: labels (ids
    of tokens, for the readout `letters`), or the text of each option (for `words`)."""

    segments: tuple[Segment, ...]
    labels: tuple[Label, ...] = ()
    options: tuple[tuple[Segment, ...], ...] = ()

    @property
    def n_options(self) -> int:
        """How many answers there are to choose from."""
        return len(self.labels) or len(self.options)


@dataclass(frozen=True)
class Prompt:
    """One prefix shared by all questions, and one suffix for each. Images stand in the prefix only, and never
    at its end: an engine cannot resume directly behind one."""

    prefix: tuple[Segment | ImageSegment, ...]
    suffixes: tuple[Suffix, ...]

    @property
    def images(self) -> tuple[images_.Image, ...]:
        """The images of the prefix, in order."""
        return tuple(segment.image for segment in self.prefix if isinstance(segment, ImageSegment))


@dataclass(frozen=True)
class Frame:
    """The chat template's text round the messages of one conversation.

    around: n + 1 pieces for n messages: before the first content, between contents, behind the last (the
    answer cue). merged: state and question share one user message.
    """

    around: tuple[str, ...]
    merged: bool = False


@dataclass(frozen=True)
class Skeleton:
    """What a chat template writes, learnt from a few renderings, so that later prompts are framed locally.

    opening: before the first user content. between: between two user contents, None if the template refuses
    them in a row. closing: behind the last content. system: (before the system content, between it and the
    first user content), None if the template refuses a system message.
    """

    opening: str
    between: str | None
    closing: str
    system: tuple[str, str] | None

    def frame(self, roles: Sequence[str]) -> Frame | None:
        """Return the frame for messages with these roles, the question's included, or None if this skeleton
        cannot tell (assistant and tool messages, a system message that is not first)."""
        rest = list(roles)
        first = self.opening
        around: list[str] = []
        if rest and rest[0] == "system":
            if self.system is None:
                return None
            around.append(self.system[0])
            first = self.system[1]
            rest = rest[1:]
        if not rest or any(role != "user" for role in rest):
            return None
        if len(rest) > 1 and self.between is None:
            if len(roles) != 2:
                return None
            return Frame((self.opening, STATE_TO_QUESTION, self.closing), merged=True)
        around.append(first)
        around.extend([self.between or ""] * (len(rest) - 1))
        around.append(self.closing)
        return Frame(tuple(around))


def split(rendered: str, placeholders: Sequence[str]) -> tuple[str, ...] | None:
    """Return the text round the placeholders (n + 1 pieces), or None unless each stands there exactly once,
    in order: then the template dropped, moved or repeated a message."""
    pieces: list[str] = []
    rest = rendered
    for placeholder in placeholders:
        before, found, rest = rest.partition(placeholder)
        if not found:
            return None
        pieces.append(before)
    pieces.append(rest)
    if any(placeholder in piece for placeholder in placeholders for piece in pieces):
        return None
    return tuple(pieces)


def learn(
    one: tuple[str, ...] | None,
    two: tuple[str, ...] | None,
    three: tuple[str, ...] | None,
    system_two: tuple[str, ...] | None,
) -> Skeleton | None:
    """Return the skeleton that explains the pieces of four renderings, or None when none does.

    one, two, three: that many user messages; system_two: a system message, then two user messages. None
    stands for a rendering that the template refused or garbled.
    """
    if one is None:
        return None
    opening, closing = one
    between: str | None = None
    if two is not None and three is not None:
        expected = (opening, two[1], closing)
        if two == expected and three == (opening, two[1], two[1], closing):
            between = two[1]
        else:
            return None  # what stands round a message depends on where it is: let the engine render
    system: tuple[str, str] | None = None
    if system_two is not None and between is not None and system_two[2:] == (between, closing):
        system = (system_two[0], system_two[1])
    return Skeleton(opening, between, closing, system)


def roles(state: states.State) -> tuple[str, ...]:
    """Return the roles of the messages that show this state, without the question's."""
    if state.kind == "chat":
        return tuple(message.role for message in state.messages)
    return ("user",)


def contents(state: states.State) -> tuple[tuple[states.Part, ...], ...]:
    """Return the contents of the messages that show this state, in the order of `roles`.

    Images of the state itself come first: in a chat, at the start of what the user says first.
    """
    if state.kind != "chat":
        return ((*state.images, state.text),)
    shown = [message.parts or (message.content,) for message in state.messages]
    first = next((at for at, message in enumerate(state.messages) if message.role == "user"), 0)
    shown[first] = (*state.images, *shown[first])
    return tuple(shown)


def build(
    frame: Frame,
    state: states.State,
    asked: Sequence[questions.Question],
    labels: Sequence[Label] | None,
    markup: Sequence[str] = (),
) -> Prompt:
    """Return the prompt of a request.

    labels: the verified ones, at least as many as the longest question has options; None: options are read by
    their own text. markup: what the tokenizer makes one token of even in plain text, such as <think>; a user's
    text is cut inside it, so that it stays text.
    """
    shown = contents(state)
    prefix: list[Segment | ImageSegment] = []
    for before, parts in zip(frame.around, shown, strict=False):
        prefix.append(Segment(before, special=True))
        for part in parts:
            prefix.append(Segment(part, special=False) if isinstance(part, str) else ImageSegment(part))
    # What leads from the state to the question's own text is the same for all of them: it ends the prefix.
    prefix.append(Segment(frame.around[len(shown)] + ASK, special=True))
    cue = frame.around[-1]
    suffixes = (
        _suffix_words(question, cue) if labels is None else _suffix(question, labels, cue)
        for question in asked
    )
    return Prompt(
        tuple(
            piece
            for segment in prefix
            for piece in (plain(segment, markup) if isinstance(segment, Segment) else (segment,))
        ),
        tuple(
            Suffix(
                _all_plain(suffix.segments, markup),
                suffix.labels,
                tuple(_all_plain(option, markup) for option in suffix.options),
            )
            for suffix in suffixes
        ),
    )


def _all_plain(segments: Sequence[Segment], markup: Sequence[str]) -> tuple[Segment, ...]:
    return tuple(piece for one in segments for piece in plain(one, markup))


def plain(segment: Segment, markup: Sequence[str]) -> tuple[Segment, ...]:
    """Return a user segment in pieces none of which holds any of `markup`; frame text as it is, nothing for
    an empty segment."""
    if segment.special or not markup or not segment.text:
        return (segment,) if segment.text else ()
    import itertools
    import re

    found = re.compile("|".join(re.escape(text) for text in markup))
    pieces: list[Segment] = []
    rest = [segment.text]
    while rest:
        text = rest.pop()
        # Behind its first character neither half is the whole any more.
        cuts = [0, *(match.start() + 1 for match in found.finditer(text)), len(text)]
        if len(cuts) == 2:
            pieces.append(Segment(text, special=False))
        else:
            rest += reversed([text[i:j] for i, j in itertools.pairwise(cuts) if i < j])
    return tuple(pieces)


def options_of(question: questions.Question) -> tuple[tuple[str, str | None], ...]:
    """Return (name, description) of everything the question can be answered with, in label order."""
    if isinstance(question, questions.Noul):
        return (("yes", question.yes), ("no", question.no))
    if isinstance(question, questions.Choice):
        return tuple((option.name, option.description) for option in question.options)
    return tuple((level.text, None) for level in question.levels)


def _suffix(question: questions.Question, labels: Sequence[Label], cue: str) -> Suffix:
    offered = options_of(question)
    used = tuple(labels[: len(offered)])
    reply = REPLY_LEVEL if isinstance(question, questions.Score) else REPLY_OPTION
    bullets = [f"{label.text}:" for label in used]
    return Suffix((*_listed(question, bullets), Segment(reply + cue, special=True)), labels=used)


def _suffix_words(question: questions.Question, cue: str) -> Suffix:
    offered = options_of(question)
    names = [reading.visible(name) for name, _ in offered]
    if len(set(names)) != len(names):
        raise errors.InputError(
            f"question {question.id}: two options look the same to the model, which is to tell them by their text",
            next_step="rename one of them, or read letters instead: --readout letters",
        )
    reply = REPLY_LEVEL_WORDS if isinstance(question, questions.Score) else REPLY_OPTION_WORDS
    # The answer begins as the options do in the list, with a space: the same tokens there and here.
    options = tuple((Segment(f" {name}", special=False),) for name in names)
    listed = _listed(question, [BULLET] * len(offered))
    return Suffix((*listed, Segment(reply + cue + ANSWER_WORDS, special=True)), options=options)


def _listed(question: questions.Question, bullets: Sequence[str]) -> list[Segment]:
    """Return the question and its options, each behind its bullet.

    A space leads each user text inside its own segment, as it would stand in running text: " billing" and not
    "billing" is what tokenizers learnt to see behind a colon.
    """
    segments = [Segment(" " + question.text, special=False)]
    lead = OPTIONS
    if isinstance(question, questions.Score):
        lead = LEVELS_DESCENDING if question.is_descending else LEVELS
    for bullet, (name, description) in zip(bullets, options_of(question), strict=True):
        segments.append(Segment(lead + bullet, special=True))
        segments.append(Segment(" " + reading.visible(name), special=False))
        if description:
            segments.append(Segment(":", special=True))
            segments.append(Segment(" " + description, special=False))
        lead = "\n"
    return segments
