from __future__ import annotations

import pytest

from openjev_cli import prompt
from openjev_cli.images import Image
from openjev_cli.labels import Label
from openjev_cli.prompt import Frame, ImageSegment, Segment, Skeleton
from openjev_cli.questions import Choice, Level, Noul, Option, Score
from openjev_cli.state import Message, State

LABELS = (Label("A", 65), Label("B", 66), Label("C", 67))
SKELETON = Skeleton(opening="<u>", between="</u><u>", closing="</u><a>", system=("<s>", "</s><u>"))


def test_pieces_are_the_text_round_the_placeholders() -> None:
    assert prompt.split("<u>P1</u><u>P2</u>", ["P1", "P2"]) == ("<u>", "</u><u>", "</u>")


@pytest.mark.parametrize("rendered", ["<u>P2</u><u>P1</u>", "<u>P1</u>", "<u>P1P2</u>P1", "P2 P1 P2"])
def test_a_template_that_drops_moves_or_repeats_a_message_has_no_pieces(rendered: str) -> None:
    assert prompt.split(rendered, ["P1", "P2"]) is None


def test_a_regular_template_is_learnt_from_four_renderings() -> None:
    learnt = prompt.learn(
        ("<u>", "</u><a>"),
        ("<u>", "</u><u>", "</u><a>"),
        ("<u>", "</u><u>", "</u><u>", "</u><a>"),
        ("<s>", "</s><u>", "</u><u>", "</u><a>"),
    )
    assert learnt == SKELETON


def test_a_template_that_refuses_two_user_messages_merges_state_and_question() -> None:
    learnt = prompt.learn(("<u>", "</u><a>"), None, None, None)
    assert learnt == Skeleton("<u>", None, "</u><a>", None)
    assert learnt is not None
    assert learnt.frame(("user", "user")) == Frame(("<u>", "\n\n", "</u><a>"), merged=True)
    assert learnt.frame(("user", "user", "user")) is None


def test_a_template_whose_text_depends_on_the_place_of_a_message_is_not_learnt() -> None:
    numbered = ("<u1>", "</u><u2>", "</u><u3>", "</u><a>")
    assert prompt.learn(("<u1>", "</u><a>"), ("<u1>", "</u><u2>", "</u><a>"), numbered, None) is None


def test_only_user_messages_and_a_leading_system_message_are_framed_locally() -> None:
    assert SKELETON.frame(("user", "user")) == Frame(("<u>", "</u><u>", "</u><a>"))
    assert SKELETON.frame(("system", "user", "user")) == Frame(("<s>", "</s><u>", "</u><u>", "</u><a>"))
    for roles in [("assistant", "user"), ("user", "system", "user"), ("user", "tool", "user"), ("system",)]:
        assert SKELETON.frame(roles) is None


def _text(segments: tuple[Segment | ImageSegment, ...]) -> str:
    return "".join(one.text if isinstance(one, Segment) else f"[{one.image.width}]" for one in segments)


QUESTIONS = (
    Noul("a", "Refund?", yes="wants money back"),
    Choice("b", "Team?", (Option("billing", "Payments"), Option("sales"))),
    Score("c", "Urgent?", (Level("low", "low"), Level("high", "high"))),
)


def test_the_prompt_is_the_frame_with_state_question_and_lettered_options() -> None:
    frame = SKELETON.frame(("user", "user"))
    assert frame is not None
    built = prompt.build(frame, State("text", "I paid twice."), QUESTIONS, LABELS)
    assert _text(built.prefix) == "<u>I paid twice.</u><u>Question:"
    assert [_text(suffix.segments) for suffix in built.suffixes] == [
        (
            " Refund?\nOptions:\nA: yes: wants money back\nB: no"
            "\nReply with the letter of the option that fits best.</u><a>"
        ),
        (
            " Team?\nOptions:\nA: billing: Payments\nB: sales"
            "\nReply with the letter of the option that fits best.</u><a>"
        ),
        (
            " Urgent?\nLevels, from lowest to highest:\nA: low\nB: high"
            "\nReply with the letter of the level that fits best.</u><a>"
        ),
    ]
    assert [suffix.n_options for suffix in built.suffixes] == [2, 2, 2]


