"""Tasks with the same key take turns on real workers; a task that finds the lock taken waits in the store."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery, chain, chord
from celery.exceptions import TaskRevokedError

from redis_queue import Lock
from redis_queue.celery import DelayedTasks
from tests.support.celery.brokers import Broker
from tests.support.celery.fleet import Fleet
from tests.support.celery.processes import CeleryProcess
from tests.support.celery.serial_names import GATHER, HOLD, LEASE, MEET, RETRY_ONCE, ROWS, WRITE, finish_key
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.celery

APP = "tests.support.celery.serial_app"


class SerialFleet(Fleet):
    """A fleet whose results are in the Redis of the store, which chords need."""

    @property
    def result_url(self) -> str:
        return f"redis+socket://{self.store.socket}?virtual_host=2"

    def start(self, name: str, pool: str, *arguments: str, **options: Any) -> CeleryProcess:
        """Return a worker for the serialized tasks, not started yet."""
        return self.worker(*arguments, name=name, pool=pool, app=APP, **options)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The steps of the tasks, in order."""
        return [json.loads(row) for row in self.client.lrange(ROWS, 0, -1)]

    def wait_for_row(self, what: str, task_id: str) -> dict[str, Any]:
        """Return the record of the start or end of a task."""
        return wait_until(
            lambda: next((row for row in self.rows if (row["id"], row["what"]) == (task_id, what)), None),
            description=f"the {what} of task {task_id}",
        )


@contextmanager
def fleet_on(store: RedisServer, broker: Broker) -> Iterator[SerialFleet]:
    """Yield a fleet without workers."""
    queue = broker.name("serial")
    broker.forget_later(f"{queue}-control.pidbox", f"{queue}-events")
    with store.client() as client:
        yield SerialFleet(store, client, broker.url, queue)
        # A result that is collected after its backend would raise a warning.
        gc.collect()


@pytest.fixture
def alone() -> Iterator[SerialFleet]:
    """A store that is also the broker, without workers."""
    with RedisServer() as store, Broker(f"redis+socket://{store.socket}") as broker, fleet_on(store, broker) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[SerialFleet]:
    """Two workers with two processes each."""
    with (
        RedisServer() as store,
        Broker(f"redis+socket://{store.socket}") as broker,
        fleet_on(store, broker) as fleet,
        fleet.start("one", "prefork") as one,
        fleet.start("two", "prefork") as two,
    ):
        one.wait_for_output("ready.")
        two.wait_for_output("ready.")
        yield fleet


@pytest.fixture
def app(fleet: SerialFleet) -> Celery:
    """The app of the client."""
    return fleet.delayed().app


def lock_of(app: Celery, name: str) -> Lock:
    """Return a lock of the app's store for a test to hold."""
    return Lock(name, DelayedTasks(app).store.client)


def check_turns(rows: list[dict[str, Any]], lock: str, count: int) -> None:
    """Check that *count* tasks ran under *lock*, one after the other, each once and none as a retry."""
    mine = [row for row in rows if row["lock"] == lock]
    assert len(mine) == 2 * count
    for start, end in zip(mine[::2], mine[1::2], strict=True):
        assert (start["what"], end["what"]) == ("start", "end")
        assert start["id"] == end["id"]
        assert start["fence"] == end["fence"]
    assert {row["retries"] for row in mine} == {0}
    assert set(Counter(row["id"] for row in mine).values()) == {2}
    fences = [row["fence"] for row in mine[::2]]
    assert fences == sorted(set(fences))


def parked(app: Celery, task_id: str) -> Any:
    """Wait for the stored entry of a deferred task and return it."""
    delayed = DelayedTasks(app)
    return wait_until(lambda: delayed.queue.get(task_id), description=f"task {task_id} to be deferred")


class TestTurns:
    def test_forty_tasks_with_one_key_run_one_after_the_other(self, fleet: SerialFleet, app: Celery) -> None:
        results = [app.send_task(WRITE, ("forty", number)) for number in range(40)]
        assert [result.get(timeout=50) for result in results] == list(range(40))
        check_turns(fleet.rows, "customer:forty", 40)
        pids = {row["pid"] for row in fleet.rows if row["lock"] == "customer:forty"}
        assert len(pids) > 1
        assert {result.state for result in results} == {"SUCCESS"}
        assert DelayedTasks(app).count() == 0

    def test_tasks_with_other_keys_run_at_the_same_time(self, app: Celery) -> None:
        ours, theirs = uuid.uuid4().hex, uuid.uuid4().hex
        met = [{"mine": ours, "other": theirs}, {"mine": theirs, "other": ours}]
        pair = [app.send_task(MEET, (), kwargs) for kwargs in met]
        assert [result.get(timeout=60) for result in pair] == [True, True]

    def test_chords_groups_and_chains_wait_for_deferred_tasks(self, fleet: SerialFleet, app: Celery) -> None:
        header = [app.signature(WRITE, ("chord", number)) for number in range(6)]
        body = chord(header, app.signature(GATHER))
        steps = chain(app.signature(WRITE, ("chord", 7)), app.signature(GATHER, ([8],), immutable=True))
        results = body.apply_async(), steps.apply_async()
        assert [result.get(timeout=40) for result in results] == [list(range(6)), [8]]
        check_turns(fleet.rows, "customer:chord", 7)

    def test_own_retry_is_counted_and_releases_the_lock(self, fleet: SerialFleet, app: Celery) -> None:
        with lock_of(app, "customer:retry").hold():
            result = app.send_task(RETRY_ONCE, ("retry",))
            parked(app, result.id)
        assert result.get(timeout=60) == 1
        assert [row["retries"] for row in fleet.rows if row["id"] == result.id] == [0, 1]


