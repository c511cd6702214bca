"""Bodies survive encoding and decoding; incomplete records always raise UnreadableError and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redis_queue import BodyError, ConfigurationError
from redis_queue.store.codec import (
    JSON,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_HEADERS,
    Codec,
    Record,
    Serializer,
    UnreadableError,
    read_document,
    small_integer,
)

relaxed = settings(deadline=None, max_examples=50)

text = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=8,
)
headers = st.none() | st.dictionaries(text, json_values, max_size=3)
destinations = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)
times = st.integers(0, 10**13)

CODEC = Codec(JSON, 1024 * 1024)


def stored(record: bytes, put_at: int = 1_700_000_000_000) -> bytes:
    """Return *record* in the form that the scripts store."""
    return b"v1 %d %b" % (put_at, record)


@relaxed
@given(json_values, headers, destinations, times)
def test_any_json_survives(body: Any, head: Any, destination: str | None, put_at: int) -> None:
    record = stored(CODEC.encode(body, head, destination), put_at)
    assert CODEC.decode(record) == Record(put_at, head or {}, body, destination)


@relaxed
@given(st.binary(), headers, destinations)
def test_any_bytes_survive(body: bytes, head: Any, destination: str | None) -> None:
    for kind in (bytes, bytearray, memoryview):
        found = CODEC.decode(stored(CODEC.encode(kind(body), head, destination)))
        assert found.body == body
        assert type(found.body) is bytes
        assert (found.headers, found.destination) == (head or {}, destination)


@relaxed
@given(json_values, headers, destinations, st.data())
def test_a_truncated_record_is_unreadable(body: Any, head: Any, destination: str | None, data: st.DataObject) -> None:
    record = stored(CODEC.encode(body, head, destination))
    cut = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(UnreadableError):
        CODEC.decode(record[:cut])


@relaxed
@given(json_values, st.binary(min_size=1))
def test_a_record_with_trailing_bytes_is_unreadable(body: Any, more: bytes) -> None:
    with pytest.raises(UnreadableError):
        CODEC.decode(stored(CODEC.encode(body)) + more)


def readable(record: bytes) -> bool:
    """Return whether *record* can be decoded; all errors but UnreadableError are raised."""
    try:
        found = CODEC.decode(record)
    except UnreadableError as error:
        return not str(error)
    return isinstance(found, Record)


@relaxed
@given(st.binary())
@example(b"")
@example(b"\n")
@example(b"v1 1 json 0 2\n")
@example(b"v1 1 json -1 3\n{}")
@example(b"v1 " + b"9" * 5000 + b" json 0 2\n{}")
@example(b"v1 1 json 0 2 0 0\n{}")
def test_random_bytes_are_unreadable(record: bytes) -> None:
    assert not readable(record)


FRAME = re.compile(rb"v1 [0-9]+ \S+ [0-9]+ [0-9]+( [0-9]+)?\n")
"""The records that the scripts accept."""


@relaxed
@given(
    st.sampled_from([b"v1", b"v2", b"", b"v1 v1"]),
    st.sampled_from([b"1700000000000", b"-1", b"1e3", b"", b"0x10", b"9" * 400]),
    st.sampled_from([b"json", b"bytes", b"pickle", b"", b"\xff"]),
    st.lists(st.sampled_from([b"0", b"2", b"7", b"-2", b"x", b""]), max_size=4),
    st.sampled_from([b"{}", b'{"a":1}', b'{"a":1}{}', b"[]", b"\xff\xff", b""]),
)
@example(b"v1", b"1_0", b"json", [b"0", b"2"], b"{}")
@example(b"v1", b"+1", b"json", [b"0", b"2"], b"{}")
@example(b"v1", b"1", b"bytes", [b"0", b"-2", b"4"], b"{}")
def test_records_that_the_scripts_reject_are_unreadable(
    version: bytes, put_at: bytes, kind: bytes, lengths: list[bytes], rest: bytes
) -> None:
    record = b" ".join([version, put_at, kind, *lengths]) + b"\n" + rest
    if readable(record):
        assert FRAME.match(record)


@relaxed
@given(json_values, headers, destinations, st.data())
def test_a_record_with_one_changed_byte_raises_no_other_error(
    body: Any, head: Any, destination: str | None, data: st.DataObject
) -> None:
    record = bytearray(stored(CODEC.encode(body, head, destination)))
    record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    readable(bytes(record))


def test_a_time_outside_all_calendars_is_unreadable() -> None:
    for put_at in (10**17, 10**20, 10**100):
        with pytest.raises(UnreadableError):
            CODEC.decode(stored(CODEC.encode(None), put_at))


def test_json_is_written_compactly_in_utf_8() -> None:
    assert CODEC.encode({"é": [1, 2.0, None]}) == 'json 0 19\n{"é":[1,2.0,null]}'.encode()
    assert CODEC.encode(b"\x00", {"a": 1}, "list") == b'bytes 7 1 4\n{"a":1}list\x00'


@pytest.mark.parametrize("body", ["x" * 98, b"x" * 100, "é" * 49], ids=["text", "bytes", "two bytes each"])
def test_a_body_may_be_at_most_as_large_as_the_limit(body: Any) -> None:
    assert Codec(JSON, 100).encode(body)
    with pytest.raises(BodyError, match="body of 100 bytes: must be at most max_body=99"):
        Codec(JSON, 99).encode(body)


def test_headers_and_destination_do_not_count_as_body() -> None:
    assert Codec(JSON, 2).encode({}, {"a": "x" * 1000}, "y" * 500)
    assert CODEC.encode({}, {"a": "x" * (MAX_HEADERS - 8)})
    with pytest.raises(BodyError, match="headers of 32769 bytes: must be at most 32768"):
        CODEC.encode({}, {"a": "x" * (MAX_HEADERS - 7)})


class Reversed:
    """A serializer that reverses text and refuses other types."""

    name = "reversed"

    def dumps(self, body: Any, /) -> bytes:
        if not isinstance(body, str):
            raise RuntimeError("no text")
        return body[::-1].encode()

    def loads(self, data: bytes, /) -> Any:
        if data == b"bomb":
            raise MemoryError
        return data.decode()[::-1]


def test_another_serializer_can_be_used() -> None:
    codec = Codec(Reversed(), 100)
    assert codec.decode(stored(codec.encode("abc"))).body == "abc"
    assert codec.decode(stored(codec.encode(b"abc"))).body == b"abc"
    assert codec.decode(stored(CODEC.encode({"a": 1}))).body == {"a": 1}


def test_errors_of_a_serializer_are_translated() -> None:
    codec = Codec(Reversed(), 100)
    with pytest.raises(BodyError, match="body of type int is not reversed: no text") as caught:
        codec.encode(5)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(UnreadableError, match="body is not reversed: MemoryError"):
        codec.decode(stored(b"reversed 0 4\nbomb"))


@pytest.mark.parametrize("name", ["", "bytes", "UPPER", "with space", "x" * 32, "-dash", "new\nline", "é"])
def test_the_name_of_a_serializer_is_short_and_simple(name: str) -> None:
    serializer = Reversed()
    serializer.name = name
    assert isinstance(serializer, Serializer)
    with pytest.raises(ConfigurationError, match="serializer"):
        Codec(serializer, 100)


def test_records_do_not_share_headers() -> None:
    record = stored(CODEC.encode(1))
    headers: Any = CODEC.decode(record).headers
    headers["tenant"] = "A"
    assert CODEC.decode(record).headers == {}


@pytest.mark.parametrize("number", ["9" * (MAX_DIGITS + 1), "1e999", "-1e999", "NaN", "Infinity"])
def test_huge_numbers_are_unreadable(number: str) -> None:
    with pytest.raises(UnreadableError, match="body is not json: ValueError"):
        CODEC.decode(stored(b"json 0 %d\n%b" % (len(number), number.encode())))
    with pytest.raises(UnreadableError, match="headers are not JSON"):
        CODEC.decode(stored(b'bytes %d 0\n{"a":%b}' % (len(number) + 6, number.encode())))


class TestReadDocument:
    @pytest.mark.parametrize("text", ["9" * (MAX_DIGITS + 1), "[" * 100_000, "[" * 201 + "]" * 201, "{", b"\xff", b""])
    def test_too_large_or_deep_is_refused(self, text: str | bytes) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - ValueError and its subclasses
            read_document(text)

    def test_is_read_up_to_the_limits(self) -> None:
        assert read_document("9" * MAX_DIGITS) == int("9" * MAX_DIGITS)
        assert read_document("[" * MAX_DEPTH + "]" * MAX_DEPTH)
        assert read_document(f"[{'[],' * 1000}[]]") == [[]] * 1001
        assert read_document(b'{"__type__":"decimal","__value__":"1E+10000000"}')["__type__"] == "decimal"

    @pytest.mark.parametrize("value", [None, True, 1.5, "1", 2**63, [1]])
    def test_small_integer_refuses_other_values(self, value: Any) -> None:
        with pytest.raises(TypeError, match="expected an integer of up to 63 bits"):
            small_integer(value)
