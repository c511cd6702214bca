"""Many signatures at once become the same messages as one by one, whatever way they take."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain
from celery.signals import before_task_publish

from redis_queue.celery import DelayedTasks
from redis_queue.celery.attempt import OWN
from redis_queue.celery.envelope import Envelope
from tests.celery.brokers import Broker

pytestmark = [pytest.mark.celery, pytest.mark.parametrize("broker", ["redis"], indirect=True)]


@pytest.fixture
def app(broker: Broker, redis_url: str) -> Celery:
    app = broker.app(redis_queue_url=redis_url)

    @app.task(name="shop.remind", shared=False)
    def remind(order: Any = None, tone: str = "") -> None:
        """Remind of an order."""

    @app.task(name="shop.quiet", shared=False, ignore_result=True)
    def quiet(order: Any) -> None:
        """Do so without a result."""

    return app


def stored(delayed: DelayedTasks) -> dict[str, Envelope]:
    """Return every stored message by id."""
    return {entry.id: Envelope.unpack(entry.payload, entry.id, entry.headers) for entry in delayed.queue}


def comparable(envelope: Envelope) -> Any:
    """Return what two messages of one call have in common."""
    own = envelope.id
    headers = {name: "own" if value == own else value for name, value in envelope.headers.items()}
    headers |= {name: type(headers[name]) for name in OWN}
    properties = {name: "own" if value == own else value for name, value in envelope.properties.items()}
    return headers, properties, envelope.body, envelope.exchange, envelope.routing_key, envelope.declare


def signatures(app: Celery) -> list[Any]:
    """Return signatures of several kinds, each kind more than once."""
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
def test_each_message_is_what_one_by_one_would_have_stored(app: Celery, *, listened: bool) -> None:
    delayed = DelayedTasks(app)
    seen: list[str] = []

    def listen(headers: Any = None, **_: Any) -> None:
        seen.append(headers["id"])

    if listened:
        before_task_publish.connect(listen)
    try:
        bulk = [result.id for result in delayed.push_many(signatures(app), countdown=60)]
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
    """Return the same without the moment it expires, and without the ids of what follows it."""
    headers, properties, body, *rest = comparable(envelope)
    followed = b'"chain": null' not in body or b'"callbacks": null' not in body
    return {**headers, "expires": bool(headers["expires"])}, properties, b"" if followed else body, rest


def test_wrong_arguments_are_refused_as_by_apply_async(app: Celery) -> None:
    delayed = DelayedTasks(app)
    remind = app.tasks["shop.remind"]
    with pytest.raises(TypeError, match=r"missing|takes|unexpected"):
        delayed.push_many([remind.s(1), remind.s(2), remind.s(1, 2, 3, 4)], countdown=60)


def test_one_connection_is_enough(app: Celery) -> None:
    app.conf.broker_pool_limit = 1
    assert len(DelayedTasks(app).push_many(signatures(app) * 2, countdown=60)) == 2 * len(signatures(app))


def test_a_function_that_routes_sees_every_call(app: Celery, broker: Broker) -> None:
    low, high = broker.name("low"), broker.name("high")

    def route(name: str, args: Any, *_: Any, **__: Any) -> dict[str, str]:
        return {"queue": high if args[0] else low}

    app.conf.task_routes = [route]
    delayed = DelayedTasks(app)
    results = delayed.push_many([app.tasks["shop.remind"].s(number % 2) for number in range(4)], countdown=60)
    found = stored(delayed)
    assert [found[result.id].routing_key for result in results] == [low, high, low, high]
