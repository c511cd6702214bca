"""Invalid arguments raise one clear error of the right class that names the value, before anything is sent.

The queues in these tests have a link that fails the test when it is used. Unusual but valid values are tested on a
real Redis.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_queue import (
    BodyError,
    ConfigurationError,
    Consumer,
    DelayQueue,
    InvalidDelayError,
    InvalidNameError,
    InvalidValueError,
    Lease,
    Message,
    RedisQueue,
    RedisQueueError,
    Settings,
    StoreUnavailableError,
)
from redis_queue.delay.model import Push
from redis_queue.model import Entry
from redis_queue.store.keys import Keys
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import Scripts
from tests.support.paths import ROOT
from tests.support.ports import HOST, free_port
from tests.support.servers import client_options
from tests.support.wait import must

NOW = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
LEASE = Lease("1-abc", NOW)
MESSAGE = Message("m1", None, {}, NOW, 1, LEASE)
ENTRY = Entry("e1", None, {}, NOW, NOW, 1, None, LEASE)
TEN_YEARS = 3653 * 86400

Call = Callable[[Any, Any], Any]


class NoLink:
    """A link that fails the test when a command is sent."""

    def send(self, *command: Any) -> Any:
        """Fail the test."""
        pytest.fail(f"{command[0]} was sent")


@pytest.fixture
def no_redis(monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    """A client that must not be used, by the queue or by redis-py."""
    monkeypatch.setattr("redis_queue.store.scripts.link", lambda _client: NoLink())
    monkeypatch.setattr("redis.connection.AbstractConnection.connect", NoLink().send)
    return redis.Redis(host=HOST, port=1)


@pytest.fixture
def queue(no_redis: redis.Redis) -> RedisQueue:
    """A RedisQueue that must not send commands."""
    return RedisQueue("orders", no_redis, max_body=100)


@pytest.fixture
def timed(no_redis: redis.Redis) -> DelayQueue:
    """A DelayQueue that must not send commands."""
    return DelayQueue("orders", no_redis, max_body=100)


def assert_refused(kind: type[RedisQueueError], named: str, call: Callable[[], Any]) -> None:
    """Check that *call* raises exactly *kind*, with a one-line message that contains *named*."""
    with pytest.raises(kind, match=re.escape(named)) as caught:
        call()
    assert type(caught.value) is kind
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def both(of_queue: dict[str, Any], of_timed: dict[str, Any]) -> Any:
    """Run a test with each call of a RedisQueue, and of a DelayQueue."""
    cases = {"queue": of_queue, "timed": of_timed}
    calls = [(kind, verb, call) for kind, calls in cases.items() for verb, call in calls.items()]
    ids = [f"{kind} {verb}" for kind, verb, _ in calls]
    return pytest.mark.parametrize(("target", "verb", "call"), calls, ids=ids, indirect=["target"])


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Any:
    """A queue or a delay queue that must not send commands."""
    return request.getfixturevalue(request.param)


QUEUE_DELAYS: dict[str, tuple[str, Call]] = {
    "put": ("delay", lambda q, value: q.put(1, delay=value)),
    "put_many": ("delay", lambda q, value: q.put_many([1, 2], delay=value)),
    "nack": ("delay", lambda q, value: q.nack(MESSAGE, delay=value)),
    "nack_many": ("delay", lambda q, value: q.nack_many([MESSAGE], delay=value)),
    "extend": ("lease", lambda q, value: q.extend(MESSAGE, value)),
    "extend_many": ("lease", lambda q, value: q.extend_many([MESSAGE], value)),
    "get": ("timeout", lambda q, value: q.get(timeout=value)),
    "get_many": ("timeout", lambda q, value: q.get_many(2, block=True, timeout=value)),
    "consume": ("timeout", lambda q, value: next(q.consume(timeout=value))),
    "lease": ("timeout", lambda q, value: q.lease(timeout=value).__enter__()),
    "keep_alive": ("max_runtime", lambda q, value: q.keep_alive(max_runtime=value)),
    "Consumer grace": ("grace", lambda q, value: Consumer(q, print, grace=value)),
    "Consumer max_runtime": ("max_runtime", lambda q, value: Consumer(q, print, max_runtime=value)),
}
TIMED_DELAYS: dict[str, tuple[str, Call]] = {
    "push": ("delay", lambda q, value: q.push(1, delay=value)),
    "push_many": ("delay", lambda q, value: q.push_many([Push(1), Push(2, delay=value)])),
    "reschedule": ("delay", lambda q, value: q.reschedule("e1", delay=value)),
    "nack": ("delay", lambda q, value: q.nack(ENTRY, delay=value)),
    "nack_many": ("delay", lambda q, value: q.nack_many([ENTRY], delay=value)),
    "extend": ("lease", lambda q, value: q.extend(ENTRY, value)),
    "claim": ("older_than", lambda q, value: q.claim(older_than=value)),
    "pop": ("older_than", lambda q, value: q.pop(older_than=value)),
    "forecast": ("width", lambda q, value: q.forecast(width=value)),
}
BAD_DELAYS = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -1e-9,
    timedelta(days=-1),
    True,
    False,
    "5",
    b"5",
    [5],
    Decimal(5),
    1j,
    TEN_YEARS + 1,
    1e12,
    1e20,
    10**400,
    timedelta.max,
    NOW,
]


@pytest.mark.parametrize("value", BAD_DELAYS, ids=lambda value: repr(value)[:30])
@both(QUEUE_DELAYS, TIMED_DELAYS)
def test_an_impossible_duration_is_refused(target: Any, verb: str, call: tuple[str, Call], value: Any) -> None:
    name, use = call
    assert_refused(InvalidDelayError, f"{name}={value!r}", lambda: use(target, value))


@pytest.mark.parametrize("verb", ["put", "put_many", "nack", "nack_many"])
def test_none_is_not_a_delay(queue: RedisQueue, verb: str) -> None:
    assert_refused(InvalidDelayError, "delay=None", lambda: QUEUE_DELAYS[verb][1](queue, None))


@pytest.mark.parametrize("value", [0, 0.0, timedelta(0), TEN_YEARS / 500 + 1], ids=repr)
def test_a_forecast_needs_a_positive_width_that_ends_within_ten_years(timed: DelayQueue, value: Any) -> None:
    assert_refused(InvalidDelayError, f"width={value!r}", lambda: timed.forecast(500, width=value))


POINTS: dict[str, tuple[str, Call]] = {
    "push": ("due_at", lambda q, value: q.push(1, due_at=value)),
    "push_many": ("due_at", lambda q, value: q.push_many([Push(1, due_at=value)])),
    "reschedule": ("due_at", lambda q, value: q.reschedule("e1", due_at=value)),
    "list due_before": ("due_before", lambda q, value: q.list(due_before=value)),
    "list due_after": ("due_after", lambda q, value: q.list(due_after=value)),
    "count due_before": ("due_before", lambda q, value: q.count(due_before=value)),
    "count due_after": ("due_after", lambda q, value: q.count(due_after=value)),
}
BAD_POINTS = [
    datetime(2031, 1, 1, 12),
    date(2031, 1, 1),
    "2031-01-01T12:00:00Z",
    "tomorrow",
    1_900_000_000,
    1_900_000_000.5,
    0,
    "",
    True,
    timedelta(hours=1),
    datetime(2080, 1, 1, tzinfo=timezone.utc),
    datetime.max.replace(tzinfo=timezone.utc),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
]


@pytest.mark.parametrize("value", BAD_POINTS, ids=lambda value: str(value)[:32])
@pytest.mark.parametrize("verb", POINTS)
def test_a_time_point_that_is_not_an_aware_datetime_within_ten_years_is_refused(
    timed: DelayQueue, verb: str, value: Any
) -> None:
    name, call = POINTS[verb]
    assert_refused(InvalidDelayError, f"{name}={value!r}", lambda: call(timed, value))


@pytest.mark.parametrize("verb", ["push", "reschedule"])
def test_delay_and_due_at_exclude_each_other(timed: DelayQueue, verb: str) -> None:
    arguments = {"delay": 5, "due_at": NOW}
    assert_refused(InvalidDelayError, f"delay=5 and due_at={NOW!r}", lambda: getattr(timed, verb)("e1", **arguments))


BAD_NAMES = [
    "",
    "a\nb",
    "a\r\nb",
    "a\x00b",
    "a\tb",
    "\x06\x16",
    "\x1b[31m",
    "\x7f",
    "\ud800",
    "\u202eevil",
    "\u200b",
    None,
    5,
    True,
    b"bytes",
    ["list"],
]
DEAD_IDS: dict[str, Call] = {
    "redrive": lambda q, value: q.redrive([value]),
    "delete_dead": lambda q, value: q.delete_dead([value]),
}
QUEUE_IDS: dict[str, Call] = {
    "put": lambda q, value: q.put(1, dedupe_key=value),
    "put_many": lambda q, value: q.put_many([1], dedupe_key=lambda _body: value),
    **DEAD_IDS,
}
TIMED_IDS: dict[str, Call] = {
    "push": lambda q, value: q.push(1, id=value),
    "push_many": lambda q, value: q.push_many([Push(1, id=value)]),
    "cancel": lambda q, value: q.cancel(value),
    "cancel_many": lambda q, value: q.cancel_many(["fine", value]),
    "reschedule": lambda q, value: q.reschedule(value, delay=1),
    "run_now": lambda q, value: q.run_now(value),
    "get": lambda q, value: q.get(value),
    **DEAD_IDS,
}
NONE_MEANS_A_NEW_ID = ("put", "push", "push_many")


@pytest.mark.parametrize("value", [*BAD_NAMES, "x" * 201], ids=lambda value: ascii(value)[:20])
@pytest.mark.parametrize("kind", [RedisQueue, DelayQueue])
def test_a_bad_queue_name_is_refused_even_by_a_url_that_cannot_be_reached(
    kind: type[RedisQueue | DelayQueue], value: Any
) -> None:
    url = f"redis://{HOST}:{free_port()}/0"
    assert_refused(InvalidNameError, f"queue name={ascii(value)[:80]}", lambda: kind(value, url))


@pytest.mark.parametrize("value", [*BAD_NAMES, "x" * 256, "x" * 10_000_000], ids=lambda value: ascii(value)[:20])
@both(QUEUE_IDS, TIMED_IDS)
def test_a_bad_id_is_refused(target: Any, verb: str, call: Call, value: Any) -> None:
    if value is None and verb in NONE_MEANS_A_NEW_ID:
        value = ""
    assert_refused(InvalidNameError, ascii(value)[:80], lambda: call(target, value))


def circular() -> list[Any]:
    """Return a list that contains itself."""
    ring: list[Any] = []
    ring.append(ring)
    return ring


def deep() -> list[Any]:
    """Return a list nested deeper than Python's stack."""
    nested: list[Any] = []
    for _ in range(200_000):
        nested = [nested]
    return nested


