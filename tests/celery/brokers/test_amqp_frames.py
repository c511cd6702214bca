"""Frames: the bytes that py-amqp sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st

from redis_queue.celery.brokers.amqp_frames import FRAME_OVERHEAD, TooLargeError, frames, serialize_properties

FRAME_MAX = 4096
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=80) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=3),
    max_leaves=8,
)
headers = st.dictionaries(st.text(min_size=1, max_size=20), values, max_size=12)
properties = st.fixed_dictionaries(
    {
        "content_type": st.sampled_from(["application/json", "é"]),
        "content_encoding": st.just("utf-8"),
        "application_headers": headers,
    },
    optional={
        "correlation_id": st.just("c"),
        "reply_to": st.just("r"),
        "delivery_mode": st.just(2),
        "priority": st.integers(0, 9),
        "expiration": st.just("1000"),
    },
)


def sent_by_py_amqp(exchange: str, routing_key: str, message: amqp.Message) -> bytes:
    """Return the bytes of a mandatory message on channel 3."""
    sent = bytearray()
    write = frame_writer(SimpleNamespace(frame_max=FRAME_MAX, bytes_sent=0), SimpleNamespace(write=sent.extend))
    write(1, 3, amqp.spec.Basic.Publish, dumps("Bssbb", (0, exchange, routing_key, True, False)), message)
    return bytes(sent)


@given(found=properties)
def test_properties_are_those_of_py_amqp(found: dict[str, Any]) -> None:
    assert serialize_properties(found) == amqp.Message("", **found)._serialize_properties()


@given(
    found=properties,
    exchange=st.sampled_from(["", "orders", "x" * 255]),
    size=st.sampled_from([0, 1, FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX]),
)
def test_frames_are_those_of_py_amqp(found: dict[str, Any], exchange: str, size: int) -> None:
    body = b"b" * size
    ours = frames(3, FRAME_MAX, exchange=exchange, routing_key="mail é", properties=found, body=body)
    assert ours == sent_by_py_amqp(exchange, "mail é", amqp.Message(body, **found))


def test_equal_values_of_different_types_keep_their_type() -> None:
    for value in (True, 1, False, 0, 1, True):
        found = {"content_type": "a", "content_encoding": "b", "application_headers": {"flag": value}}
        assert serialize_properties(found) == amqp.Message("", **found)._serialize_properties()


@pytest.mark.parametrize("name", ["exchange", "routing_key"])
def test_name_over_255_bytes_is_refused(name: str) -> None:
    parts = {"exchange": "", "routing_key": "", name: "é" * 128}
    with pytest.raises(TooLargeError, match="256 bytes: must be <= 255"):
        frames(1, FRAME_MAX, **parts, properties={}, body=b"")


def test_properties_may_fill_one_frame() -> None:
    room = FRAME_MAX - FRAME_OVERHEAD - len(serialize_properties({"application_headers": {"note": ""}}))

    def made(size: int) -> bytes:
        found = {"application_headers": {"note": "x" * size}}
        return frames(1, FRAME_MAX, exchange="", routing_key="q", properties=found, body=b"")

    assert len(made(room)) == len(made(0)) + room
    with pytest.raises(TooLargeError, match="headers of 4,077 bytes: must be <= 4,096, a frame of the broker"):
        made(room + 1)
