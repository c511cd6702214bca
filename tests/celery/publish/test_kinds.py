"""send_many stores the same messages as single calls, whether they pass through Celery or not."""

from __future__ import annotations

import functools
import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, Signature, Task, chain
from celery.signals import before_task_publish

from redis_queue.celery import DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import CALL, ETA, SENT
from tests.support.celery.brokers import Broker, stored_messages

pytestmark = pytest.mark.parametrize("broker", ["redis"], indirect=True)


@pytest.fixture
def app(broker: Broker, redis_url: str) -> Celery:
    app = broker.app(redis_queue_url=redis_url)

    @app.task(name="shop.remind", shared=False)
    def remind(order: Any = None, tone: str = "") -> None:
        """Remind of an order."""

    @app.task(name="shop.quiet", shared=False, ignore_result=True)
    def quiet(order: Any) -> None:
        """Remind of an order, without a result."""

    return app


def stored(delayed: DurableTasks) -> dict[str, Envelope]:
    """Return every stored message by id."""
    return {envelope.id: envelope for envelope in stored_messages(delayed.app)}


def comparable(envelope: Envelope) -> Any:
    """Return the fields that two messages of one call have in common."""
    own = envelope.id
    headers = {name: "own" if value == own else value for name, value in envelope.headers.items()}
    headers |= {name: type(headers.get(name)) for name in (ETA, CALL, SENT)}
    properties = {name: "own" if value == own else value for name, value in envelope.properties.items()}
    return headers, properties, envelope.body, envelope.exchange, envelope.routing_key, envelope.declare


def signatures(app: Celery) -> list[Any]:
    """Return signatures of several kinds, at least two of each kind."""
    remind, quiet = app.tasks["shop.remind"], app.tasks["shop.quiet"]
    return [
        *(remind.s(number, tone="é") for number in range(3)),
        *(remind.s("x" * number).set(queue="low", priority=5) for number in range(3)),
        *(quiet.s({"n": number}) for number in range(3)),
        *(remind.si(number) for number in range(2)),
        *(remind.s(number).set(expires=600) for number in range(2)),
        *(remind.s(number).set(link=quiet.s()) for number in range(2)),
        *(remind.s(number).set(shadow="other", headers={"n": number}) for number in range(2)),
        *(app.signature("shop.elsewhere", (number,)) for number in range(2)),
        *(chain(remind.s(number), quiet.s()) for number in range(2)),
    ]


@pytest.mark.parametrize("listened", [False, True])
def test_each_message_equals_that_of_a_single_call(app: Celery, *, listened: bool) -> None:
    delayed = DurableTasks(app, leases=False)
    seen: list[str] = []

    def listen(headers: Any = None, **_: Any) -> None:
        seen.append(headers["id"])

    if listened:
        before_task_publish.connect(listen)
    try:
        bulk = [result.id for result in delayed.send_many(signatures(app), countdown=60)]
    finally:
        before_task_publish.disconnect(listen)
    single = [signature.apply_async(countdown=60).id for signature in signatures(app)]
    found = stored(delayed)
    assert len({*bulk, *single}) == len(found) == 2 * len(signatures(app))
    by_order = sorted(found.values(), key=lambda envelope: str(comparable_without_expiry(envelope)))
    for one, other in zip(by_order[::2], by_order[1::2], strict=True):
        assert comparable_without_expiry(one) == comparable_without_expiry(other)
    assert len(seen) == (len(signatures(app)) if listened else 0)


def comparable_without_expiry(envelope: Envelope) -> Any:
    """Return the same fields without the expiry and without the ids of later tasks."""
    headers, properties, body, *rest = comparable(envelope)
    followed = b'"chain": null' not in body or b'"callbacks": null' not in body
    return {**headers, "expires": bool(headers["expires"])}, properties, b"" if followed else body, rest


