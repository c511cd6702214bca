"""Any value in any field of a stored message: each reader accepts or refuses it within limits of time and memory.

Each test gives a reader every field with every value, and measures its own processor time, not that of its neighbours.
"""

import json
import logging
import resource
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redis_queue.basics.options import Conditions
from redis_queue.basics.times import from_ms
from redis_queue.celery import Dispatcher, DurableTasks
from redis_queue.celery.control import panel as control
from redis_queue.celery.message.envelope import MAX_CODES, VERSION, Envelope
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.results import _request
from redis_queue.cli import celery as cli
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry
from redis_queue.store.codec import JSON, Codec
from redis_queue.store.keys import Keys
from tests.support.celery.fetching import take_in
from tests.support.celery.messages import message
from tests.support.cpu import server_seconds
from tests.support.servers import RedisServer

LONG: Final = 100_000

HOSTILE: Final = {
    "huge decimal": '{"__type__":"decimal","__value__":"1E+10000000"}',
    "huge decimal in disguise": r'{"\u005f_type__":"decimal","__value__":"1E+10000000"}',
    "decimal of many digits": '{"__type__":"decimal","__value__":"%s"}' % ("9" * LONG),
    "long uuid": '{"__type__":"uuid","__value__":{"hex":"%s"}}' % ("a" * LONG),
    "no datetime": '{"__type__":"datetime","__value__":"%s"}' % ("2030-" * 1000),
    "bytes": '{"__type__":"base64","__value__":"/w=="}',
    "unknown type": '{"__type__":["x"],"__value__":1}',
    "huge integer": "9" * LONG,
    "integer of the limit": "-" + "9" * 4000,
    "integer of 64 bits": "9223372036854775808",
    "exponent": "1e400",
    "not a number": "NaN",
    "infinity": "-Infinity",
    "deep": "[" * 20_000 + "]" * 20_000,
    "deep, but readable": '{"a":' * 700 + "1" + "}" * 700,
    "long text": '"%s"' % ("x" * LONG),
    "digits as text": '"%s"' % ("9" * LONG),
    "surrogate": r'"\ud800"',
    "null": "null",
    "true": "true",
    "list": "[1,[2]]",
    "object": '{"x":{"y":1}}',
}
IN_MESSAGE: Final = (
    "body",
    "content-type",
    "content-encoding",
    "headers",
    *(f"headers.{name}" for name in ("id", "task", "eta", "expires", "retries", "timelimit", "stamps", "root_id")),
    *(f"headers.{name}" for name in ("argsrepr", "group", "compression", "traceparent", "x")),
    "properties",
    *(f"properties.{name}" for name in ("priority", "delivery_mode", "correlation_id", "reply_to", "expiration")),
    *(f"properties.{name}" for name in ("retry_policy", "body_encoding", "delivery_info")),
    "properties.delivery_info.exchange",
    "properties.delivery_info.routing_key",
)
IN_RECORD: Final = ("declare", "expires_at")
HOLE: Final = "the place of the value"

SECONDS, MEGABYTES = 0.5, 200
"""Limits of CPU seconds per message and of memory for all messages. A reader that expands the decimal takes minutes."""


def element(field: str, value: str) -> str:
    """Return an ordinary message whose *field* is *value*, given as JSON."""
    found: Any = json.loads(message(body=b'[[1], {}, {"chord": null}]').element(""))
    *path, last = field.split(".")
    place = found
    for name in path:
        place = place[name]
    place[last] = HOLE
    return json.dumps(found, separators=(",", ":")).replace(f'"{HOLE}"', value)


