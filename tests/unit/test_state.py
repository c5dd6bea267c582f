"""What a state is read as: text, JSON or chat; and what is refused in one line."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from openjev_cli import errors, images, reading, state
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


PNG = (CASES / "C05_plain.png").read_bytes()
IMAGE = images.from_bytes(PNG, name="x")


def image_part(data: bytes = PNG) -> dict[str, object]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("name", ["s.png", "s.txt", "s.json", "s"])
def test_an_image_is_a_state_whatever_its_name(name: str) -> None:
    assert state.from_bytes(PNG, name=name) == State("text", "", images=(IMAGE,))


def test_an_image_on_stdin_is_a_state() -> None:
    assert state.from_stdin(PNG) == State("text", "", images=(IMAGE,))


def test_an_image_is_no_json_and_no_text() -> None:
    with pytest.raises(errors.InputError, match="stdin: is neither UTF-8 text nor an image"):
        state.from_stdin(PNG, form="json")


def test_images_stand_before_the_state_they_are_added_to() -> None:
    other = images.from_bytes((CASES / "C01_plain.png").read_bytes(), name="y")
    whole = state.with_images(state.from_text("a"), [IMAGE, other])
    assert whole == State("text", "a", images=(IMAGE, other))
    assert state.with_images(whole, [IMAGE]).all_images == (IMAGE, other, IMAGE)
    with pytest.raises(errors.InputError, match="9 images"):
        state.with_images(whole, [IMAGE] * 7)


def test_the_budget_reaches_every_image() -> None:
    small = images.from_bytes(PNG, name="x", max_tokens=64)
    chat_of_one = chat({"role": "user", "content": [image_part()]}).encode()
    assert state.from_bytes(PNG, name="s.png", image_tokens=64).all_images == (small,)
    assert state.from_stdin(PNG, image_tokens=64).all_images == (small,)
    assert state.from_stdin(chat_of_one, image_tokens=64).all_images == (small,)
    assert state.from_bytes(chat_of_one, name="s.json", image_tokens=64).all_images == (small,)


def test_the_images_of_a_chat_stay_between_its_texts() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        image_part(),
        {"type": "text", "text": "c\u0000"},
    ]
    read = state.from_stdin(
        chat({"role": "user", "content": parts}, {"role": "user", "content": "d"}).encode()
    )
    text = (
        '[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image"},'
        '{"type":"text","text":"c\\u0000"}]},{"role":"user","content":"d"}]'
    )
    messages = (Message("user", "a\nb\nc\\u0000", ("a", "\nb", IMAGE, "c\\u0000")), Message("user", "d"))
    assert read == State("chat", text, messages)
    assert read.all_images == (IMAGE,)
    assert read.as_json() == State("json", text, images=(IMAGE,))


def test_a_bare_url_in_an_image_part_is_read_too() -> None:
    part = image_part()
    part["image_url"] = part["image_url"]["url"]  # type: ignore[index]
    assert state.from_stdin(chat({"role": "user", "content": [part]}).encode()).all_images == (IMAGE,)


def test_every_bad_image_of_a_chat_is_named() -> None:
    http = {"type": "image_url", "image_url": {"url": "http://example.org/a.png"}}
    none = {"type": "image_url", "image_url": 5}
    data = chat(
        {"role": "user", "content": [http, image_part()]},
        {"role": "user", "content": [image_part(b"x"), none]},
    )
    with pytest.raises(errors.InputError) as caught:
        state.from_bytes(data.encode(), name="s.json")
    refused = "not a data URL (no URL is fetched, no file is read)"
    assert caught.value.problems == (
        f"s.json: messages[0].content[0]: {refused}",
        "s.json: messages[1].content[0]: text, not an image",
        f"s.json: messages[1].content[1]: {refused}",
    )


def test_too_many_images_of_a_chat_are_refused_before_any_is_read() -> None:
    data = chat({"role": "user", "content": [image_part(b"x")] * 9})
    assert refusal(data.encode(), "s.json") == "9 images: a request may hold 8"


@pytest.mark.parametrize(
    ("file", "name", "message"),
    [
        ("C07_heic_inside.jpg", "s.jpg", "s.jpg: a HEIC image, which is not supported"),
        ("C07_heic_inside.jpg", "s.txt", "s.txt: a HEIC image, which is not supported"),
        ("C07_html_inside.jpg", "s.jpg", "s.jpg: an HTML page, not an image"),
        ("C07_empty.png", "s.png", "s.png: the file is empty"),
    ],
)
def test_what_is_named_as_an_image_but_is_none_is_refused(file: str, name: str, message: str) -> None:
    assert refusal((CASES / file).read_bytes(), name) == message


@pytest.mark.parametrize("name", ["s.bin", "s.json", "s"])
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