BAD_BODIES: dict[str, tuple[Callable[[], Any], str]] = {
    "NaN": (lambda: math.nan, "body of type float is not json"),
    "infinity": (lambda: -math.inf, "body of type float is not json"),
    "NaN inside": (lambda: {"a": [1, {"b": math.nan}]}, "body of type dict is not json"),
    "an object": (object, "body of type object is not json"),
    "a set": (lambda: {1}, "body of type set is not json"),
    "a datetime": (lambda: NOW, "body of type datetime is not json"),
    "bytes inside": (lambda: {"a": b"x"}, "body of type dict is not json"),
    "a tuple as key": (lambda: {(1, 2): 3}, "body of type dict is not json"),
    "a circle": (circular, "body of type list is not json"),
    "too deep": (deep, "nested too deeply"),
    "deeper than it can be read": (lambda: json.loads("[" * 201 + "]" * 201), "nested too deeply"),
    "half a character": (lambda: "\ud83d", "body of type str is not json"),
    "a number of 5000 digits": (lambda: 10**5000, "body of type int is not json"),
    "too long": (lambda: "x" * 99, "body of 101 bytes: must be at most max_body=100"),
    "too long in UTF-8": (lambda: "é" * 50, "body of 102 bytes: must be at most max_body=100"),
    "too many bytes": (lambda: b"x" * 101, "body of 101 bytes: must be at most max_body=100"),
    "too large a bytearray": (lambda: bytearray(101), "body of 101 bytes: must be at most max_body=100"),
    "too large a view": (lambda: memoryview(bytes(101)), "body of 101 bytes: must be at most max_body=100"),
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_a_body_that_cannot_be_stored_is_refused(queue: RedisQueue, timed: DelayQueue, what: str) -> None:
    make, named = BAD_BODIES[what]
    assert_refused(BodyError, named, lambda: queue.put(make()))
    assert_refused(BodyError, named, lambda: queue.put_many([1, make()]))
    assert_refused(BodyError, named, lambda: timed.push(make()))
    assert_refused(BodyError, named, lambda: timed.push_many([1, Push(make())]))


def test_the_default_limit_of_a_body_is_256_kib(no_redis: redis.Redis) -> None:
    assert_refused(BodyError, "262145 bytes", lambda: RedisQueue("orders", no_redis).put(bytes(256 * 1024 + 1)))


BAD_HEADERS: dict[str, tuple[Any, str]] = {
    "NaN": ({"a": math.nan}, "headers"),
    "an object": ({"a": object()}, "headers"),
    "a list": ([1], "headers=[1]"),
    "a string": ("abc", "headers='abc'"),
    "a number as name": ({1: "a"}, "headers={1: 'a'}"),
    "too large": ({"a": "x" * 40_000}, "headers of 40008 bytes"),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_headers_that_cannot_be_stored_are_refused(queue: RedisQueue, timed: DelayQueue, what: str) -> None:
    headers, named = BAD_HEADERS[what]
    assert_refused(BodyError, named, lambda: queue.put(1, headers=headers))
    assert_refused(BodyError, named, lambda: timed.push(1, headers=headers))


@pytest.mark.parametrize("value", ["", 5, b"list", True, "x" * 513, "é" * 257, "\ud800"], ids=lambda v: ascii(v)[:12])
def test_a_destination_that_cannot_name_a_list_is_refused(timed: DelayQueue, value: Any) -> None:
    assert_refused(InvalidValueError, f"destination={value!r}", lambda: timed.push(1, destination=value))


PAGES: dict[str, tuple[str, Call]] = {
    "put_back": ("limit", lambda q, value: q.put_back(value)),
    "dead_letters": ("limit", lambda q, value: q.dead_letters(limit=value)),
    "quarantined": ("limit", lambda q, value: q.quarantined(limit=value)),
}
QUEUE_LIMITS: dict[str, tuple[str, Call]] = {
    "get_many": ("limit", lambda q, value: q.get_many(value)),
    "peek": ("limit", lambda q, value: q.peek(value)),
    "promote": ("limit", lambda q, value: q.promote(value)),
    **PAGES,
    "Consumer concurrency": ("concurrency", lambda q, value: Consumer(q, print, concurrency=value)),
    "Consumer batch": ("batch", lambda q, value: Consumer(q, print, batch=value)),
}
TIMED_LIMITS: dict[str, tuple[str, Call]] = {
    "claim": ("limit", lambda q, value: q.claim(value)),
    "pop": ("limit", lambda q, value: q.pop(value)),
    "list": ("limit", lambda q, value: q.list(limit=value)),
    "move_due": ("limit", lambda q, value: q.move_due(value)),
    **PAGES,
    "forecast": ("buckets", lambda q, value: q.forecast(value)),
}
BAD_LIMITS = [0, -1, 10**9 + 1, 10**400, True, False, 1.0, math.nan, "5", None, [1]]
WITHOUT_A_MOST = ("put_back", "promote", "move_due", "Consumer concurrency")


@pytest.mark.parametrize("value", [*BAD_LIMITS, 10**9, 501], ids=lambda value: repr(value)[:12])
@both(QUEUE_LIMITS, TIMED_LIMITS)
def test_a_limit_out_of_range_is_refused(target: Any, verb: str, call: tuple[str, Call], value: Any) -> None:
    name, use = call
    if value in (501, 10**9) and verb in WITHOUT_A_MOST:
        value = -value
    assert_refused(InvalidValueError, f"{name}={value!r}", lambda: use(target, value))


@pytest.mark.parametrize("value", [-1, 10**9 + 1, True, 1.5, "0", None], ids=repr)
@pytest.mark.parametrize("page", ["dead_letters", "quarantined"])
def test_an_offset_out_of_range_is_refused(queue: RedisQueue, timed: DelayQueue, page: str, value: Any) -> None:
    assert_refused(InvalidValueError, f"offset={value!r}", lambda: getattr(queue, page)(offset=value))
    assert_refused(InvalidValueError, f"offset={value!r}", lambda: getattr(timed, page)(offset=value))


@pytest.mark.parametrize("value", [0, -1, 1e7, 1e-4, math.nan, math.inf, True, "5"], ids=repr)
def test_a_rate_out_of_range_is_refused(queue: RedisQueue, timed: DelayQueue, value: Any) -> None:
    assert_refused(InvalidValueError, f"rate={value!r}", lambda: queue.redrive(rate=value))
    assert_refused(InvalidValueError, f"rate={value!r}", lambda: timed.redrive(rate=value))


@pytest.mark.parametrize("value", ["maybe", "", None, True, "REPLACE"], ids=repr)
def test_an_unknown_on_conflict_is_refused(timed: DelayQueue, value: Any) -> None:
    assert_refused(InvalidValueError, f"on_conflict={value!r}", lambda: timed.push(1, on_conflict=value))
    assert_refused(InvalidValueError, f"on_conflict={value!r}", lambda: timed.push_many([1], on_conflict=value))


def test_purge_takes_known_places_only_and_checks_all_of_them_first(queue: RedisQueue, timed: DelayQueue) -> None:
    places: Any = ("ready", "in_flight")
    assert_refused(InvalidValueError, "purge('in_flight')", lambda: queue.purge(*places))
    places = ("waiting", "ready")
    assert_refused(InvalidValueError, "purge('ready')", lambda: timed.purge(*places))


@pytest.mark.parametrize("value", ["", "garbage", ":x", "x:y", "1.5:x", 5, b"1:x", "²:x", "9" * 5000 + ":x"], ids=repr)
def test_an_invalid_cursor_is_refused(timed: DelayQueue, value: Any) -> None:
    assert_refused(InvalidValueError, f"after={value!r}"[:90], lambda: timed.list(after=value))


def test_a_message_without_a_lease_cannot_be_settled(queue: RedisQueue, timed: DelayQueue) -> None:
    seen = Message("m1", None, {}, NOW, 0)
    for call in (queue.ack, queue.nack, queue.extend, queue.still_mine):
        assert_refused(InvalidValueError, "'m1' has no lease: it must be claimed first", lambda call=call: call(seen))
    entry = Entry("e1", None, {}, NOW, NOW)
    for act in (timed.ack, timed.nack, timed.extend):
        assert_refused(InvalidValueError, "'e1' has no lease: it must be claimed first", lambda act=act: act(entry))


@pytest.mark.parametrize("value", [None, "print", 5], ids=repr)
def test_a_handler_that_cannot_be_called_is_refused(queue: RedisQueue, value: Any) -> None:
    assert_refused(InvalidValueError, f"handler={value!r}", lambda: Consumer(queue, value))


UNKNOWN_SETTINGS = {
    "leese": "did you mean 'lease'?",
    "max_delivery": "did you mean 'max_deliveries'?",
    "maxlength": "did you mean 'max_length'?",
    "prefx": "did you mean 'prefix'?",
    "serialiser": "did you mean 'serializer'?",
    "shard": "did you mean 'shards'?",
    "qqq": "known are 'prefix', 'lease'",
}


@pytest.mark.parametrize("name", UNKNOWN_SETTINGS)
@pytest.mark.parametrize("kind", [RedisQueue, DelayQueue])
def test_an_unknown_setting_is_refused_with_the_nearest_name(
    no_redis: redis.Redis, kind: type[RedisQueue | DelayQueue], name: str
) -> None:
    for hint in (f"unknown setting {name!r}", UNKNOWN_SETTINGS[name]):
        assert_refused(ConfigurationError, hint, lambda: kind("orders", no_redis, **{name: 1}))


BAD_SETTINGS = [
    ("prefix", ""),
    ("prefix", "x" * 101),
    ("prefix", None),
    ("prefix", b"p"),
    ("prefix", "\ud800"),
    ("lease", 0),
    ("lease", -1),
    ("lease", math.nan),
    ("lease", math.inf),
    ("lease", True),
    ("lease", "60"),
    ("lease", 8 * 86400),
    ("lease", timedelta(days=8)),
    ("poll_interval", 0),
    ("poll_interval", 61),
    ("poll_interval", None),
    ("max_deliveries", -1),
    ("max_deliveries", 1.5),
    ("max_deliveries", True),
    ("max_deliveries", "3"),
    ("max_length", -1),
    ("max_length", math.inf),
    ("max_body", 0),
    ("max_body", 2**40),
    ("put_back_on_get", -1),
    ("put_back_on_get", 501),
    ("shards", 0),
    ("shards", 1025),
    ("shards", True),
]


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS, ids=lambda value: repr(value)[:20])
def test_a_setting_out_of_range_is_refused(no_redis: redis.Redis, name: str, value: Any) -> None:
    assert_refused(ConfigurationError, f"{name}={value!r}", lambda: RedisQueue("orders", no_redis, **{name: value}))
    assert_refused(ConfigurationError, f"{name}={value!r}", lambda: DelayQueue("orders", no_redis, **{name: value}))


class Nameless:
    """A serializer without a name, which makes it invalid."""

    def dumps(self, body: Any, /) -> bytes:
        return b""

    def loads(self, data: bytes, /) -> Any:
        """Return nothing."""


class Shouting(Nameless):
    name = "LOUD"


class Posing(Nameless):
    name = "bytes"


@pytest.mark.parametrize("value", [None, "json", Nameless(), Shouting(), Posing()], ids=lambda v: type(v).__name__)
def test_an_invalid_serializer_is_refused(no_redis: redis.Redis, value: Any) -> None:
    assert_refused(ConfigurationError, "serializer", lambda: RedisQueue("orders", no_redis, serializer=value))
    assert_refused(ConfigurationError, "serializer", lambda: DelayQueue("orders", no_redis, serializer=value))


@pytest.mark.parametrize("kind", [RedisQueue, DelayQueue])
def test_settings_and_keywords_exclude_each_other(no_redis: redis.Redis, kind: type[RedisQueue | DelayQueue]) -> None:
    assert_refused(ConfigurationError, "not both", lambda: kind("orders", no_redis, settings=Settings(), max_length=5))


@pytest.mark.parametrize("kind", [RedisQueue, DelayQueue])
def test_settings_of_another_type_are_refused(no_redis: redis.Redis, kind: type[RedisQueue | DelayQueue]) -> None:
    settings: Any = {"prefix": "shop"}
    with pytest.raises(RedisQueueError, match="settings="):
        kind("orders", no_redis, settings=settings)


@pytest.mark.parametrize(
    "value",
    [None, 5, b"redis://h", ["redis://h"], object(), redis.asyncio.Redis],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", [RedisQueue, DelayQueue])
def test_a_value_that_is_neither_url_nor_client_is_refused(kind: type[RedisQueue | DelayQueue], value: Any) -> None:
    assert_refused(ConfigurationError, type(value).__name__, lambda: kind("orders", value))


@pytest.mark.parametrize("kind", [RedisQueue, DelayQueue])
def test_an_asyncio_client_is_refused(kind: type[RedisQueue | DelayQueue]) -> None:
    async def attempt() -> None:
        client: Any = redis.asyncio.Redis()
        assert_refused(ConfigurationError, "Redis", lambda: kind("orders", client))
        await client.aclose()

    asyncio.run(attempt())


def test_a_valid_call_uses_the_link(queue: RedisQueue) -> None:
    with pytest.raises(pytest.fail.Exception, match="HSET was sent"):
        queue.put("fine")


def test_a_valid_call_to_an_unreachable_port_raises_another_error() -> None:
    queue = RedisQueue("orders", redis.Redis(host=HOST, port=free_port(), **client_options()))
    with pytest.raises(StoreUnavailableError):
        queue.put("fine")
    assert_refused(InvalidDelayError, "delay=nan", lambda: queue.put("fine", delay=math.nan))
    assert_refused(BodyError, "body of type set", lambda: queue.put({1}))


HARMLESS = [
    "a b",
    " ",
    ".",
    "..",
    "{x}",
    "}{",
    "{}",
    "a:b",
    "a*b?[c]",
    "%7B",
    "100%",
    "ünï→✓",
    "日本語",
    "👩‍🚀".replace("\u200d", ""),
    "'quoted\" \\ back",
    "$(id); drop table",
    "-inf",
    "0",
    "+",
    "x" * 200,
    "\U0001f600" * 200,
]


@pytest.mark.parametrize("name", HARMLESS, ids=lambda value: ascii(value)[:20])
class TestHarmless:
    def test_as_a_queue_name_and_prefix_it_works_from_put_to_redrive(self, client: redis.Redis, name: str) -> None:
        queue = RedisQueue(name, client, prefix=name[:100], max_deliveries=1)
        id_ = queue.put({"name": name})
        message = must(queue.get(block=False))
        assert (message.id, message.body) == (id_, {"name": name})
        assert queue.nack(message, reason=name)
        assert [(letter.id, letter.reason) for letter in queue.dead_letters()] == [(id_, name)]
        assert queue.redrive([id_]) == 1
        assert queue.ack(must(queue.get(block=False)))
        assert queue.stats().acked == 1
        assert [known.name for known in Registry(Scripts(client), name[:100]).all()] == [name]

    def test_as_a_delay_queue_name_it_works_from_push_to_ack(self, client: redis.Redis, name: str) -> None:
        timed = DelayQueue(name, client, shards=2)
        timed.push("soon", id="a")
        timed.push("late", id="b", delay=60)
        assert [entry.id for entry in timed] == ["a", "b"]
        assert timed.cancel("b")
        entry = timed.claim()[0]
        assert entry.payload == "soon"
        assert timed.ack(entry)
        assert [known.name for known in Registry(Scripts(client), "redis_queue").all()] == [name]

    def test_as_an_id_it_works_from_push_to_redrive(self, client: redis.Redis, name: str) -> None:
        timed = DelayQueue("timed", client, max_deliveries=1, shards=2)
        assert timed.push("first", id=name, delay=60) == name
        assert timed.push("second", id=name, delay=60) == name
        entry = must(timed.get(name))
        assert (entry.id, entry.payload) == (name, "second")
        page = timed.list()
        assert [found.id for found in page] == [name]
        assert timed.list(after=timed.cursor(page[0])) == []
        assert timed.run_now(name)
        claimed = timed.claim()
        assert [found.id for found in claimed] == [name]
        assert timed.nack(claimed[0], reason="died")
        assert timed.redrive([name]) == 1
        assert timed.cancel(name).taken_out

    def test_as_a_dedupe_key_it_works(self, client: redis.Redis, name: str) -> None:
        queue = RedisQueue("orders", client)
        assert queue.put(1, dedupe_key=name) == queue.put(2, dedupe_key=name) == name
        message = must(queue.get(block=False))
        assert (message.id, message.body) == (name, 1)
        assert queue.extend(message)
        assert queue.ack(message)
        assert len(queue) == 0


def test_names_that_look_alike_once_encoded_are_different_queues(client: redis.Redis) -> None:
    names = ["a:b", "a%3Ab", "a%253Ab", "{a}:b", "a", "a:b:0", "A:b"]
    for name in names:
        RedisQueue(name, client).put(name)
    for name in names:
        queue = RedisQueue(name, client)
        assert [message.body for message in queue.get_many(10)] == [name]


def test_a_queue_and_a_delay_queue_can_have_the_same_name(client: redis.Redis) -> None:
    queue, timed = RedisQueue("orders", client), DelayQueue("orders", client)
    queue.put("data")
    timed.push("later")
    assert [message.body for message in queue.get_many(10)] == ["data"]
    assert [entry.payload for entry in timed.claim(10)] == ["later"]


def test_a_name_cannot_reach_into_another_queue(client: redis.Redis) -> None:
    victim = Keys("redis_queue", "queue", "victim")
    RedisQueue("victim", client).put("precious")
    before = client.hgetall(victim.records)
    for name in ("victim}:records", "x}:{redis_queue:queue:victim", "victim:records", "*"):
        queue = RedisQueue(name, client)
        queue.put("attack")
        assert queue.purge("ready", "delayed", "dead", "quarantine") == 1
    assert client.hgetall(victim.records) == before


@pytest.mark.parametrize(
    "body",
    ["", [], {}, None, 0, False, b"", "\x00", "x" * 1000, 2**70, -0.0, 1e308, {"": {"": [None]}}, b"\x00\xff\n"],
    ids=lambda body: repr(body)[:20],
)
def test_an_unusual_body_is_accepted(client: redis.Redis, body: Any) -> None:
    queue = RedisQueue("orders", client)
    queue.put(body, headers={"": None})
    message = must(queue.get(block=False))
    assert (message.body, type(message.body)) == (body, type(body))
    assert message.headers == {"": None}


@pytest.mark.parametrize("value", [0, 0.0, -0.0, timedelta(0), 1e-9, TEN_YEARS, timedelta(days=3653)], ids=repr)
def test_the_shortest_and_longest_delays_work(client: redis.Redis, value: Any) -> None:
    timed = DelayQueue("timed", client)
    timed.push("x", delay=value, id="x")
    assert timed.reschedule("x", delay=value)
    assert len(timed) == 1


def test_a_due_time_long_ago_is_due_now(client: redis.Redis) -> None:
    timed = DelayQueue("timed", client)
    timed.push("first of all", due_at=datetime.min.replace(tzinfo=timezone.utc))
    timed.push("long ago", due_at=datetime(1999, 1, 1, tzinfo=timezone.utc))
    assert [entry.payload for entry in timed.claim(2)] == ["first of all", "long ago"]


def test_a_due_time_in_a_gap_or_fold_of_its_zone_means_one_moment(client: redis.Redis) -> None:
    zoneinfo = pytest.importorskip("zoneinfo")
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    timed = DelayQueue("timed", client)
    first = datetime(2030, 10, 27, 2, 30, tzinfo=berlin)
    timed.push("summer", id="summer", due_at=first)
    timed.push("winter", id="winter", due_at=first.replace(fold=1))
    summer, winter = timed.list()
    assert (summer.id, winter.id) == ("summer", "winter")
    assert winter.due_at - summer.due_at == timedelta(hours=1)


@pytest.mark.parametrize("verb", ["put_many", "push_many", "cancel_many"])
def test_a_generator_is_read_in_chunks(client: redis.Redis, verb: str) -> None:
    """At most 500 ids are in memory at once."""
    queue, timed = RedisQueue("orders", client), DelayQueue("orders", client)
    done: dict[str, Callable[[], int]] = {
        "put_many": lambda: queue.stats().put,
        "push_many": lambda: len(timed),
        "cancel_many": lambda: 2500 - len(timed),
    }
    if verb == "cancel_many":
        timed.push_many([Push(number, id=str(number)) for number in range(2500)])
    behind: list[int] = []

    def numbers() -> Iterator[str]:
        for number in range(2500):
            if number % 100 == 0:
                behind.append(number - done[verb]())
            yield str(number)

    call: Any = getattr(queue if verb == "put_many" else timed, verb)
    assert len(call(numbers())) == 2500
    assert max(behind) == 400


@pytest.mark.parametrize("values", ["abc", b"abc", {"a": 1}])
def test_a_single_value_instead_of_a_list_is_refused(client: redis.Redis, values: Any) -> None:
    queue = RedisQueue("orders", client)
    assert_refused(InvalidValueError, "must be a list", lambda: queue.put_many(values))
    assert_refused(InvalidValueError, "must be a list", lambda: queue.redrive(values))
    assert_refused(InvalidValueError, "must be a list", lambda: queue.delete_dead(values))


def test_a_failing_generator_keeps_the_chunks_stored_before(client: redis.Redis) -> None:
    queue = RedisQueue("orders", client)

    def bodies() -> Iterator[int]:
        yield from range(700)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        queue.put_many(bodies())
    assert [message.body for message in queue.get_many(500)] == list(range(500))
    assert queue.stats().ready == 0


def test_a_queue_works_while_the_interpreter_shuts_down(client: redis.Redis, redis_url: str) -> None:
    code = (
        "import atexit, sys\n"
        "from redis_queue import DelayQueue, RedisQueue\n"
        "queue, timed = RedisQueue('orders', sys.argv[1]), DelayQueue('orders', sys.argv[1])\n"
        "atexit.register(lambda: (queue.put('the last'), timed.push('the last')))\n"
    )
    command = [sys.executable, "-c", code, redis_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [message.body for message in RedisQueue("orders", client).get_many(5)] == ["the last"]
    assert [entry.payload for entry in DelayQueue("orders", client).claim(5)] == ["the last"]


def test_a_queue_works_within_a_running_event_loop(client: redis.Redis) -> None:
    queue = RedisQueue("orders", client)

    async def view() -> bool:
        queue.put("hello")
        with queue.lease(block=False) as message:
            return message is not None and message.body == "hello"

    assert asyncio.run(view())
    assert queue.stats().acked == 1


class TestForeignLeases:
    @pytest.fixture
    def live(self, client: redis.Redis) -> RedisQueue:
        queue = RedisQueue("live", client)
        queue.put_many(["a", "b"])
        return queue

    @pytest.fixture
    def message(self, live: RedisQueue) -> Message:
        return must(live.get(block=False))

    def test_a_second_ack_is_false(self, live: RedisQueue, message: Message) -> None:
        assert live.ack_many([message, message]) == [True, False]
        assert not live.ack(message)
        assert live.stats().acked == 1

    @pytest.mark.parametrize("token", ["", " ", "1", "abc", "-abc", "1-abc", "%S+", "1 1-abc"])
    def test_a_forged_token_settles_nothing(self, live: RedisQueue, message: Message, token: str) -> None:
        assert message.lease is not None
        forged = {token, message.lease.token[1:], message.lease.token + "0", message.lease.token.upper()}
        # A token may consist of digits alone.
        for wrong in forged - {message.lease.token}:
            fake = Message(message.id, None, {}, NOW, 1, Lease(wrong, NOW))
            assert not live.ack(fake)
            assert not live.nack(fake)
            assert not live.extend(fake)
            assert not live.still_mine(fake)
        assert live.ack(message)

    def test_the_token_of_another_message_settles_nothing(self, live: RedisQueue, message: Message) -> None:
        other = must(live.get(block=False))
        assert not live.ack(Message(message.id, None, {}, NOW, 1, other.lease))
        assert live.ack_many([other, message]) == [True, True]

    def test_the_message_of_another_queue_settles_nothing(
        self, client: redis.Redis, live: RedisQueue, message: Message
    ) -> None:
        stranger = RedisQueue("stranger", client)
        stranger.put("c", dedupe_key=message.id)
        assert stranger.get(block=False)
        assert not stranger.ack(message)
        assert not stranger.nack(message, dead=True)
        assert live.still_mine(message)

    @pytest.mark.parametrize("lease", [0, 0.0, timedelta(0), 1e-9])
    def test_extending_by_zero_does_not_shorten_the_lease(self, live: RedisQueue, message: Message, lease: Any) -> None:
        ends = live.client.zscore(Keys("redis_queue", "queue", "live").in_flight, message.id)
        assert live.extend(message, lease)
        assert live.client.zscore(Keys("redis_queue", "queue", "live").in_flight, message.id) == ends

    def test_after_a_purge_messages_in_flight_can_be_settled(self, live: RedisQueue, message: Message) -> None:
        assert live.purge("ready", "delayed", "dead", "quarantine") == 1
        assert live.ack(message)

    def test_after_it_was_destroyed_it_settles_nothing(self, live: RedisQueue, message: Message) -> None:
        live.destroy()
        assert not live.ack(message)
        assert not live.nack(message)
        assert not live.extend(message)
        assert not live.still_mine(message)

    def test_an_entry_whose_lease_went_to_another_settles_nothing(self, client: redis.Redis) -> None:
        timed = DelayQueue("live", client)
        timed.push("a", id="a")
        first = timed.claim()[0]
        timed.push("b", id="a")
        second = timed.claim()[0]
        assert (second.payload, second.deliveries) == ("b", 1)
        assert not timed.ack(first)
        assert not timed.nack(first)
        assert timed.ack_many([second, second]) == [True, False]

    def test_after_a_flush_it_settles_nothing(self, client: redis.Redis, live: RedisQueue, message: Message) -> None:
        client.flushall()
        assert not live.ack(message)
        assert not live.nack(message)
        assert not live.extend(message)
        assert client.keys() == []
