"""Envelope: packing a message is lossless, in Python and in Redis; unreadable messages are refused."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps, register_type

from redis_queue import DelayQueue, InvalidValueError
from redis_queue.celery import Dispatcher, DurableTasks
from redis_queue.celery.message.envelope import (
    MAX_CODES,
    PHRASES,
    TAG,
    VERSION,
    Envelope,
    UnknownVersionError,
    expand,
    needs_reading,
)
from redis_queue.celery.message.headers import CALL, ETA
from redis_queue.celery.message.task_entry import restore_types
from redis_queue.delay.model import Push
from tests.support.celery.brokers import Broker
from tests.support.celery.messages import envelopes, message, task_ids

VERSION_BYTE = VERSION[0]


def as_json(value: Any) -> Any:
    """Return *value* after a round trip through JSON."""
    return json.loads(dumps(value))


class TestPacked:
    @given(envelopes())
    @settings(deadline=None, max_examples=150)
    def test_round_trip_is_lossless(self, envelope: Envelope) -> None:
        found = Envelope.unpack(envelope.pack(), envelope.id, envelope.storage_headers())

        plain = replace(envelope, headers=as_json(envelope.headers), properties=as_json(envelope.properties))
        assert found == plain
        assert restore_types(found.headers) == restore_types(plain.headers)

    @given(envelopes())
    @settings(deadline=None, max_examples=100)
    def test_expands_to_the_exact_list_element(self, envelope: Envelope) -> None:
        assert expand(envelope.pack(), envelope.id).replace(TAG, "a tag") == envelope.element("a tag")

    @given(envelopes(task_ids.filter(lambda found: found.isprintable() and found.isascii())))
    @settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_redis_and_python_expand_it_to_the_same_bytes(self, client: redis.Redis, envelope: Envelope) -> None:
        assume(not needs_reading(envelope.element("")))
        queue = DelayQueue("scheduled", client)
        queue.push_many([Push(envelope.pack(), id=envelope.id, destination="list")])

        assert queue.moves.move(phrases=PHRASES).sent == 1

        element: Any = client.rpop("list")
        tag = json.loads(element)["properties"]["delivery_tag"]
        assert tag
        assert element.decode() == envelope.element(tag)

    def test_gives_each_message_its_own_delivery_tag(self, client: redis.Redis) -> None:
        queue = DelayQueue("scheduled", client)
        queue.push_many([Push(message().pack(), destination="list") for _ in range(1100)])

        assert queue.moves.move(phrases=PHRASES).sent == 1100

        elements: Any = client.lrange("list", 0, -1)
        assert len({json.loads(element)["properties"]["delivery_tag"] for element in elements}) == 1100

    @pytest.mark.parametrize("piece", ["the id", *PHRASES[:3]], ids=["the id", "one", "two", "three"])
    def test_limits_the_abbreviations_in_a_repetitive_message(self, piece: Any) -> None:
        envelope = message()
        text = envelope.id if piece == "the id" else piece.decode("latin-1")
        envelope = replace(envelope, body=(text * 5000).encode())

        packed = envelope.pack()

        assert len(packed.translate(None, bytes(range(128)))) <= MAX_CODES
        assert Envelope.unpack(packed, envelope.id) == envelope

    def test_is_much_smaller_than_the_message(self) -> None:
        envelope = message()

        assert len(envelope.pack()) * 4 < len(envelope.element("a" * 36))

    @pytest.mark.parametrize("changes", [{"content_encoding": "binary"}, {"headers": {"compression": "zlib"}}, {}])
    def test_body_is_base64_unless_it_is_plain_text(self, changes: dict[str, Any]) -> None:
        element = json.loads(message(body=b"\xe2\x84\x96 42", **changes).element("tag"))

        assert element["body"] == ("4oSWIDQy" if changes else "№ 42")
        assert element["properties"].get("body_encoding") == ("base64" if changes else None)


class TestUnreadableMessage:
    @pytest.mark.parametrize("first", [code for code in range(32) if code != VERSION_BYTE])
    def test_later_version_differs_from_garbage(self, first: int) -> None:
        with pytest.raises(UnknownVersionError, match="the form that this version reads"):
            Envelope.unpack(bytes([first]) + message().pack()[1:], "id")

    @pytest.mark.parametrize("data", [b"", b"{}", b"\x80", b" \x01"])
    def test_invalid_version_is_garbage(self, data: bytes) -> None:
        with pytest.raises(InvalidValueError) as caught:
            Envelope.unpack(data, "id")
        assert type(caught.value) is InvalidValueError

    @given(st.binary(max_size=200))
    @settings(deadline=None, max_examples=100)
    def test_garbage_raises_a_clear_error(self, data: bytes) -> None:
        with pytest.raises(InvalidValueError):
            Envelope.unpack(VERSION + data, "id")

    @given(st.data())
    @settings(deadline=None, max_examples=100)
    def test_damaged_message_is_read_or_raises_a_clear_error(self, data: st.DataObject) -> None:
        packed = bytearray(data.draw(envelopes()).pack())
        for _ in range(data.draw(st.integers(1, 4))):
            packed[data.draw(st.integers(1, len(packed) - 1))] = data.draw(st.integers(0, 255))
        del packed[data.draw(st.integers(len(packed) // 2, len(packed))) :]
        try:
            Envelope.unpack(bytes(packed), "id")
        except InvalidValueError:
            assert True

    @pytest.mark.parametrize(
        "value",
        ["[" * 100_000, '{"__type__":"decimal","__value__":"x"}', "1" * 5000, '{"body":5}'],
        ids=["too deep", "a typed value", "too large", "no body"],
    )
    def test_json_that_is_not_a_message_raises_a_clear_error(self, value: str) -> None:
        with pytest.raises(InvalidValueError, match="cannot be read"):
            Envelope.unpack(VERSION + value.encode(), "id")

    @pytest.mark.parametrize("headers", ["5", "null", '"text"', "[1]"])
    def test_invalid_headers_raise_a_clear_error(self, headers: str) -> None:
        text = message(headers={}).element("tag").replace('"headers":{}', f'"headers":{headers}')

        with pytest.raises(InvalidValueError, match="cannot be read"):
            Envelope.unpack(VERSION + text.encode(), "id")

    def test_typed_headers_stay_plain_until_converted(self) -> None:
        headers = {
            "at": datetime(2027, 1, 1, tzinfo=timezone.utc),
            "price": Decimal("1.10"),
            "raw": b"\xff",
            "text": b"text",
            "several": [{"id": uuid.uuid4()}],
        }
        envelope = message(headers=headers)

        found = Envelope.unpack(envelope.pack(), envelope.id).headers

        assert found == as_json(headers)
        assert restore_types(found) == headers
        assert dumps(found) == dumps(headers)

    @pytest.mark.parametrize(
        "value",
        [
            {"__type__": "decimal", "__value__": "1E+10000000"},
            {"__type__": "decimal", "__value__": "9" * 100_000},
            {"__type__": "datetime", "__value__": "2030" * 1000},
            {"__type__": "uuid", "__value__": {"int": 1}},
            {"__type__": "uuid", "__value__": "no mapping"},
            {"__type__": "base64", "__value__": "?"},
            {"__type__": ["decimal"], "__value__": "1"},
            {"__type__": "fragile", "__value__": 1},
        ],
        ids=lambda value: str(value)[:60],
    )
    def test_unbounded_or_invalid_types_stay_plain(self, value: Any) -> None:
        register_type(_Fragile, "fragile", str, _break)

        assert restore_types({"x": [value]}) == {"x": [value]}


class _Fragile:
    pass


def _break(_: str) -> _Fragile:
    raise ZeroDivisionError


@pytest.mark.parametrize("options", [{}, {"serializer": "pickle"}, {"compression": "zlib"}])
def test_a_message_that_a_worker_received_is_stored_and_sent_unchanged(
    broker: Broker, redis_url: str, client: redis.Redis, options: Any
) -> None:
    app = broker.app(redis_queue_url=redis_url, accept_content=["json", "pickle"])
    delayed, queue = DurableTasks(app, leases=False), app.conf.task_default_queue
    app.send_task(
        "shop.remind",
        ("é", 1),
        {"a": {"b": [1]}},
        headers={"tenant": "a"},
        priority=3,
        link=app.signature("shop.next", queue="elsewhere"),
        retries=2,
        root_id="root",
        **options,
    )
    (came,) = broker.take(queue)
    delayed.writer.store([(Envelope.of_message(came), (0.0, None))])
    Dispatcher(app, delayed.queue).run()
    (again,) = broker.take(queue)
    assert [shown(again)] == [shown(came)]


def shown(message: Any) -> dict[str, Any]:
    """Return the parts of a message that a worker sees."""
    return {
        "body": message.body.encode() if isinstance(message.body, str) else bytes(message.body),
        "type": (message.content_type, message.content_encoding),
        "headers": {name: value for name, value in message.headers.items() if name not in ("redelivered", CALL, ETA)},
        "properties": [message.properties.get(name) for name in ("correlation_id", "reply_to", "priority")],
        "route": (message.delivery_info["exchange"], message.delivery_info["routing_key"]),
    }
