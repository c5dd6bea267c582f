"""What an HTTP body holds, and that its errors never repeat it."""

from __future__ import annotations

import gzip
import zlib

import pytest
from backports import zstd

from openjev_cli import bodies, errors

LIMIT = 1000


def read(data: bytes, content_type: str = "application/json", encoding: str = "") -> bodies.Body:
    return bodies.read(data, content_type=content_type, encoding=encoding, limit=LIMIT)


def problems(data: bytes, content_type: str = "application/json", encoding: str = "") -> tuple[str, ...]:
    with pytest.raises(errors.InputError) as raised:
        read(data, content_type, encoding)
    return raised.value.problems


def multipart(*parts: tuple[str, bytes], boundary: str = "b0undary") -> tuple[bytes, str]:
    body = b""
    for name, content in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
        body += head.encode() + b"Content-Type: image/png\r\n\r\n" + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("", bytes),
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstd.compress),
        ("ZSTD ", zstd.compress),
    ],
)
def test_a_body_is_read_in_every_encoding(encoding: str, pack) -> None:  # type: ignore[no-untyped-def]
    assert read(pack(b'{"a": "b"}'), encoding=encoding) == bodies.Body({"a": "b"})


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_a_bomb_is_refused_after_the_allowed_bytes(encoding: str, pack) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(bodies.TooLarge, match="larger than 1000 bytes"):
        read(pack(b" " * 50_000_000), encoding=encoding)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_a_packed_body_that_is_cut_or_is_none_is_refused(encoding: str, pack) -> None:  # type: ignore[no-untyped-def]
    packed = pack(b'{"a": "secret-value"}')
    assert problems(packed[:-4], encoding=encoding) == (f"is cut off: its {encoding} has no end",)
    assert problems(b"plain secret", encoding=encoding) == (
        f"is not {encoding}, as its Content-Encoding says",
    )


def test_an_unknown_encoding_is_unsupported() -> None:
    with pytest.raises(bodies.Unsupported, match="Content-Encoding is not supported"):
        read(b"{}", encoding="br")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", ("not valid JSON (line 1, column 1)",)),
        (b'{"secret": secret}', ("not valid JSON (line 1, column 12)",)),
        (b'{"secret": 1,\n "secret": 2}', ("a key is there twice (line 2, column 2)",)),
        (b'{"secret": NaN}', ("NaN and Infinity are no JSON numbers (line 1, column 12)",)),
        (b'["secret\\ud800"]', ("half of a surrogate pair is no character (line 1, column 9)",)),
        (b"[" * 300, ("nested deeper than 256 levels (line 1, column 257)",)),
        (b'"secret\\x"', ("not valid JSON (line 1, column 8)",)),
        (b'"secret \xff"', ("is not UTF-8 text",)),
    ],
)
def test_a_fault_in_the_json_is_placed_and_nothing_of_it_repeated(data: bytes, said: tuple[str, ...]) -> None:
    assert problems(data) == said


def test_all_faults_are_found_at_once() -> None:
    assert len(problems(b'{"a": NaN, "a": "\\ud800"}')) == 3


def test_a_multipart_body_gives_its_json_and_its_files() -> None:
    png = b"\x89PNG\r\n\x1a\n\r\n--b0undar\r\n\x00"
    data, content_type = multipart(("request", b'{"a": 1.0}'), ("asset-0", png), ("asset-1", b""))
    body = read(data, content_type)
    assert body.value == {"a": bodies.reading.Number("1.0")}
    assert body.files == {"asset-0": png, "asset-1": b""}


def test_a_quoted_boundary_and_a_preamble_are_understood() -> None:
    data, _ = multipart(("request", b"{}"), boundary="a b")
    assert read(b"hello\r\n" + data, 'multipart/form-data; charset=x; boundary="a b"').value == {}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((("a", b"x"),), "has no part named request"),
        ((("request", b"{}"), ("a", b"1"), ("a", b"2")), "has two parts of the same name"),
        ((("request", b"{}"), *((f"n{i}", b"") for i in range(70))), "is no whole multipart body"),
    ],
)
def test_a_multipart_body_that_says_too_little_or_too_much_is_refused(
    parts: tuple[tuple[str, bytes], ...], said: str
) -> None:
    data, content_type = multipart(*parts)
    with pytest.raises(errors.InputError, match=said):
        bodies.read(data, content_type=content_type, encoding="", limit=100_000)


def test_a_multipart_body_without_boundary_or_end_is_refused() -> None:
    data, content_type = multipart(("request", b"{}"))
    assert problems(data, "multipart/form-data") == ("is multipart, but its Content-Type names no boundary",)
    assert problems(data[:-6], content_type) == ("is no whole multipart body of at most 64 parts",)
    unnamed = data.replace(b'name="request"; ', b"").replace(b'filename="request"', b"x=1")
    assert problems(unnamed, content_type) == ("has a part without a name",)
