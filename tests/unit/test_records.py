"""Streams of records: their forms, their physical lines, their faults, and constant memory."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from openjev_cli import errors, reading, records
from openjev_cli.reading import Number

CASES = Path(__file__).parent.parent / "cases"


def reader(data: bytes, size: int = 7) -> records.Read:
    """Hand the bytes out in small pieces, so that every boundary is met."""
    pieces = iter([data[at : at + size] for at in range(0, len(data), size)])
    return lambda: next(pieces, b"")


def read(data: bytes, form: str | None = None, *, name: str = "in", size: int = 7) -> list[records.Record]:
    return list(records.stream_of(name, reader(data, size), form))


def shown(found: list[records.Record]) -> list[tuple[int, object]]:
    """Line and value of each record, or the problem of a bad one."""
    return [(one.line, one.fault.message if one.fault else reading.plain(one.value)) for one in found]


def test_case_a04_blank_lines_are_skipped_and_bad_ones_named_by_physical_line() -> None:
    found = read((CASES / "A04_holes.ndjson").read_bytes())
    assert [(one.line, one.fault is None) for one in found] == [
        (1, True),
        (3, True),
        (5, False),
        (6, True),
        (7, False),
    ]
    assert found[2].fault is not None
    assert found[2].fault.message.startswith("in:5:")
    assert found[4].fault is not None
    assert found[4].fault.message.startswith("in:7:")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_records_do_not_depend_on_how_the_bytes_arrive(size: int) -> None:
    ndjson = b'\xef\xbb\xbf{"a": 1.0}\r\n\n  [1, 2]\n"x\\u00e9"\n{"a": "\xc3\xa9"}'
    assert read(ndjson, size=size) == [
        records.Record(1, b'{"a": 1.0}\r\n', {"a": Number("1.0")}),
        records.Record(3, b"  [1, 2]\n", [Number("1"), Number("2")]),
        records.Record(4, b'"x\\u00e9"\n', "xé"),
        records.Record(5, b'{"a": "\xc3\xa9"}', {"a": "é"}),
    ]
    array = b' [ {"a":"],\\"{"} ,\n\n 2,\n "x,y" , [3,[4]]\n]\n'
    assert shown(read(array, size=size)) == [(1, {"a": '],"{'}), (3, 2), (4, "x,y"), (4, [3, [4]])]
    csv = b'id,text\n1,"a ""b"", c\r\nd"\n\n2,plain "q" text\r\n3,\n'
    assert shown(read(csv, "csv", size=size)) == [
        (2, {"id": "1", "text": 'a "b", c\r\nd'}),
        (5, {"id": "2", "text": 'plain "q" text'}),
        (6, {"id": "3", "text": ""}),
    ]


def test_the_form_is_told_by_suffix_then_by_content() -> None:
    def form(name: str, data: bytes) -> str:
        return records.stream_of(name, reader(data)).form

    assert form("a.ndjson", b'"x"\n') == "ndjson"
    assert form("a.JSONL", b"1\n") == "ndjson"
    assert form("a.json", b"[1]") == "json"
    assert form("a.json", b' {"a":1}\n{"a":2}\n') == "ndjson"
    assert form("a.csv", b"a,b\n") == "csv"
    assert form("a.tsv", b"a\tb\n") == "tsv"
    assert form("a.log", b"hello\n") == "lines"
    assert form("stdin", b'\xef\xbb\xbf {"a":1}\n') == "ndjson"
    assert form("stdin", b"\n\n[1]") == "json"
    assert form("stdin", b"") == "lines"


def test_plain_lines_keep_everything_but_the_line_end() -> None:
    assert read(b"  a b \r\n\n[x]\tc\nlast", "lines") == [
        records.Record(1, b"  a b \r\n", "  a b "),
        records.Record(3, b"[x]\tc\n", "[x]\tc"),
        records.Record(4, b"last", "last"),
    ]


def test_tsv_has_no_quotes() -> None:
    stream = records.stream_of("a.tsv", reader(b'a\tb\n"x\ty"\n\t\n1\n'))
    assert stream.header == b"a\tb\n"
    assert stream.columns == ("a", "b")
    assert shown(list(stream)) == [
        (2, {"a": '"x', "b": 'y"'}),
        (4, "a.tsv:4: the row has 1 fields and the header 2"),
    ]


def test_bad_csv_rows_are_faults_and_the_next_ones_are_read() -> None:
    assert shown(read(b'a,b\n1\n1,2,3\n"x"y,2\n3,\xff\n4,5\n6,"open\n7,8\n', "csv")) == [
        (2, "in:2: the row has 1 fields and the header 2"),
        (3, "in:3: the row has 3 fields and the header 2"),
        (4, "in:4: text behind the closing quote of a field (a quote inside is written twice)"),
        (5, "in:5: is not UTF-8 text (byte 0xff at offset 2)"),
        (6, {"a": "4", "b": "5"}),
        (7, "in:7: a quote that opens in this row is never closed"),
    ]


def test_a_bad_header_is_an_error_of_the_whole_stream() -> None:
    with pytest.raises(errors.InputError) as caught:
        records.stream_of("t.csv", reader(b"a,b,a\n1,2,3\n"))
    assert caught.value.message == "t.csv:1: the header has the column 'a' twice"
    with pytest.raises(errors.InputError, match="looks like UTF-16"):
        records.stream_of("t", reader("a\n".encode("utf-16")))


def test_bad_elements_of_an_array_are_faults_and_the_next_ones_are_read() -> None:
    assert shown(read(b'[1,\n{"a":1,"a":2},\n,{b},\n"ok"]')) == [
        (1, 1),
        (2, "in:2: a: this key is there twice"),
        (3, "in:3: a value is missing here (a comma too many?)"),
        (3, "in:3: a key in double quotes was expected"),
        (4, "ok"),
    ]
    assert shown(read(b"[]\n")) == []
    assert shown(read(b"[ ]")) == []
    assert shown(read(b"[1,]")) == [(1, 1), (1, "in:1: a value is missing here (a comma too many?)")]
    assert shown(read(b"[1,\n2")) == [
        (1, 1),
        (2, 2),
        (2, "in:2: the array ends here without its closing ]"),
    ]
    assert shown(read(b"[1]\n[2]\n"))[1] == (
        2,
        "in:2: text after the end of the array (one JSON value a line is read with --as ndjson)",
    )


def test_a_record_comes_as_soon_as_its_line_is_there() -> None:
    readable, writable = os.pipe()
    os.write(writable, b"1\n")
    stream = iter(records.stream_of("in", records.read_from(readable), "ndjson"))
    assert next(stream).value == Number("1")
    os.write(writable, b'{"a"')
    os.write(writable, b":1}\n2")
    assert next(stream).value == {"a": Number("1")}
    os.close(writable)
    assert next(stream).value == Number("2")
    assert next(stream, None) is None
    os.close(readable)


def test_a_record_over_the_limit_is_a_fault_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 2**20)
    long = b'"' + b"x" * (3 * 2**20) + b'"'
    limit = "longer than 1 MiB"
    assert shown(read(b"1\n" + long + b"\n2\n" + long, "ndjson", size=65536)) == [
        (1, 1),
        (2, f"in:2: {limit}: one record a line, shorter than that"),
        (3, 2),
        (4, f"in:4: {limit}: one record a line, shorter than that"),
    ]
    assert shown(read(b"[1,\n" + long + b",\n2]", size=65536)) == [(1, 1), (2, f"in:2: {limit}"), (3, 2)]
    assert shown(read(b"a\n1\n" + long + b"\n2\n", "csv", size=65536)) == [
        (2, {"a": "1"}),
        (3, f"in:3: {limit} (is a quote never closed?)"),
        (4, {"a": "2"}),
    ]


@pytest.mark.parametrize("form", ["ndjson", "json", "lines", "csv"])
def test_memory_does_not_grow_with_the_stream(form: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"["[: form == "json"]
        for number in range(2000):
            row = b'%d,"%s"' % (number, b"y" * 400)
            row = row if form == "csv" else b'{"n":%s}' % row.replace(b",", b',"t":')
            yield row + (b",\n" if form == "json" else b"\n")

    pieces = chunks()
    tracemalloc.start()
    count = sum(1 for _ in records.stream_of("in", lambda: next(pieces, b""), form))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 2000 + (form == "json") - (form == "csv")
    assert peak < 300_000


def test_no_bytes_raise_anything_but_an_input_error() -> None:
    chance = random.Random(4)
    pieces = [b'{"a":', b"}", b"[", b"]", b",", b'"', b"\\", b"\n", b"\r\n", b"1", b"\xff", b" ", b"\t", b"x"]
    for _ in range(400):
        data = b"".join(chance.choice(pieces) for _ in range(chance.randint(0, 14)))
        for form in (None, *records.FORMS):
            try:
                for one in records.stream_of("in", reader(data, 3), form):
                    assert one.line >= 1
            except errors.InputError:
                pass


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "no", f"{tmp_path}/no: no such file or directory"),
        (tmp_path, f"{tmp_path}: is a directory"),
    ):
        with pytest.raises(errors.InputError) as caught:
            records.open_file(path)
        assert caught.value.message == message
