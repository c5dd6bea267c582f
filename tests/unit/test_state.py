"""What a state is read as: text, JSON or chat; and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openjev_cli import errors, reading, state
from openjev_cli.state import Message, State

CASES = Path(__file__).parent.parent / "cases"


def case(name: str) -> State:
    return state.from_path(CASES / name)


def chat(*messages: object) -> str:
    return json.dumps(messages)


def refusal(data: bytes, name: str) -> str:
    with pytest.raises(errors.InputError) as caught:
        state.from_bytes(data, name=name)
    assert caught.value.problems == (caught.value.message,)
    return caught.value.message


def test_a_byte_order_mark_changes_nothing() -> None:
    plain = State("json", '{"note":"Please send my money back, the parcel never came."}')
    assert case("A01_plain.json") == plain
    assert case("A01_bom.json") == plain
    assert state.from_stdin((CASES / "A01_bom.json").read_bytes()) == plain


def test_json_is_compacted_and_can_be_spaced() -> None:
    data = b'{ "b": [1.50, 2,\r\n {"a": "x,  y: z"}], "a": null }\n'
    compact = State("json", '{"b":[1.50,2,{"a":"x,  y: z"}],"a":null}')
    spaced = State("json", '{"b": [1.50, 2, {"a": "x,  y: z"}], "a": null}')
    assert state.from_bytes(data, name="s.JSON") == compact
    assert state.from_bytes(data, name="s.json", compact=False) == spaced


def test_yaml_dates_and_words_reach_the_model_as_written() -> None:
    assert case("B03_state.yaml") == State(
        "json",
        '{"ordered":"2026-03-01","promised":"2026-03-04T10:00:00Z","arrived":"2026-03-09",'
        '"note":"parcel came late","blob":"aGVsbG8=","seen":["a","b"]}',
    )


@pytest.mark.parametrize("name", ["F06_state_spaces.txt", "F06_state_thinktag.txt"])
def test_text_keeps_its_edges_and_tags(name: str) -> None:
    assert case(name) == State("text", (CASES / name).read_text())


@pytest.mark.parametrize("text", ["", " ", "\r\n\t "])
def test_blank_states_are_texts(text: str) -> None:
    expected = State("text", text)
    assert state.from_bytes(text.encode(), name="s.txt") == expected
    assert state.from_stdin(text.encode()) == expected
    assert state.from_text(text) == expected


def test_control_characters_are_visible_in_every_kind() -> None:
    assert state.from_text("a\x00\x1b\t\n") == State("text", "a\\u0000\\u001b\t\n")
    assert state.from_bytes(b'["\\u0000\x7f"]', name="s.json") == State("json", '["\\u0000\\u007f"]')
    messages = chat({"role": "user", "content": "a\x00"})
    assert state.from_stdin(messages.encode()).messages == (Message("user", "a\\u0000"),)


def test_stdin_is_json_only_if_it_parses_as_an_object_or_array() -> None:
    read = [state.from_stdin(data) for data in (b" [1, 2]\n", b"5", b'"x"', b"{not json}", b"[1]\n[2]\n")]
    assert read == [
        State("json", "[1,2]"),
        State("text", "5"),
        State("text", '"x"'),
        State("text", "{not json}"),
        State("text", "[1]\n[2]\n"),
    ]


def test_stdin_json_that_is_refused_is_not_taken_as_text() -> None:
    with pytest.raises(errors.InputError) as caught:
        state.from_stdin(b'{"a": 1, "a": NaN}')
    assert caught.value.problems == (
        "stdin:1:10: a: this key is there twice",
        "stdin:1:15: a: NaN is no JSON number",
    )


def test_the_form_of_stdin_can_be_forced() -> None:
    assert state.from_stdin(b'{"a": 1}', form="text") == State("text", '{"a": 1}')
    assert state.from_stdin(b"5", form="json") == State("json", "5")
    with pytest.raises(reading.SyntaxFault):
        state.from_stdin(b"x", form="json")


def test_a_json_file_with_one_string_is_a_text() -> None:
    assert state.from_bytes(b'"a\\nb"', name="s.json") == State("text", "a\nb")


@pytest.mark.parametrize("name", ["s.ndjson", "s.jsonl"])
def test_ndjson_is_an_array_of_its_records_with_a_notice(name: str) -> None:
    read = state.from_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\r\n{"n": 2}', name=name)
    assert read == State("json", '[{"n":1},{"n":2}]')
    assert read.notices == (
        f"{name}: 2 records read as one state, an array; ask --each answers for each of them",
    )


def test_chat_is_a_list_or_exactly_messages() -> None:
    items = [{"role": "system", "content": "Be kind."}, {"content": "Hi ", "role": "user"}]
    messages = (Message("system", "Be kind."), Message("user", "Hi "))
    text = '[{"role":"system","content":"Be kind."},{"content":"Hi ","role":"user"}]'
    assert state.from_stdin(json.dumps(items).encode()) == State("chat", text, messages)
    wrapped = State("chat", f'{{"messages":{text}}}', messages)
    assert state.from_stdin(json.dumps({"messages": items}).encode()) == wrapped
    assert wrapped.as_json() == State("json", f'{{"messages":{text}}}')
    assert state.from_text("x").as_json() == State("text", "x")


def test_text_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    read = state.from_stdin(chat({"role": "tool", "content": parts}).encode())
    assert (read.kind, read.messages) == ("chat", (Message("tool", "a\nb"),))


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"messages": []},
        {"messages": [{"role": "user", "content": "a"}], "model": "m"},
        [{"role": "user", "content": "a", "name": "bob"}],
        [{"role": "developer", "content": "a"}],
        [{"role": ["user"], "content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        [{"role": "user", "content": [{"type": "audio", "text": "a"}]}],
        [{"role": "user", "content": "a"}, "b"],
    ],
)
def test_what_is_not_exactly_a_chat_stays_json(value: object) -> None:
    text = json.dumps(value, separators=(",", ":"))
    assert state.from_stdin(text.encode()) == State("json", text)


def test_a_chat_with_an_image_is_refused_in_one_line() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert (
        refusal(chat({"role": "user", "content": [image]}).encode(), "s.json")
        == "s.json: the chat holds an image; this version does not read images yet"
    )


@pytest.mark.parametrize(
    ("file", "name", "message"),
    [
        ("C05_plain.png", "s.png", "s.png: is an image (PNG); this version does not read images yet"),
        ("C05_plain.png", "s.txt", "s.txt: is an image (PNG); this version does not read images yet"),
        ("C07_heic_inside.jpg", "s.jpg", "s.jpg: is an image (HEIC); this version does not read images yet"),
        ("C07_html_inside.jpg", "s.jpg", "s.jpg: named as an image, but it is no image but text"),
        ("C07_empty.png", "s.png", "s.png: named as an image, but it is empty"),
    ],
)
def test_images_are_told_by_their_bytes(file: str, name: str, message: str) -> None:
    assert refusal((CASES / file).read_bytes(), name) == message


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "PNG"),
        (b"\xff\xd8\xff\xe1", "JPEG"),
        (b"GIF89a\1", "GIF"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "WebP"),
        (b"\0\0\0\x20ftypmif1", "HEIC"),
        (b"\0\0\0\x20ftypavif", "AVIF"),
        (b"RIFF\x10\0\0\0WAVE", None),
        (b"\x89PN", None),
        (b"", None),
    ],
)
def test_image_kinds(start: bytes, kind: str | None) -> None:
    assert state.image_kind(start) == kind


@pytest.mark.parametrize("name", ["s.bin", "s.json", "s.png"])
def test_bytes_that_are_neither_image_nor_utf8_are_one_line(name: str) -> None:
    expected = f"{name}: is neither UTF-8 text nor an image (byte 0xff at offset 2)"
    assert refusal(b"ab\xff\xfe\0", name) == expected


def test_an_argument_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(errors.InputError) as caught:
        state.from_text("caf\udce9")
    assert caught.value.message == "--text: is not UTF-8 text (byte 0xe9 at offset 3)"


def test_a_directory_and_a_missing_file_are_one_line(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a directory"), (tmp_path / "x", "no such file")):
        with pytest.raises(errors.InputError) as caught:
            state.from_path(path)
        assert caught.value.message == f"{path}: {message}"