class TestDeferred:
    def test_waiting_task_can_be_revoked(self, fleet: SerialFleet, app: Celery) -> None:
        with lock_of(app, "customer:revoked").hold():
            result = app.send_task(WRITE, ("revoked", 1))
            parked(app, result.id)
            assert result.state == "PENDING"
            result.revoke()
            with pytest.raises(TaskRevokedError):
                result.get(timeout=10)
        assert DelayedTasks(app).get(result.id) is None
        assert not [row for row in fleet.rows if row["id"] == result.id]

    def test_longest_waiting_task_runs_as_soon_as_the_lock_is_free(self, fleet: SerialFleet, app: Celery) -> None:
        ids = [app.send_task(HOLD, ("woken",)).id]
        fleet.wait_for_row("start", ids[0])
        for _ in range(3):
            ids.append(app.send_task(HOLD, ("woken", 600.0)).id)
            parked(app, ids[-1])
        # An entry whose task is gone is skipped.
        DelayedTasks(app).cancel(ids[1])
        for before, after in ((ids[0], ids[2]), (ids[2], ids[3])):
            fleet.client.rpush(finish_key(before), "1")
            fleet.wait_for_row("start", after)
        fleet.client.rpush(finish_key(ids[3]), "1")
        fleet.wait_for_row("end", ids[3])
        check_turns(fleet.rows, "hold:woken", 3)

    def test_task_that_expires_meanwhile_is_revoked(self, fleet: SerialFleet, app: Celery) -> None:
        with lock_of(app, "customer:expired").hold():
            result = app.send_task(WRITE, ("expired", 1), expires=0.5)
            parked(app, result.id)
            with pytest.raises(TaskRevokedError, match="expired"):
                result.get(timeout=60)
        assert not [row for row in fleet.rows if row["id"] == result.id]


@pytest.mark.parametrize(
    ("broker", "pool", "late"),
    [("redis", "solo", True), ("rabbitmq", "threads", False)],
    indirect=["broker"],
)
def test_any_pool_and_broker_defers(redis_server: RedisServer, broker: Broker, pool: str, late: bool) -> None:
    with fleet_on(redis_server, broker) as fleet:
        fleet.settings = {"task_acks_late": late, "task_track_started": True}
        app = fleet.delayed().app
        with fleet.start("one", pool) as worker:
            worker.wait_for_output("ready.")
            with lock_of(app, "customer:pool").hold():
                held = app.send_task(WRITE, ("pool", 1))
                entry = parked(app, held.id)
                assert held.state == "PENDING"
                assert entry.deliveries == 0
                # The worker is free for other tasks.
                assert app.send_task(WRITE, ("other", 2)).get(timeout=60) == 2
            more = [app.send_task(WRITE, ("pool", number)) for number in (3, 4)]
            assert [result.get(timeout=60) for result in (held, *more)] == [1, 3, 4]
            assert worker.finish() == 0
            assert "Traceback" not in worker.output
        check_turns(fleet.rows, "customer:pool", 3)
        assert not fleet.client.exists("unacked")


def test_stopped_or_dead_holder_loses_the_lock_with_its_lease(alone: SerialFleet) -> None:
    app = alone.delayed().app
    # Each worker has its own queue, so that the test controls which one runs a task.
    ours, theirs = {"queue": f"{alone.queue}-one"}, {"queue": f"{alone.queue}-two"}
    with (
        alone.start("one", "solo", "--without-dispatch", "-Q", ours["queue"]) as one,
        alone.start("two", "solo", "-Q", theirs["queue"]) as two,
    ):
        one.wait_for_output("ready.")
        two.wait_for_output("ready.")
        first = app.send_task(HOLD, ("a",), **ours).id
        alone.wait_for_row("start", first)
        os.kill(one.pid, signal.SIGSTOP)
        second = app.send_task(HOLD, ("a",), **theirs).id
        after = alone.wait_for_row("start", second)
        alone.client.rpush(finish_key(first), "1")
        os.kill(one.pid, signal.SIGCONT)
        late = alone.wait_for_row("end", first)
        assert late["lost"]
        assert late["fence"] < after["fence"]
        one.wait_for_output("lock hold:a was lost")
        # The lock was no longer its own when it released it.
        assert lock_of(app, "hold:a").acquire() is None
        alone.client.rpush(finish_key(second), "1")
        assert not alone.wait_for_row("end", second)["lost"]

        third = app.send_task(HOLD, ("b",), **ours).id
        before = alone.wait_for_row("start", third)
        fourth = app.send_task(HOLD, ("b",), **theirs).id
        parked(app, fourth)
        one.kill()
        killed = time.monotonic()
        assert alone.wait_for_row("start", fourth)["fence"] > before["fence"]
        # The last heartbeat was at most a third of the lease ago.
        assert LEASE / 2 < time.monotonic() - killed < LEASE + 5
