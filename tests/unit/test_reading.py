"""Bytes, JSON and YAML: what is read is what was written, or one line says where it is not."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from openjev_cli import errors, reading
from openjev_cli.reading import Number

CASES = Path(__file__).parent.parent / "cases"


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(errors.InputError) as caught:
        reading.parse_json(text, name="f.json")
    return caught.value.problems


def yaml_problems(text: str, *, refuse_cut: bool = False) -> tuple[str, ...]:
    with pytest.raises(errors.InputError) as caught:
        reading.read_yaml(text, name="f.yaml", refuse_cut=refuse_cut)
    return caught.value.problems


def test_one_byte_order_mark_is_dropped_and_no_other() -> None:
    assert reading.decode(b"\xef\xbb\xbfa\xef\xbb\xbf", name="f") == "a\ufeff"


def test_bytes_that_are_not_utf8_are_refused_with_their_offset() -> None:
    with pytest.raises(errors.InputError) as caught:
        reading.decode(b"caf\xe9", name="f.txt")
    assert caught.value.message == "f.txt: is not UTF-8 text (byte 0xe9 at offset 3)"


def test_utf16_is_called_by_its_name() -> None:
    with pytest.raises(errors.InputError) as caught:
        reading.decode("\ufeffhi".encode("utf-16-le"), name="f.txt")
    assert caught.value.message == "f.txt: looks like UTF-16 (byte 0xff at offset 0)"
    assert "iconv -f UTF-16" in caught.value.next_step


def test_decode_keeps_nul_spaces_and_line_ends() -> None:
    assert reading.decode(b" \x00\r\n\t ", name="f") == " \x00\r\n\t "


def test_control_characters_become_escapes_except_tab_and_line_ends() -> None:
    assert (
        reading.visible("a\x00\x1b[1m\x7f\x85\t\r\n\u200b") == "a\\u0000\\u001b[1m\\u007f\\u0085\t\r\n\u200b"
    )


def test_an_argument_that_is_not_utf8_is_refused_by_decode() -> None:
    assert reading.argument("café", name="-Q") == "café"
    assert reading.argument_bytes("caf\udce9") == b"caf\xe9"
    for text in ("caf\udce9", "\ud800"):
        with pytest.raises(errors.InputError):
            reading.argument(text, name="-Q")


def test_only_newline_ends_a_line() -> None:
    assert list(reading.lines("a\r\nb\u2028c\x0cd\n")) == [(1, "a"), (2, "b\u2028c\x0cd"), (3, "")]


def test_file_errors_name_the_path(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    messages = []
    for path in (missing, tmp_path, Path("nul\0byte")):
        with pytest.raises(errors.InputError) as caught:
            reading.read_file(path)
        messages.append(caught.value.message)
    assert messages == [
        f"{missing}: no such file",
        f"{tmp_path}: is a directory",
        "nul\0byte: cannot be read: embedded null byte",
    ]


def test_numbers_and_key_order_stay_as_written() -> None:
    text = '{"z":1.50,"a":[1e0,-0,12345678901234567890123,1E+400],"m":"\\u00e9\\/"}'
    value = reading.parse_json(text, name="f")
    assert value == {
        "z": Number("1.50"),
        "a": [Number("1e0"), Number("-0"), Number("12345678901234567890123"), Number("1E+400")],
        "m": "é/",
    }
    assert reading.dumps(value, compact=True) == text.replace("\\u00e9\\/", "é/")


def test_dumps_spaced_is_what_json_writes() -> None:
    plain = {"a": [1, 2.5, True, False, None], 'b\n"': {"ü": "\u2028\\"}, "c": [], "d": {}}
    value = reading.parse_json(json.dumps(plain), name="f")
    assert reading.dumps(value, compact=False) == json.dumps(plain, ensure_ascii=False)
    assert reading.plain(value) == plain


def test_plain_numbers_are_ints_floats_or_else_their_text() -> None:
    value = reading.parse_json("[7, 1.5, 1e999]", name="f")
    assert reading.plain(value) == [7, 1.5, "1e999"]


def test_everything_json_may_not_hold_is_reported_at_once_with_its_path() -> None:
    assert problems('{"a": 1, "a": 2,\n "b": [NaN, {"c d": "\\ud800x"}, -Infinity]}') == (
        "f.json:1:10: a: this key is there twice",
        "f.json:2:8: b[0]: NaN is no JSON number",
        'f.json:2:22: b[1]["c d"]: \\ud800 is half of a surrogate pair, no character',
        "f.json:2:33: b[2]: -Infinity is no JSON number",
    )


def test_half_a_surrogate_pair_in_a_key_is_refused() -> None:
    assert problems('{"\\ud800": 1}') == ("f.json:1:3: \\ud800 is half of a surrogate pair, no character",)


def test_a_surrogate_pair_is_one_character() -> None:
    assert reading.parse_json('["\\ud83d\\ude42", "\\uD83D\\uDE42"]', name="f") == ["🙂", "🙂"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1:1: empty: a JSON value was expected"),
        ("  \n", "2:1: empty: a JSON value was expected"),
        ("[1,2,]", "1:6: a comma before ] (nothing follows it)"),
        ('{"a":1,}', "1:8: a comma before } (nothing follows it)"),
        ('{"a":1', "1:1: { is never closed"),
        ('{"a":[1', "1:6: a: [ is never closed"),
        ('{"a":1,', "1:1: { is never closed"),
        ('["x', "1:2: [0]: the string is never closed"),
        ("{a:1}", "1:2: a key in double quotes was expected"),
        ("['a']", "1:2: [0]: strings need double quotes"),
        ("[01]", "1:2: [0]: 01 is no JSON value (strings need double quotes)"),
        ("[+1]", "1:2: [0]: +1 is no JSON value (strings need double quotes)"),
        ("[1.]", "1:3: a comma or ] was expected"),
        ("[1 2]", "1:4: a comma or ] was expected"),
        ('{"a" 1}', "1:6: a: a colon was expected after the key"),
        ('{"a":}', "1:6: a: the value is missing"),
        ("[,1]", "1:2: [0]: the value is missing"),
        ('["\\q"]', "1:3: [0]: \\q is no JSON escape (a backslash is \\\\)"),
        ('["\\u12"]', "1:3: [0]: \\u needs four hexadecimal digits"),
        ('["\t"]', "1:3: [0]: control character U+0009 in a string: write \\u0009"),
        ("[True]", "1:2: [0]: True is no JSON value (strings need double quotes)"),
        ("[1] // x", "1:5: text after the end of the JSON value (one value a line is .ndjson)"),
        ("// x\n1", "1:1: JSON has no comments"),
        ('{"a":1}\n{"a":2}', "2:1: text after the end of the JSON value (one value a line is .ndjson)"),
        ("\ufeff1", "1:1: unexpected U+FEFF"),
    ],
)
def test_text_that_is_no_json_is_placed(text: str, problem: str) -> None:
    with pytest.raises(reading.SyntaxFault) as caught:
        reading.parse_json(text, name="f.json")
    assert caught.value.problems == (f"f.json:{problem}",)


def test_deep_nesting_is_one_line_and_the_limit_is_read() -> None:
    depth = reading.MAX_DEPTH
    too_deep = (f"f.json:1:{depth + 1}: nested deeper than {depth} levels",)
    assert problems("[" * (depth + 1) + "]" * (depth + 1)) == too_deep
    assert problems("[" * 200_000) == too_deep
    text = "[" * depth + "1" + "]" * depth
    assert reading.dumps(reading.parse_json(text, name="f"), compact=True) == text


def test_the_careful_scanner_reads_what_the_fast_reader_reads() -> None:
    source = random.Random(7)

    def make(depth: int) -> object:
        kind = source.randrange(8 if depth < 5 else 6)
        if kind == 6:
            return [make(depth + 1) for _ in range(source.randrange(4))]
        if kind == 7:
            return {f"k{i}\u00e9\n": make(depth + 1) for i in range(source.randrange(4))}
        return (None, True, source.randrange(-9, 9), source.random(), 'a"b\\\x01🙂', "")[kind]

    for _ in range(300):
        text = json.dumps(make(0), indent=source.choice([None, 1]), ensure_ascii=source.random() < 0.5)
        scanner = reading._JsonScanner(text).scan()
        assert (scanner.faults, scanner.value) == ([], reading.parse_json(text, name="f"))


def test_broken_json_never_raises_anything_but_input_errors() -> None:
    source = random.Random(11)
    faults: list[str] = []
    pieces = [
        '{"a":',
        "[",
        "]",
        "}",
        '"',
        "\\u",
        "\\ud800",
        "1",
        "e",
        ".",
        "-",
        ",",
        ":",
        " ",
        "\n",
        "nul",
        "NaN",
        "é",
    ]
    for _ in range(5000):
        text = "".join(source.choices(pieces, k=source.randrange(12)))
        try:
            value = reading.parse_json(text, name="f")
        except errors.InputError as exc:
            faults += [problem for problem in exc.problems if "\n" in problem]
        else:
            reading.dumps(value, compact=True).encode()
    assert faults == []


def test_document_names_the_place_of_any_part() -> None:
    document = reading.read_json('{"a":\n  [1,\n   {"b": 2}]}', name="f.json")
    locs: list[reading.Loc] = [(), ("a",), ("a", 1, "b"), ("a", 1, "missing", 3)]
    assert [document.where(loc) for loc in locs] == ["f.json:1:1", "f.json:2:3", "f.json:3:10", "f.json:3:4"]


def test_ndjson_skips_blank_lines_and_places_every_bad_one() -> None:
    assert reading.read_ndjson('{"n":1}\n\n  \r\n[2]\r\n', name="f") == [{"n": Number("1")}, [Number("2")]]
    with pytest.raises(errors.InputError) as caught:
        reading.read_ndjson('{"n":1}\n\n{"n":\n{"a":1,"a":2}\n', name="f.ndjson")
    assert caught.value.problems == (
        "f.ndjson:3:6: n: the value is missing",
        "f.ndjson:4:8: a: this key is there twice",
    )


def test_yaml_scalars_stay_what_was_written() -> None:
    assert reading.parse_yaml((CASES / "B03_state.yaml").read_text(), name="f") == {
        "ordered": "2026-03-01",
        "promised": "2026-03-04T10:00:00Z",
        "arrived": "2026-03-09",
        "note": "parcel came late",
        "blob": "aGVsbG8=",
        "seen": ["a", "b"],
    }
    text = "no: on\n3.10: 12:30\nn: ~\ne:\nq: 'x # y'\nl: [0o14, 1_000, .inf, null]\nb: |\n  # kept\n"
    assert reading.parse_yaml(text, name="f") == {
        "no": "on",
        "3.10": "12:30",
        "n": "~",
        "e": "",
        "q": "x # y",
        "l": ["0o14", "1_000", ".inf", "null"],
        "b": "# kept\n",
    }


def test_yaml_anchors_and_merge_keys_are_followed() -> None:
    text = "base: &b {x: 1, y: 2}\nc:\n  <<: *b\n  x: 3\n'<<': kept\n"
    assert reading.parse_yaml(text, name="f") == {
        "base": {"x": "1", "y": "2"},
        "c": {"x": "3", "y": "2"},
        "<<": "kept",
    }


def test_yaml_faults_are_reported_at_once() -> None:
    assert yaml_problems("x: !foo 1\ny: !!python/object:os.system []\nx: 2\n") == (
        "f.yaml:1:4: x: unknown tag !foo",
        "f.yaml:2:4: y: unknown tag !!python/object:os.system",
        "f.yaml:3:1: x: this key is there twice",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &a [1, *a]", "f.yaml:1:4: a[1]: an alias that contains itself"),
        ("? [a]\n: b", "f.yaml:1:3: a key must be a plain text"),
        ("a: *x", "f.yaml:1:4: not valid YAML: found undefined alias 'x'"),
        ("a: \0", "f.yaml:1:4: character U+0000 is not allowed in YAML"),
        ("[" * 600, f"f.yaml: nested deeper than {reading.MAX_DEPTH} levels"),
        (
            "- p? [a: b | c: d]",
            "f.yaml:1:15: a text with a colon and a space in it must be quoted in YAML",
        ),
        (
            "a: b\n---\nc: d",
            (
                "f.yaml:2:1: not valid YAML: "
                "expected a single document in the stream, but found another document"
            ),
        ),
    ],
)
def test_yaml_that_cannot_be_taken_is_one_line(text: str, problem: str) -> None:
    assert yaml_problems(text) == (problem,)


def test_an_alias_bomb_is_refused() -> None:
    names = "abcdefghi"
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    for below, name in itertools.pairwise(names):
        bomb += f"{name}: &{name} [{','.join([f'*{below}'] * 9)}]\n"
    assert [p.split(": ", 1)[1] for p in yaml_problems(bomb)] == [
        f"aliases repeat more than {reading.MAX_ALIASED_NODES} values"
    ]


def test_yaml_values_cut_at_a_comment_are_refused_with_the_quoted_line() -> None:
    text = '# fine\n- Is it # x?\n- "a # b"\n- issue#12\n- k: Isn\'t it # y\n'
    assert yaml_problems(text, refuse_cut=True) == (
        "f.yaml:2:3: [0]: YAML cuts this at # as a comment; write: - 'Is it # x?'",
        "f.yaml:5:6: [3].k: YAML cuts this at # as a comment; write: - 'k: Isn''t it # y'",
    )
    assert reading.parse_yaml("a: b # c", name="f") == {"a": "b"}


def test_the_quoted_line_is_what_was_meant() -> None:
    line = "  - team: Which? [a: it's | b]"
    quoted = reading.quote_yaml(line)
    assert reading.parse_yaml(quoted, name="f") == ["team: Which? [a: it's | b]"]
    assert reading.parse_yaml(reading.quote_yaml("team: p? [a: b]"), name="f") == {"team": "p? [a: b]"}


def test_values_in_messages_are_one_short_line() -> None:
    assert reading.shorten("a\nb\x00" + "x" * 100) == "a b\\u0000" + "x" * 48 + "..."
