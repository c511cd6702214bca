"""Hypothesis strategies for damaged_bytes bytes: flipped, truncated, inserted and repeated parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from tests.property.harness import profile

fuzzed = settings(profile(), max_examples=profile().max_examples * 2 // 3)
"""Number of examples for each decoder."""

T = TypeVar("T")
Refusal = TypeVar("Refusal", bound=Exception)


def outcome(call: Callable[[], T], *refusals: type[Refusal]) -> T | Refusal:
    """Return the result of *call*, or the exception if it is one of *refusals*; other exceptions propagate."""
    try:
        return call()
    except refusals as error:
        return error


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Draw bytes from *whole* and damage them in one to four places."""
    data = draw(whole)
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        mishap = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if mishap == "flip":
            data = data[:start] + draw(st.binary(min_size=1, max_size=2)) + data[start + 1 :]
        elif mishap == "cut":
            data = data[:start] + data[end:]
        elif mishap == "insert":
            data = data[:start] + draw(st.binary(min_size=1, max_size=4) | st.sampled_from(PIECES)) + data[start:]
        else:
            data = data[:end] + data[start:end] + data[end:]
    return data


PIECES = [
    b"NaN",
    b"Infinity",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"null",
    b"[" * 2000,
    b'"__type__":',
    b"\\ud800",
    b"\n",
    b"\x00",
]
"""Values that parsers treat in a special way."""

json_values: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["base64", "utf-8", "application/json", "2030-01-01T00:00:00", "9" * 400, "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
"""Any value that Python's JSON parser can return."""


def objects_with(**known: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Draw objects with some of these fields, each with a known or an arbitrary value."""
    return st.fixed_dictionaries({}, optional={name: values | json_values for name, values in known.items()})


def as_json(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Draw *values* as JSON, including NaN."""
    return values.map(lambda value: json.dumps(value).encode())


@st.composite
def framed_records(draw: st.DrawFn) -> bytes:
    """Draw a record with a valid frame and arbitrary contents."""
    parts = [draw(st.just(b"") | as_json(json_values) | st.binary(max_size=30)) for _ in range(3)]
    kind = draw(st.sampled_from([b"json", b"bytes", b"pickle", b"\xff", b"json "]))
    put_at = draw(st.integers(0, 10**20))
    lengths = [len(parts[0]), len(parts[2]), len(parts[1])][: draw(st.integers(2, 3))]
    if len(lengths) == 2:
        parts[1] = b""
    return b"v1 %d %b %b\n%b" % (put_at, kind, b" ".join(b"%d" % length for length in lengths), b"".join(parts))
