"""Fuzzing: arbitrary bytes in the broker, the store or a request are read, refused or left unchanged.

REDIS_QUEUE_HYPOTHESIS_PROFILE=thorough runs thirty times as many examples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.connection import Connection

from redis_queue import ConfigurationError, InvalidValueError
from redis_queue.celery import CelerySettings
from redis_queue.celery.brokers.base import Broker
from redis_queue.celery.control import panel as control
from redis_queue.celery.kombu.keys import InFlightKeys, ListNames
from redis_queue.celery.leases.poison import _read_start, _stamp
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.message.envelope import VERSION, Envelope, element_of
from redis_queue.celery.message.producer import build, describe
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.migrate.kombu_backlog import BacklogTask, KombuBacklog, RemainingTask
from redis_queue.celery.queues.names import QueueNames
from redis_queue.celery.results import _request
from redis_queue.celery.settings import NAMESPACE, Overdue
from redis_queue.model import Entry
from redis_queue.store.scripts import Scripts
from tests.support.celery.brokers import declared, exchange_of
from tests.support.celery.fetching import take_in
from tests.support.celery.messages import envelopes, message
from tests.support.mutations import as_json, damaged_bytes, fuzzed, json_values, objects_with, outcome

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
APP = Celery("fuzz", broker="memory://", set_as_current=False)

headers = objects_with(
    id=st.text(max_size=5),
    task=st.text(max_size=5),
    eta=st.just("2030-01-01T00:00:00"),
    expires=st.just("2030-01-01T00:00:00"),
    retries=st.integers(),
    stamps=st.dictionaries(st.text(max_size=3), json_values),
    compression=st.just("application/x-gzip"),
)
properties = objects_with(
    correlation_id=st.text(max_size=5),
    priority=st.integers(),
    body_encoding=st.just("base64"),
    delivery_tag=st.text(max_size=5),
    expiration=st.just("5000"),
    delivery_info=objects_with(exchange=st.just(""), routing_key=st.just("celery")),
)
embedded = objects_with(chord=st.dictionaries(st.text(max_size=3), json_values, max_size=2))
bodies = st.tuples(json_values, json_values, embedded).map(json.dumps) | objects_with(
    task=st.just("shop.add"), eta=st.just("2030-01-01T00:00:00"), args=st.just([1]), retries=st.integers()
).map(json.dumps)
elements = st.fixed_dictionaries(
    {},
    optional={
        "body": bodies | json_values,
        "content-type": st.just("application/json") | json_values,
        "content-encoding": st.just("utf-8") | json_values,
        "headers": headers | json_values,
        "properties": properties | json_values,
    },
)
kept = objects_with(declare=st.lists(json_values, max_size=2), expires_at=st.integers())


packed = envelopes().map(Envelope.pack)
payloads = damaged_bytes(packed) | packed | st.binary(max_size=60) | as_json(elements).map(lambda data: VERSION + data)


def protocol_1(body: bytes) -> Envelope:
    return message(headers={}, body=body)


class TestStoredMessage:
    @fuzzed
    @given(payloads, st.text(max_size=12), kept)
    def test_is_read_or_refused(self, payload: bytes, entry_id: str, head: Any) -> None:
        found = outcome(lambda: Envelope.unpack(payload, entry_id, head), InvalidValueError)
        assert isinstance(found, Envelope) or str(found)
        pushed = outcome(lambda: element_of(payload, entry_id), InvalidValueError)
        assert isinstance(pushed, str) or str(pushed)

    @example(protocol_1(b'{"__type__":"decimal","__value__":"x"}').pack(), "id", {})
    @example(protocol_1(b"[" * 100_000).pack(), "id", {})
    @example(message(headers={"task": "x", "retries": "many", "stamps": [1]}).pack(), "id", {})
    @example(message().pack(), "id", {"declare": 5})
    @example(message().pack(), "id", {"expires_at": "soon"})
    @fuzzed
    @given(
        payloads | json_values | objects_with(task=st.text(), args=st.lists(json_values)), st.text(max_size=12), kept
    )
    def test_is_shown_with_any_contents(self, payload: Any, entry_id: str, head: Any) -> None:
        entry = Entry(entry_id, payload, head, NOW, NOW)
        shown = TaskEntry.of(entry)
        assert (shown.id, shown.due_at) == (entry_id, NOW)
        assert isinstance(shown.priority + shown.retries, int)
        assert dict(shown.stamps) is not None
        json.dumps(control._row(shown))
        _request(entry)


@fuzzed
@given(json_values | objects_with(task=st.text(), args=st.lists(json_values), kwargs=json_values, options=json_values))
def test_a_stored_call_is_read_or_refused(payload: Any) -> None:
    found = outcome(lambda: TaskCall.from_payload(payload), InvalidValueError)
    assert isinstance(found, TaskCall) or str(found)


@pytest.fixture(scope="module")
def virtual() -> Iterator[Broker]:
    with Connection("memory://") as connection:
        yield Broker(APP, connection)


@fuzzed
@given(st.lists(json_values | objects_with(queue=st.text(), exchange=objects_with(name=st.text())), max_size=2))
def test_message_with_any_declaration_is_sent_or_refused(virtual: Broker, declare: list[Any]) -> None:
    found: list[Any] = []
    stored = message()
    envelope = outcome(lambda: Envelope.unpack(stored.pack(), stored.id, {"declare": declare}), InvalidValueError)
    if isinstance(envelope, InvalidValueError):
        assert "declare" in str(envelope)
        return
    virtual.publish([envelope], lambda number, why: found.append((number, why)))
    assert len(found) == 1


@fuzzed
@given(
    st.text(max_size=8),
    st.sampled_from(["direct", "topic", "fanout"]),
    st.fixed_dictionaries(
        {},
        optional={
            "durable": st.booleans(),
            "expires": st.integers(1, 1000),
            "max_priority": st.integers(0, 255),
            "queue_arguments": st.dictionaries(st.text(max_size=4), st.integers()),
        },
    ),
)
def test_queue_description_round_trip(name: str, kind: str, options: dict[str, Any]) -> None:
    queue = declared(name, exchange_of(f"exchange of {name}", kind), routing_key=name, **options)
    description = json.loads(json.dumps(describe(queue, APP)))
    if isinstance(description, str):
        assert (description, set(options) - {"durable"}) == (name, set())
        return
    built: Any = build(description)
    assert built == queue
    assert describe(built, APP) == description


@pytest.fixture(scope="module")
def backlog() -> KombuBacklog:
    """A backlog without a connection to its broker."""
    backlog = object.__new__(KombuBacklog)
    backlog._app, backlog._names, backlog._in_flight = APP, ListNames(), InFlightKeys.under("")
    backlog._queue_names = QueueNames(APP)
    backlog._scripts = object.__new__(Scripts)
    return backlog


class TestMessageOfStockWorkers:
    @fuzzed
    @given(st.binary(max_size=40) | as_json(elements) | damaged_bytes(as_json(elements)))
    def test_in_a_list_is_found_or_left_in_place(self, backlog: KombuBacklog, element: bytes) -> None:
        replies: Any = {"LLEN": 1, "LRANGE": [element]}
        backlog._send = lambda verb, *_: replies[verb]
        for page in backlog._in_list("celery", "celery"):
            assert all(isinstance(found, BacklogTask | RemainingTask) for found in page)

    @fuzzed
    @given(
        st.binary(max_size=20),
        st.binary(max_size=40) | as_json(st.tuples(elements, json_values, json_values)) | as_json(json_values),
        st.none() | st.floats(allow_nan=False),
    )
    def test_unacknowledged_is_found_or_left_in_place(
        self, backlog: KombuBacklog, tag: bytes, value: bytes, score: float | None
    ) -> None:
        replies: Any = {"HSCAN": (b"0", [tag, value]), "ZMSCORE": [score]}
        scripts: Any = backlog._scripts
        scripts.command = backlog._send = lambda verb, *_: replies[verb]
        for page in backlog._in_records():
            assert all(isinstance(found, BacklogTask | RemainingTask) for found in page)


@example(b"[" * 100_000)
@example(b'{"properties":{"x":{"__type__":"decimal","__value__":"x"}}}')
@fuzzed
@given(st.binary(max_size=40) | as_json(elements) | damaged_bytes(as_json(elements)) | damaged_bytes(packed))
def test_fetched_message_is_delivered_or_quarantined_with_its_bytes(item: bytes) -> None:
    aside: list[Any] = []
    handed: list[Any] = []
    channel = take_in(item, lambda *found: aside.append(found))
    channel.connection = SimpleNamespace(_deliver=lambda *found: handed.append(found))
    channel._queue_cycle = SimpleNamespace(rotate=handed.append)
    while channel._received:
        channel.deliver_received()
    assert aside == ([] if handed else [("tag", item)])


@fuzzed
@given(st.binary(max_size=40) | as_json(json_values) | as_json(objects_with(host=st.text(), at=st.floats())))
def test_start_record_with_any_contents_can_be_shown(row: bytes) -> None:
    start = _read_start(row)
    assert isinstance(start["host"], str)
    assert _stamp(start["at"]).endswith(" UTC")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=20)
    | st.datetimes()
    | st.decimals()
    | st.dates()
    | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


class TestConfiguration:
    @fuzzed
    @given(
        st.dictionaries(
            st.sampled_from(list(CelerySettings.__dataclass_fields__)) | st.text(max_size=8),
            json_values | st.timedeltas() | st.binary() | st.just(Decimal(1)),
            max_size=2,
        )
    )
    def test_is_accepted_or_refused_with_the_name_of_the_setting(self, values: dict[str, Any]) -> None:
        app = Celery("fuzz", broker="memory://", set_as_current=False)
        app.conf.update({f"{NAMESPACE}{name}": value for name, value in values.items()})
        found = outcome(lambda: CelerySettings.of(app), ConfigurationError)
        assert isinstance(found, CelerySettings) or NAMESPACE in str(found)

    @fuzzed
    @given(
        st.text(max_size=12)
        | st.builds("{}:{}".format, st.sampled_from(["run", "spread", "skip"]), st.floats() | st.text(max_size=5))
    )
    def test_of_overdue_entries_is_accepted_or_refused(self, text: str) -> None:
        found = outcome(lambda: Overdue.parse(text), ConfigurationError)
        if isinstance(found, Overdue):
            assert math.isfinite(found.amount)
            assert Overdue.parse(f"{found.policy}:{found.amount!r}" if found.amount else found.policy) == found
        else:
            assert "redis_queue_overdue=" in str(found)


class NoStore:
    """A DurableTasks without a store, for readers of requests: it asserts that ids are valid."""

    def revoke_many(self, ids: list[str]) -> set[str]:
        """Check the ids as the store does."""
        assert all(isinstance(id_, str) and id_.isprintable() and 0 < len(id_) < 256 for id_ in ids)
        return set()

    delays = True
    queue = SimpleNamespace(calls=SimpleNamespace(note_sent=list))
    settings = SimpleNamespace(prefix="redis_queue", delay_queue="scheduled")

    def cancel_matching(self, *, stamp: Any) -> None:
        """Accept any stamp."""

    def get(self, id_: str) -> None:
        self.revoke_many([id_])


@fuzzed
@given(st.sampled_from(list(control._COMMANDS)), json_values, json_values)
def test_request_of_a_foreign_client_keeps_the_own_answer_of_the_worker(name: str, first: Any, second: Any) -> None:
    app = SimpleNamespace(durable_tasks=NoStore(), redis_queue_loop=SimpleNamespace(leads=True))
    own: Any = {"scheduled": [], "query_task": {}}.get(name, "own")
    command = control._COMMANDS[name](lambda *_, **__: own)
    arguments: dict[str, Any] = {
        "revoke": {"task_id": first},
        "terminate": {"task_id": first, "signal": second},
        "revoke_by_stamped_headers": {"headers": first},
        "scheduled": {"limit": first, "after": second},
        "query_task": {"ids": first},
    }[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "_background", SimpleNamespace(run=lambda call: call()))
        assert command(SimpleNamespace(app=app), **arguments) == own
