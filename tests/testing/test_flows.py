"""Flows and unique tasks under test: limits and keys hold, and rates follow the clock of the test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import TimeoutError as NoResultError

from redis_queue import DuplicateTaskError, Flow, Unique
from redis_queue.celery import DurableTasks
from redis_queue.testing import Timeline
from tests.support.wait import must

NOWHERE = "redis://127.0.0.1:1/0"

Shop = Any
"""The tasks, the timeline, and *seen*: what ran."""


@pytest.fixture
def shop(client: redis.Redis, redis_url: str) -> Iterator[Shop]:
    """An app with flows, whose broker is unreachable."""
    app = Celery("shop", broker=NOWHERE, backend=NOWHERE, set_as_current=False)
    app.conf.update(
        task_always_eager=True,
        task_eager_propagates=True,
        redis_queue_flow={"queue:reports": {"rate": "1/m"}, "queue:closed": {"limit": 0}},
    )
    DurableTasks(app, leases=False)
    seen: list[Any] = []
    shop = SimpleNamespace(app=app, seen=seen)

    def define(name: str, **options: Any) -> None:
        @app.task(name=name, shared=False, bind=True, max_retries=2, **options)  # type: ignore[untyped-decorator]
        def task(self: Any, key: str = "", *, fails: int = 0) -> None:
            seen.append((name, key))
            if self.request.retries < fails:
                raise self.retry(countdown=60)

        setattr(shop, name, app.tasks[name])

    define("plain")
    define("sync", flow=Flow(rate="10/s", burst=1, key="{key}"))
    define("one", flow=Flow(limit=1, key="{key}"))
    define("invoice", unique=Unique("{key}"))
    define("strict", unique=Unique("{key}", on_conflict="raise"))
    define("index", unique=Unique("{key}", until="start", on_conflict="replace"))
    define("hourly", unique=Unique("{key}", until=timedelta(hours=1)))
    with Timeline(app, redis_url) as shop.timeline:
        yield shop


def times(runs: list[Any]) -> list[float]:
    """Return the seconds between the runs."""
    return [(later.at - run.at).total_seconds() for run, later in itertools.pairwise(runs)]


def test_a_task_of_a_flow_runs_at_once(shop: Shop) -> None:
    assert shop.one.delay("a").get() is None
    assert shop.seen == [("one", "a")]
    assert [row.task for row in shop.timeline.sent] == ["one"]


def test_a_rate_follows_the_clock_of_the_test(shop: Shop) -> None:
    for _ in range(3):
        shop.plain.apply_async(queue="reports")
    assert len(shop.seen) == 1
    shop.timeline.travel(seconds=59)
    assert len(shop.seen) == 1
    shop.timeline.travel(hours=1)
    assert len(shop.seen) == 3
    assert times(shop.timeline.runs) == [pytest.approx(60, abs=0.1)] * 2


def test_keys_have_rates_of_their_own(shop: Shop) -> None:
    for key in "aab":
        shop.sync.delay(key)
    assert sorted(shop.seen) == [("sync", "a"), ("sync", "b")]
    shop.timeline.travel(seconds=1)
    assert shop.seen[2:] == [("sync", "a")]


def test_delayed_tasks_and_retries_pass_their_flow(shop: Shop) -> None:
    shop.one.apply_async(("a",), {"fails": 1}, countdown=10)
    shop.timeline.travel(seconds=5)
    assert not shop.seen
    runs = shop.timeline.travel(minutes=2)
    assert [run.state for run in runs] == ["RETRY", "SUCCESS"]
    assert times(runs) == [pytest.approx(60, abs=0.1)]


def test_a_closed_queue_opens_by_a_change(shop: Shop) -> None:
    shop.plain.apply_async(queue="closed")
    shop.timeline.travel(hours=1)
    assert not shop.seen
    shop.timeline.durable.flow.set("queue:closed", limit=1)
    shop.timeline.travel()
    assert len(shop.seen) == 1


def test_a_delayed_task_is_unique(shop: Shop) -> None:
    first = shop.invoice.apply_async(("7",), countdown=60)
    assert shop.invoice.delay("7").id == first.id
    shop.timeline.assert_scheduled("invoice", args=("7",))
    shop.timeline.travel(minutes=1)
    assert shop.seen == [("invoice", "7")]
    assert shop.invoice.delay("7").id != first.id
    assert len(shop.seen) == 2


def test_a_duplicate_raises(shop: Shop) -> None:
    shop.strict.apply_async(("7",), countdown=60)
    with pytest.raises(DuplicateTaskError):
        shop.strict.delay("7")


def test_a_debounced_task_runs_after_the_last_call(shop: Shop) -> None:
    for _ in range(5):
        shop.index.apply_async(("7",), countdown=10)
        shop.timeline.travel(seconds=5)
    assert not shop.seen
    shop.timeline.travel(seconds=5)
    assert shop.seen == [("index", "7")]


def test_a_key_for_a_time_is_free_by_the_clock_of_the_test(shop: Shop) -> None:
    first = shop.hourly.delay("7")
    shop.timeline.travel(minutes=59)
    assert shop.hourly.delay("7").id == first.id
    shop.timeline.travel(minutes=1)
    assert shop.hourly.delay("7").id != first.id
    assert len(shop.seen) == 2


def test_a_unique_retry_keeps_its_key(shop: Shop) -> None:
    first = shop.invoice.apply_async(("7",), {"fails": 1})
    assert shop.invoice.delay("7").id == first.id
    shop.timeline.travel(minutes=2)
    assert [run.id for run in shop.timeline.runs] == [first.id] * 2


def test_a_task_that_replaces_another_one_has_its_own_key(shop: Shop) -> None:
    @shop.app.task(shared=False, bind=True, unique=Unique("r:{key}"))  # type: ignore[untyped-decorator]
    def replacer(self: Any, key: str) -> Any:
        raise self.replace(shop.invoice.s("8").set(countdown=60))

    first = replacer.delay("7")
    assert must(shop.timeline.durable.unique.get("invoice", "8")).task_id == first.id
    assert shop.timeline.durable.unique.get(replacer.name, "r:7") is None


def test_without_eager_mode_tasks_of_flows_are_only_noted(shop: Shop) -> None:
    shop.timeline.eager = False
    first = shop.invoice.delay("7")
    shop.one.delay("a")
    assert shop.invoice.delay("7").id == first.id
    assert [row.task for row in shop.timeline.sent] == ["invoice", "one"]
    assert not shop.seen


CALLS = [("plain", "reports"), ("one", "celery"), ("invoice", "celery"), ("index", "celery"), ("hourly", "celery")]
"""Tasks, and the queues to which they are sent: of the flow of a queue, of a flow of their own, or unique."""


@pytest.mark.parametrize(("name", "queue"), CALLS)
def test_without_eager_mode_delayed_tasks_run_when_they_are_due(name: str, queue: str, shop: Shop) -> None:
    shop.timeline.eager = False
    task = getattr(shop, name)
    # This one is for the workers: it neither runs nor makes the delayed one wait.
    task.apply_async(("now",), queue=queue)
    result = task.apply_async(("later",), {"fails": 1}, countdown=60, queue=queue)
    start = shop.timeline.now
    runs = shop.timeline.travel(hours=1)
    assert [(run.id, run.state, round((run.at - start).total_seconds())) for run in runs] == [
        (result.id, "RETRY", 60),
        (result.id, "SUCCESS", 120),
    ]
    assert shop.seen == [(name, "later")] * 2
    assert [row.args for row in shop.timeline.sent] == [("now",)]
    shop.timeline.assert_not_scheduled()


def test_without_eager_mode_rates_hold_for_delayed_tasks(shop: Shop) -> None:
    shop.timeline.eager = False
    for _ in range(3):
        shop.plain.apply_async(queue="reports", countdown=60)
    shop.timeline.travel(seconds=70)
    assert len(shop.seen) == 1
    assert shop.timeline.durable.flow.find("queue:reports").waiting == 2
    shop.timeline.travel(hours=1)
    assert times(shop.timeline.runs) == [pytest.approx(60, abs=0.1)] * 2


@pytest.mark.parametrize("eager", [False, True])
def test_a_delayed_task_waits_in_a_closed_queue(eager: bool, shop: Shop) -> None:
    shop.timeline.eager = eager
    result = shop.plain.apply_async(queue="closed", countdown=60)
    shop.timeline.travel(hours=1)
    assert not shop.seen
    assert shop.timeline.durable.flow.find("queue:closed").waiting == 1
    with pytest.raises(NoResultError, match="waits for its limits"):
        result.get()
    shop.timeline.durable.flow.set("queue:closed", limit=1)
    shop.timeline.travel()
    assert [run.id for run in shop.timeline.runs] == [result.id]


def test_without_eager_mode_keys_are_free_when_delayed_tasks_end(shop: Shop) -> None:
    shop.timeline.eager = False
    first = shop.invoice.apply_async(("7",), countdown=60)
    assert shop.invoice.delay("7").id == first.id
    shop.timeline.travel(minutes=1)
    assert shop.invoice.delay("7").id != first.id
    assert [row.args for row in shop.timeline.sent] == [("7",)]
    assert shop.seen == [("invoice", "7")]


def test_what_was_sent_for_the_workers_does_not_run_later(shop: Shop) -> None:
    shop.timeline.eager = False
    first = shop.invoice.delay("7")
    shop.timeline.eager = True
    shop.one.delay("a")
    assert shop.invoice.delay("7").id == first.id
    shop.timeline.travel(hours=1)
    assert shop.seen == [("one", "a")]
