"""The connection to the store breaks at any point of a call: one effect and the correct reply, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue import DelayQueue, StoreUnavailableError
from redis_queue.celery import DurableTasks
from redis_queue.store.keys import Keys
from redis_queue.store.script_files import load
from tests.support.celery.brokers import Broker
from tests.support.celery.delaying_names import STUBBORN
from tests.support.celery.fleet import Fleet
from tests.support.celery.processes import CeleryProcess
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.store.stage import Copy, load_scripts
from tests.support.wait import wait_until

pytestmark = pytest.mark.parametrize("broker", ["redis"], indirect=True)

NAME = "shop.remind"


def signatures(app: Celery) -> list[Any]:
    """Return some calls, each with its own id."""
    return [app.signature(NAME, (number,), task_id=f"bulk {number}") for number in range(20)]


def delay(app: Celery, task_id: str, countdown: float) -> str:
    """Delay a call without retries of Celery."""
    result = app.send_task(NAME, (task_id,), task_id=task_id, countdown=countdown, retry=False)
    return str(result.id)


class Call(NamedTuple):
    """A call, its script, and its error while the store is unavailable."""

    do: Callable[[DurableTasks], Any]
    script: str
    error: type[Exception] = StoreUnavailableError


CALLS = {
    "countdown": Call(lambda delayed: delay(delayed.app, "new", 600), "delay/push", OperationalError),
    "the same id again": Call(lambda delayed: delay(delayed.app, "first", 600), "delay/push", OperationalError),
    "send_many": Call(
        lambda delayed: [result.id for result in delayed.send_many(signatures(delayed.app), countdown=600)],
        "delay/push",
        OperationalError,
    ),
    "cancel": Call(lambda delayed: delayed.cancel("first"), "delay/cancel"),
    "cancel_many": Call(lambda delayed: delayed.cancel_many(["first", "nobody", "second"]), "delay/cancel"),
    "revoke": Call(lambda delayed: delayed.app.control.revoke("first"), "delay/cancel"),
    "cancel_matching": Call(lambda delayed: delayed.cancel_matching(task=NAME), "delay/cancel"),
    "reschedule": Call(lambda delayed: delayed.reschedule("first", countdown=600), "delay/reschedule"),
    "run_now": Call(lambda delayed: delayed.run_now("first"), "delay/reschedule"),
    "get": Call(lambda delayed: delayed.get("first"), "delay/find"),
    "list": Call(lambda delayed: [entry.id for entry in delayed.list()], "delay/list"),
    "count": Call(lambda delayed: delayed.count(), "delay/count"),
    "forecast": Call(lambda delayed: [count for _, count in delayed.forecast(1, buckets=3)], "delay/count"),
}

CUTS: dict[str, Callable[[FaultProxy, bytes], None]] = {
    "the request is lost": lambda proxy, sha: proxy.cut_next_request(matching=sha),
    "half of the request arrives": lambda proxy, sha: proxy.cut_next_request(matching=sha, before=sha),
    "the reply is lost": lambda proxy, sha: proxy.drop_next_reply(matching=sha),
    "half of the reply arrives": lambda proxy, sha: proxy.cut_next_reply(matching=sha),
    "the request comes once more, late": lambda proxy, sha: proxy.hold_next_request(matching=sha),
}


@pytest.fixture
def delayed(broker: Broker, proxy: FaultProxy) -> Iterator[DurableTasks]:
    """Two waiting tasks in a store that is reached through the proxy, in an app with short timeouts."""
    app = broker.app(redis_queue_url=f"{proxy.url}?socket_timeout=0.3", result_backend="disabled://")
    delayed = DurableTasks(app, leases=False)
    delay(app, "first", 60)
    delay(app, "second", 120)
    with delayed.store.client:
        yield delayed


def stored(client: redis.Redis) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    """Return the waiting tasks, with due times rounded to ten seconds, and the counters."""
    queue = DelayQueue("scheduled", client)
    now = client.time()[0]
    waiting = {entry.id: (round(entry.due_at.timestamp() - now, -1), entry.deliveries) for entry in queue.list()}
    return waiting, client.hgetall(Keys("redis_queue", "delay", "scheduled", 0).meta)


def done(client: redis.Redis, delayed: DurableTasks, call: Call) -> tuple[Any, Any]:
    """Return the reply of *call* and its effect, and restore everything."""
    load_scripts(client)
    copy = Copy(client)
    answer = call.do(delayed)
    after = stored(client)
    copy.restore()
    return answer, after


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("cut", CUTS)
def test_call_has_one_effect_and_the_correct_reply(
    client: redis.Redis, proxy: FaultProxy, delayed: DurableTasks, name: str, cut: str
) -> None:
    call = CALLS[name]
    answer, after = done(client, delayed, call)
    CUTS[cut](proxy, load(call.script).sha.encode())
    found = call.do(delayed)
    assert proxy.pending_drops == 0
    assert found == answer
    proxy.release()
    wait_until(lambda: proxy.open_connections <= 1, description="the late request to finish")
    waiting, counted = stored(client)
    assert waiting == after[0]
    if "late" in cut and call.script == "delay/push":
        # A repeated record of dispatches is counted twice.
        counted[b"put"] = after[1][b"put"]
    assert counted == after[1]


@pytest.mark.parametrize("name", CALLS)
def test_call_that_never_arrives_is_an_error_and_works_afterwards(
    client: redis.Redis, proxy: FaultProxy, delayed: DurableTasks, name: str
) -> None:
    call = CALLS[name]
    answer, after = done(client, delayed, call)
    before = stored(client)
    proxy.cut_next_request(100, matching=load(call.script).sha.encode())
    # Only the outcome of a write is uncertain.
    with pytest.raises(call.error, match="unknown" if load(call.script).writes else "did not answer"):
        call.do(delayed)
    assert stored(client) == before
    proxy.cut_next_request(0)
    assert call.do(delayed) == answer
    assert stored(client) == after


def test_retry_in_a_worker_waits_in_the_broker_if_the_store_is_unavailable(broker: Broker) -> None:
    with RedisServer() as store, store.client() as client, FaultProxy(store.address) as proxy:
        fleet = Fleet(store, client, broker.url, broker.name("delaying"))
        broker.forget_later(f"{fleet.queue}-control.pidbox", f"{fleet.queue}-events")
        worker = CeleryProcess(
            *("-A", "tests.support.celery.delaying_app", "worker", "--pool", "threads", "--loglevel", "INFO"),
            environment={**fleet.environment(), "STORE_URL": proxy.url, "NOTES_URL": store.url},
        )
        with worker:
            worker.wait_for_output("ready.")
            proxy.mode = "refuse"
            proxy.cut()
            # The store is tried for about a second. If the retry were due by then, another thread could end it before
            # this one notes that it retries, and Celery would keep that state.
            result = fleet.app().send_task(STUBBORN, (1, 3.0))
            worker.wait_for_output("the store is unavailable")
            proxy.mode = "pass"
            assert result.get(timeout=60) == 1
        assert len(fleet.ran) == 1
        assert fleet.delayed().count() == 0