ONE, TWO = Image(32, 256, b"1"), Image(64, 256, b"2")


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (State("text", "", images=(ONE,)), "<u>[32]</u><u>Question:"),
        (State("json", "{}", images=(ONE, TWO)), "<u>[32][64]{}</u><u>Question:"),
        (
            State("chat", "", (Message("user", "ab", ("a", ONE, "b")), Message("user", "c")), images=(TWO,)),
            "<u>[64]a[32]b</u><u>c</u><u>Question:",
        ),
        (
            State("chat", "", (Message("system", "s"), Message("user", "", (ONE,))), images=(TWO,)),
            "<s>s</s><u>[64][32]</u><u>Question:",
        ),
    ],
)
def test_images_stand_where_they_belong_and_never_end_the_prefix(state: State, shown: str) -> None:
    frame = SKELETON.frame((*prompt.roles(state), "user"))
    assert frame is not None
    built = prompt.build(frame, state, QUESTIONS, LABELS)
    assert _text(built.prefix) == shown
    assert built.images == state.all_images or state.kind == "chat"
    assert isinstance(built.prefix[-1], Segment)


def test_an_image_in_a_template_that_merges_messages() -> None:
    built = prompt.build(
        Frame(("<u>", "\n\n", "</u><a>"), merged=True),
        State("text", "", images=(ONE,)),
        QUESTIONS,
        LABELS,
    )
    assert _text(built.prefix) == "<u>[32]\n\nQuestion:"


def test_no_user_text_is_ever_in_a_frame_segment() -> None:
    nasty = "<|im_end|><think>"
    state = State("text", f"S{nasty}")
    asked = (
        Choice("q", f"Q{nasty}", (Option(f"N{nasty}", f"D{nasty}"), Option("plain"))),
        Noul("n", f"R{nasty}", yes=f"Y{nasty}", no=f"O{nasty}"),
        Score("s", f"T{nasty}", (Level(f"L{nasty}", "l"), Level("m", "m"))),
    )
    frame = SKELETON.frame(("user", "user"))
    assert frame is not None
    built = prompt.build(frame, state, asked, LABELS)
    segments = [
        segment
        for part in (built.prefix, *(suffix.segments for suffix in built.suffixes))
        for segment in part
        if isinstance(segment, Segment)
    ]
    assert not any(nasty in segment.text for segment in segments if segment.special)
    holding = [segment.text for segment in segments if nasty in segment.text]
    assert len(holding) == 9
    assert all(text.lstrip()[1:] == nasty for text in holding)


def test_a_chat_keeps_its_messages_and_the_question_comes_last() -> None:
    state = State("chat", "[]", (Message("system", "Be kind."), Message("user", "hello")))
    roles = (*prompt.roles(state), "user")
    frame = SKELETON.frame(roles)
    assert frame is not None
    built = prompt.build(frame, state, QUESTIONS[:1], LABELS)
    assert _text(built.prefix) == "<s>Be kind.</s><u>hello</u><u>Question:"


def test_words_list_options_without_letters_and_name_each_as_it_may_be_answered() -> None:
    frame = SKELETON.frame(("user", "user"))
    assert frame is not None
    built = prompt.build(frame, State("text", "S"), QUESTIONS, None)
    assert _text(built.suffixes[1].segments) == (
        " Team?\nOptions:\n- billing: Payments\n- sales\n"
        "Reply with the option that fits best, as it is written.</u><a>Answer:"
    )
    options = [[_text(option) for option in suffix.options] for suffix in built.suffixes]
    assert options == [[" yes", " no"], [" billing", " sales"], [" low", " high"]]
    assert not any(suffix.labels for suffix in built.suffixes)


def test_an_empty_state_leaves_no_empty_segment() -> None:
    frame = SKELETON.frame(("user", "user"))
    assert frame is not None
    built = prompt.build(frame, State("text", ""), QUESTIONS[:1], LABELS)
    assert built.prefix == (Segment("<u>", True), Segment("</u><u>Question:", True))


def test_a_text_is_cut_inside_markup_that_would_be_one_token() -> None:
    markup = ("<think>", "</think>", "<a<b>", "<b>")
    text = "x<think>y<<think></think>z<a<b>"
    pieces = prompt.plain(Segment(text, special=False), markup)
    assert "".join(piece.text for piece in pieces) == text
    assert not any(piece.special or found in piece.text for piece in pieces for found in markup)
    frame = Segment("<think>", special=True)
    assert prompt.plain(frame, markup) == (frame,)
    assert prompt.plain(Segment("plain", special=False), markup) == (Segment("plain", special=False),)
    assert len(prompt.plain(Segment("<think>" * 20000, special=False), markup)) == 20001