def records() -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the description of each record, with its payload and the JSON of its headers."""
    for kind, value in HOSTILE.items():
        for field in IN_MESSAGE:
            yield f"{field}: {kind}", VERSION + element(field, value).encode(), b""
        protocol_1 = f'{{"task":"x","id":"y","args":[1],"kwargs":{{}},"retries":{value}}}'
        body = element("body", json.dumps(protocol_1)).replace('"task"', '"no task"')
        yield f"retries in the body: {kind}", VERSION + body.encode(), b""
        for field in IN_RECORD:
            yield f"{field} of the record: {kind}", message().pack(), b'{"%s":%s}' % (field.encode(), value.encode())
            yield f"one of {field}: {kind}", message().pack(), b'{"%s":[%s]}' % (field.encode(), value.encode())
    yield "many phrases", VERSION + b"\x82" * LONG, b""
    yield "many ids", VERSION + b"\x80" * LONG, b""


@pytest.fixture(scope="module")
def entries() -> dict[str, Entry]:
    codec, found = Codec(JSON, 2**30), {}
    for number, (what, payload, headers) in enumerate(records()):
        try:
            record = codec.decode(record_bytes(payload, headers))
        except ValueError:
            continue
        found[what] = Entry(f"hostile-{number}", record.body, record.headers, from_ms(0), from_ms(0))
    assert len(found) > len(HOSTILE) * len(IN_MESSAGE)
    return found


def record_bytes(payload: bytes, headers: bytes, destination: bytes = b"") -> bytes:
    return b"v1 5 bytes %d %d %d\n%b%b%b" % (
        len(headers),
        len(payload),
        len(destination),
        headers,
        destination,
        payload,
    )


def measured(what: str, call: Callable[[], Any]) -> Any:
    """Return the result of *call*; raises AssertionError if it takes too long."""
    # Threads that other tests have left behind do not count.
    before = time.thread_time()
    found = call()
    taken = time.thread_time() - before
    assert taken < SECONDS, f"{what}: {taken:.2f} s"
    return found


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES, f"{grown:.0f} MB"


@pytest.fixture
def app(redis_server: RedisServer, client: redis.Redis) -> Iterator[Celery]:
    app = Celery("tests", broker=f"redis+socket://{redis_server.socket}", set_as_current=False)
    yield app
    app.close()


def store(app: Celery, client: redis.Redis, destination: str = "") -> int:
    """Store all records as due; return their number."""
    keys = Keys("redis_queue", "delay", "scheduled", 0)
    DurableTasks(app, leases=False).queue.push("to be known", id="gone")
    DurableTasks(app, leases=False).queue.cancel("gone")
    rows = {
        f"hostile-{number}": record_bytes(payload, headers, destination.encode())
        for number, (_, payload, headers) in enumerate(records())
    }
    with client.pipeline(transaction=False) as pipe:
        for number, (id_, record) in enumerate(rows.items(), 1):
            pipe.hset(keys.records, id_, record)
            pipe.zadd(keys.waiting, {id_: number})
        pipe.execute()
    return len(rows)


def test_dashboard_row(entries: dict[str, Entry]) -> None:
    def shown(entry: Entry) -> None:
        row = TaskEntry.of(entry)
        assert row.id == entry.id
        assert len(json.dumps([control._row(row), row.headers, str(row.stamps)])) < 10 * LONG
        Conditions(stamp={"x": "y"}).match(row)
        _request(entry)

    for what, entry in entries.items():
        measured(what, lambda: shown(entry))  # noqa: B023


def test_envelope_is_complete_or_refused(entries: dict[str, Entry]) -> None:
    taken = set()
    for what, entry in entries.items():
        try:
            found = measured(what, lambda: Envelope.unpack(entry.payload, entry.id, entry.headers))  # noqa: B023
        except InvalidValueError:
            continue
        taken.add(what)
        texts = (found.id, found.task, found.content_type, found.exchange, found.routing_key, found.queue)
        assert all(type(text) is str and len(text) <= 1000 for text in texts), what
        assert type(found.priority) is int
        assert abs(found.priority) < 2**31
    assert f"headers.retries: {next(iter(HOSTILE))}" in taken
    assert not [what for what in taken if what.startswith(("properties.priority: huge", "many", "content-type: long"))]


@pytest.mark.parametrize("named", [True, False], ids=["into its list", "without a list"])
def test_dispatcher_handles_all_records(
    app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture, *, named: bool
) -> None:
    list_name = app.conf.task_default_queue
    total = store(app, client, list_name if named else "")
    queue = DurableTasks(app, leases=False).queue
    good = app.send_task("shop.good", countdown=60).id
    assert queue.run_now(good)
    caplog.set_level(logging.CRITICAL, "redis_queue")
    dispatcher = Dispatcher(app, queue)

    before, server = time.process_time(), server_seconds(client)
    while queue.stats().due:
        dispatcher.run()
    dispatcher.close()

    assert time.process_time() - before < total * SECONDS / 20
    assert server_seconds(client) - server < total * SECONDS / 20
    stats = queue.stats()
    assert stats.dead > total // 10
    elements: Any = client.lrange(list_name, 0, -1)
    assert [found for found in elements if good.encode() in found]
    assert max(map(len, elements)) < 2 * LONG + MAX_CODES
    for found in elements:
        measured(str(found[:200]), lambda: read_as_worker(found))  # noqa: B023


def read_as_worker(item: bytes) -> None:
    """Read *item* as a worker does, and find the list to which it would be returned."""
    channel = take_in(item, lambda *_: None)
    for fetched in channel._received:
        channel._get_message_priority(fetched._raw)


def test_worker_reads_messages_written_by_others(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "redis_queue")
    assert take_in(element("headers.x", "1").encode(), lambda *_: None)._received
    for kind, value in HOSTILE.items():
        for field in IN_MESSAGE:
            measured(f"{field}: {kind}", lambda: read_as_worker(element(field, value).encode()))  # noqa: B023


def test_command_line_list(app: Celery, client: redis.Redis) -> None:
    store(app, client)

    def listed() -> Any:
        arguments = ("scheduled", "list", "--limit", "500", "--json")
        return CliRunner().invoke(cli.group, arguments, obj=SimpleNamespace(app=app), catch_exceptions=False)

    before = time.process_time()
    assert listed().exit_code == 0
    assert time.process_time() - before < 60 * SECONDS