def by_override(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Override send_task in the class of the app."""
    del monkeypatch

    def send_task(self: Celery, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return Celery.send_task(self, name, args, kwargs, headers={"tenant": args[0]}, **options)

    app.__class__ = type("Shop", (Celery,), {"send_task": send_task})


def by_attribute(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace send_task of this app only."""
    send_task = app.send_task

    def with_priority(name: str, args: Any, kwargs: Any, **options: Any) -> Any:
        return send_task(name, args, kwargs, **{**options, "priority": args[0]})

    monkeypatch.setattr(app, "send_task", with_priority)


def by_wrapper(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrap apply_async of every task, as monitoring does."""
    del app
    apply_async = Task.apply_async

    @functools.wraps(apply_async)
    def wrapped(self: Task, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return apply_async(self, args, kwargs, **{**options, "headers": {"trace": str(args)}})

    monkeypatch.setattr(Task, "apply_async", wrapped)


def by_message(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrap the creation of messages of this app only."""
    create = app.amqp.create_task_message

    def create_task_message(task_id: str, name: str, args: Any = None, *rest: Any, **named: Any) -> Any:
        message = create(task_id, name, args, *rest, **named)
        message.headers["tenant"] = args[0]
        return message

    monkeypatch.setattr(app.amqp, "create_task_message", create_task_message)


def by_shadow_name(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each call except the first its own shadow name."""

    def shadow_name(self: Task, args: Any, *_: Any) -> str | None:
        return f"{self.name} {args[0]}" if args[0] else None

    monkeypatch.setattr(type(app.tasks["shop.remind"]), "shadow_name", shadow_name)


def by_model(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert arguments like Celery with pydantic=True."""
    dump = staticmethod(lambda args, kwargs: ([{"model": arg} for arg in args], kwargs))
    monkeypatch.setattr(type(app.tasks["shop.remind"]), "_dump_pydantic_arguments", dump, raising=False)


def by_serializer(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send with another serializer."""
    del monkeypatch
    app.conf.task_serializer = "yaml"


def by_protocol(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send with the old protocol."""
    del monkeypatch
    app.conf.task_protocol = 1


CHANGES: Any = [
    None,
    by_override,
    by_attribute,
    by_wrapper,
    by_message,
    by_shadow_name,
    by_model,
    by_serializer,
    by_protocol,
]


def of_one_kind(app: Celery) -> list[Any]:
    """Return signatures of one task with arguments of several types."""
    remind = app.tasks["shop.remind"]
    typed = (UUID(int=1), Decimal("1.5"), datetime(2030, 1, 1, tzinfo=timezone.utc), b"\xff", {"a": (1, 2)})
    return [
        *(remind.s(number) for number in range(3)),
        *(remind.s(5, tone=value) for value in typed),
        Signature.from_dict(json.loads(json.dumps(remind.s(7))), app=app),
    ]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__ if change else "none")
@pytest.mark.parametrize("at", ["before", "after"])
def test_customization_applies_to_each_message(
    app: Celery, monkeypatch: pytest.MonkeyPatch, change: Any, at: str
) -> None:
    if at == "after":
        DurableTasks(app, leases=False)
    if change:
        change(app, monkeypatch)
    delayed = DurableTasks(app, leases=False)
    calls = [
        signature for signature in of_one_kind(app) if change is not by_serializer or "tone" not in signature.kwargs
    ]
    bulk = [result.id for result in delayed.send_many(calls, countdown=60)]
    single = [signature.apply_async(countdown=60).id for signature in calls]
    found = stored(delayed)
    for one, other in zip(bulk, single, strict=True):
        expected = comparable(found[other])
        assert comparable(found[one]) == (
            *expected[:2],
            expected[2].replace(other.encode(), one.encode()),
            *expected[3:],
        )


def test_eta_counts_elapsed_time_across_clock_changes(app: Celery) -> None:
    app.conf.timezone = "Europe/Berlin"
    delayed = DurableTasks(app, leases=False)
    days = (90, 180, 270)
    before = datetime.now(timezone.utc)
    results = delayed.send_many(app.tasks["shop.remind"].s(1).set(countdown=86400 * n) for n in (1, *days))
    after = datetime.now(timezone.utc)
    found = stored(delayed)
    for result, n in zip(results[1:], days, strict=True):
        eta = datetime.fromisoformat(found[result.id].headers[ETA])
        assert before <= eta - timedelta(days=n) <= after


def test_clock_of_the_app_applies_to_each_message(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    delayed = DurableTasks(app, leases=False)
    moment = datetime(2040, 1, 1, tzinfo=timezone.utc)
    monkeypatch.setattr(app, "now", lambda: moment)
    delayed.send_many([app.tasks["shop.remind"].s(number) for number in range(3)], countdown=60)
    assert {envelope.headers[ETA] for envelope in stored(delayed).values()} == {"2040-01-01T00:01:00+00:00"}


def test_wrong_arguments_are_refused_as_by_apply_async(app: Celery) -> None:
    delayed = DurableTasks(app, leases=False)
    remind = app.tasks["shop.remind"]
    with pytest.raises(TypeError, match=r"missing|takes|unexpected"):
        delayed.send_many([remind.s(1), remind.s(2), remind.s(1, 2, 3, 4)], countdown=60)


def test_one_connection_is_sufficient(app: Celery) -> None:
    app.conf.broker_pool_limit = 1
    assert len(DurableTasks(app, leases=False).send_many(signatures(app) * 2, countdown=60)) == 2 * len(signatures(app))


def test_route_function_gets_every_call(app: Celery, broker: Broker) -> None:
    low, high = broker.name("low"), broker.name("high")

    def route(name: str, args: Any, *_: Any, **__: Any) -> dict[str, str]:
        return {"queue": high if args[0] else low}

    app.conf.task_routes = [route]
    delayed = DurableTasks(app, leases=False)
    results = delayed.send_many([app.tasks["shop.remind"].s(number % 2) for number in range(4)], countdown=60)
    found = stored(delayed)
    assert [found[result.id].routing_key for result in results] == [low, high, low, high]
