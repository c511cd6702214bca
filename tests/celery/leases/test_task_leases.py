"""Leases: a living worker keeps its messages for any time; those of a dead worker are put back soon."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import celery
import psutil
import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue

from redis_queue.celery.kombu.internals import lacking
from redis_queue.celery.leases import step
from redis_queue.celery.leases.connections import check_broker
from redis_queue.celery.leases.leases import COLLECT_AFTER, LeaseCounters, read_counters
from redis_queue.errors import ConfigurationError
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.script_files import load
from tests.support.celery.leasing import TIMEOUT, Leasing, is_keeper, keeper_of
from tests.support.celery.leasing_names import BATCH, HOLD, WAIT
from tests.support.marks import thorough
from tests.support.ports import HOST
from tests.support.proxy import FaultProxy
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)

HUB = 10
"""Seconds between two sweeps in kombu's event loop by default."""


POP, ATOMIC = "pop and record", "atomic fetch"

FETCHES = [POP, *([] if lacking() else [ATOMIC])]
"""Ways to take messages; the oldest supported kombu has only its own."""

# Celery 5.5 discards the results of a prefork pool when it connects again, so those tasks are never settled.
RECONNECTING = [(POP, "solo"), *([] if lacking() else [(POP, "prefork"), (ATOMIC, "prefork")])]

# Waiting tasks are held in front of the pool, or in front of the worker.
HOLDING_BACK = [(POP, "prefork"), *([] if lacking() else [(ATOMIC, "solo")])]


def first(cases: list[Any]) -> list[Any]:
    """Return *cases*; all but the first run before a release only."""
    return [cases[0], *thorough(*cases[1:])]


both_fetches = pytest.mark.parametrize("leasing", first(FETCHES[::-1]), indirect=True)


@pytest.fixture
def leasing(request: pytest.FixtureRequest) -> Iterator[Leasing]:
    """Store and broker in one Redis."""
    with RedisServer() as store, store.client() as client:
        settings = {"redis_queue_atomic_fetch": getattr(request, "param", POP) == ATOMIC}
        yield Leasing(store, client, settings=settings)


def single_lease(held: dict[bytes, float]) -> tuple[bytes, float]:
    ((tag, since),) = held.items()
    return tag, since


def commands_of(monitor: Any) -> Iterator[str]:
    while True:
        yield monitor.next_command()["command"]


class TestTaskLongerThanTheVisibilityTimeout:
    @pytest.mark.parametrize(
        ("leasing", "pool"),
        [
            (POP, "prefork"),
            *first(
                [
                    (FETCHES[-1], "gevent"),
                    (FETCHES[-1], "eventlet"),
                    (FETCHES[-1], "prefork"),
                    *((POP, pool) for pool in ("threads", "solo", "gevent")),
                ]
            ),
        ],
        indirect=["leasing"],
    )
    def test_runs_once(self, leasing: Leasing, pool: str) -> None:
        with leasing.busy("one", pool=pool) as one:
            (id_,) = leasing.started
            tag, since = single_lease(leasing.held())
            leasing.wait_for_renewal(tag, since, 1)
            # A worker sweeps for lost leases on startup, and then periodically.
            with leasing.worker("two").ready():
                leasing.wait_for_renewal(tag, since, 2)
                leasing.end_task("one")
                assert leasing.wait_for_ends(1) == [id_]
                leasing.wait_until_settled()
            assert leasing.started == [id_]
            assert one.finish() == 0
            assert "Traceback" not in one.output
        kept = {key for key in leasing.client.scan_iter() if not key.startswith((b"_kombu", b"tests:"))}
        # The second worker was killed; it may have been the listener.
        assert {key.partition(b":")[2].partition(b":")[0] for key in kept} - {b"listener"} == {b"monitor}"}
        assert all(leasing.client.ttl(key) > 0 for key in kept)

    def test_runs_twice_without_leases(self, leasing: Leasing) -> None:
        leasing.options = {"visibility_timeout": TIMEOUT, "unacked_restore_throttle": 1}
        with leasing.busy("one", leases=False):
            (id_,) = leasing.started
            _, since = single_lease(leasing.held())
            wait_until(lambda: time.time() > since + TIMEOUT + 0.2, description="the visibility timeout to pass")
            with leasing.worker("two", leases=False):
                assert leasing.wait_for_starts(2) == [id_, id_]

    def test_runs_once_while_it_holds_the_interpreter(self, leasing: Leasing) -> None:
        with leasing.worker("one") as one, leasing.worker("two") as two:
            one.wait_for_output("ready.")
            two.wait_for_output("ready.")
            ids = [leasing.send(HOLD, int(3 * TIMEOUT)).id for _ in range(2)]
            assert sorted(leasing.wait_for_ends(2)) == sorted(ids)
            leasing.wait_until_settled()
            assert sorted(leasing.started) == sorted(ids)

    @both_fetches
    def test_is_finished_by_a_warm_shutdown_and_runs_once(self, leasing: Leasing) -> None:
        with leasing.busy("one", pool="prefork") as one:
            (id_,) = leasing.started
            keeper = keeper_of(one)
            tag, since = single_lease(leasing.held())
            os.kill(one.pid, signal.SIGTERM)
            one.wait_for_output("Warm shutdown")
            leasing.wait_for_renewal(tag, since, 1)
            with leasing.worker("two").ready():
                leasing.end_task("one")
                assert one.wait() == 0
                leasing.wait_until_settled()
            assert leasing.started == leasing.ended == [id_]
            wait_until(lambda: not keeper.is_running(), description="the keeper to end")

    @pytest.mark.parametrize("late", [True, False], ids=["acknowledged late", "acknowledged at the start"])
    def test_waiting_in_a_busy_worker_runs_once(self, leasing: Leasing, *, late: bool) -> None:
        leasing.settings |= {"worker_prefetch_multiplier": 2 if late else 1, "task_acks_late": late}
        with leasing.worker("one", pool="prefork").ready():
            ids = [leasing.send(WAIT).id for _ in range(2)]
            leasing.wait_for_starts(1)
            wait_until(lambda: len(leasing.held()) == (2 if late else 1), description="the waiting task to be held")
            since = max(leasing.held().values())
            for tag in leasing.held():
                leasing.wait_for_renewal(tag, since, 1)
            with leasing.worker("two").ready():
                for tag in leasing.held():
                    leasing.wait_for_renewal(tag, since, 1.5)
                leasing.end_task("one", 2)
                assert leasing.wait_for_ends(2) == ids
            assert leasing.started == ids


@pytest.mark.thorough
class TestColdShutdown:
    @pytest.mark.parametrize(
        ("leasing", "leases"), [(POP, False), *((fetch, True) for fetch in FETCHES)], indirect=["leasing"]
    )
    @pytest.mark.parametrize("soft", [0.0, 1.0], ids=["at once", "after a soft one"])
    def test_puts_back_running_and_waiting_tasks(self, leasing: Leasing, soft: float, *, leases: bool) -> None:
        leasing.settings |= {"worker_prefetch_multiplier": 2, "worker_soft_shutdown_timeout": soft}
        with leasing.worker("one", leases=leases, pool="prefork").ready() as one:
            ids = [leasing.send(WAIT).id for _ in range(2)]
            leasing.wait_for_leases(2)
            leasing.wait_for_starts(1)
            os.kill(one.pid, signal.SIGQUIT)
            one.wait()
        assert leasing.held() == {}
        assert leasing.client.llen(leasing.queue) == 2
        leasing.end_task("two", 2)
        with leasing.worker("two", leases=leases):
            assert sorted(leasing.wait_for_ends(2)) == sorted(ids)


class TestDeadWorker:
    @pytest.mark.parametrize(
        ("leasing", "pool"), first([(FETCHES[-1], "solo"), (POP, "prefork")]), indirect=["leasing"]
    )
    def test_its_task_soon_runs_on_another_worker(self, leasing: Leasing, pool: str) -> None:
        leasing.options["unacked_restore_interval"] = HUB
        with leasing.busy("one", pool=pool) as one:
            (id_,) = leasing.started
            keeper = keeper_of(one)
            with leasing.worker("two").ready():
                tag, since = single_lease(leasing.held())
                leasing.wait_for_renewal(tag, since, 1)
                one.kill()
                killed = time.monotonic()
                assert leasing.wait_for_starts(2) == [id_, id_]
                elapsed = time.monotonic() - killed
                leasing.end_task("two")
                assert leasing.wait_for_ends(1) == [id_]
                leasing.wait_until_settled()
        assert elapsed <= TIMEOUT + HUB + 3, f"{elapsed:.1f} s"
        wait_until(lambda: not keeper.is_running(), description="the keeper to end")


class TestStoppedWorker:
    @both_fetches
    def test_notices_the_lost_lease_and_keeps_the_record_of_the_other_run(self, leasing: Leasing) -> None:
        with leasing.busy("one") as one:
            (id_,) = leasing.started
            os.kill(one.pid, signal.SIGSTOP)
            with leasing.worker("two") as two:
                assert leasing.wait_for_starts(2) == [id_, id_]
                tag, since = single_lease(leasing.held())
                os.kill(one.pid, signal.SIGCONT)
                leasing.end_task("one")
                one.wait_for_output("lost the lease of task")
                one.wait_for_output("succeeded in")
                # The record of the other worker remains, and that worker renews it.
                leasing.wait_for_renewal(tag, since, 1)
                assert leasing.client.hexists("unacked", tag)
                leasing.end_task("two")
                leasing.wait_for_ends(2)
                leasing.wait_until_settled()
                assert "lost the lease" not in two.output
            assert one.finish() == 0

    def test_does_not_put_back_lost_tasks(self, leasing: Leasing) -> None:
        leasing.settings["worker_prefetch_multiplier"] = 2
        with leasing.worker("one", pool="prefork").ready() as one:
            ids = [leasing.send(WAIT).id for _ in range(2)]
            leasing.wait_for_leases(2)
            leasing.wait_for_starts(1)
            os.kill(one.pid, signal.SIGSTOP)
            stopped = time.time()
            with leasing.worker("two", pool="prefork"):
                leasing.wait_for_starts(2)
                # A renewal may have been on its way when the worker was stopped; leases of another worker begin later.
                leasing.wait_for_leases(2, after=stopped + TIMEOUT / 4)
                os.kill(one.pid, signal.SIGTERM)
                os.kill(one.pid, signal.SIGCONT)
                leasing.end_task("one")
                assert one.wait() == 0
                assert len(leasing.held()) == 2
                leasing.end_task("two", 2)
                leasing.wait_for_ends(3)
                leasing.wait_until_settled()
            assert sorted(leasing.started) == sorted([ids[0], *ids])

    @pytest.mark.thorough
    @both_fetches
    def test_keeps_tasks_that_no_other_worker_took(self, leasing: Leasing) -> None:
        leasing.settings["worker_prefetch_multiplier"] = 2
        ids = [leasing.send(WAIT).id for _ in range(2)]
        with leasing.worker("one", pool="prefork") as one:
            leasing.wait_for_starts(1)
            leasing.wait_for_leases(2)
            os.kill(one.pid, signal.SIGSTOP)
            ended = time.time() + 2 * TIMEOUT
            wait_until(lambda: time.time() > ended, timeout=3 * TIMEOUT, description="the leases to run out")
            os.kill(one.pid, signal.SIGCONT)
            leasing.end_task("one", 2)
            leasing.wait_for_ends(2)
            leasing.wait_until_settled()
            assert one.finish() == 0
        assert sorted(leasing.started) == sorted(ids)

    @pytest.mark.parametrize(("leasing", "pool"), first(HOLDING_BACK), indirect=["leasing"])
    def test_does_not_start_lost_tasks(self, leasing: Leasing, pool: str) -> None:
        leasing.settings["worker_prefetch_multiplier"] = 2
        # Send both at once: a worker of the solo pool takes nothing while it runs a task.
        runs, waits = (leasing.send(WAIT).id for _ in range(2))
        with leasing.worker("one", pool=pool) as one:
            assert leasing.wait_for_starts(1) == [runs]
            leasing.wait_for_leases(2)
            os.kill(one.pid, signal.SIGSTOP)
            stopped = time.time()
            with leasing.worker("two", pool=pool):
                leasing.wait_for_starts(2)
                # A renewal may have been on its way when the worker was stopped; leases of another worker begin later.
                leasing.wait_for_leases(2, after=stopped + TIMEOUT / 4)
                os.kill(one.pid, signal.SIGCONT)
                leasing.end_task("one")
                one.wait_for_output(f"{waits} is not started")
                leasing.end_task("two", 2)
                leasing.wait_for_ends(3)
                leasing.wait_until_settled()
                # The worker continues with other tasks.
                third = leasing.send(WAIT).id
                leasing.end_task("one")
                leasing.end_task("two")
                leasing.wait_for_ends(4)
                leasing.wait_until_settled()
            assert one.finish() == 0
        assert sorted(leasing.started) == sorted([runs, runs, waits, third])
        assert read_counters(leasing.app()) == LeaseCounters(lost=2, restored=2, dropped=1)


class TestMessageThatItsWorkerLost:
    """Nothing in the worker can run or settle it any more: no pool has told that it has lost a task."""

    @pytest.mark.parametrize(
        ("leasing", "pool"),
        first([(FETCHES[-1], "threads"), (FETCHES[-1], "gevent"), (POP, "solo"), (FETCHES[-1], "eventlet")]),
        indirect=["leasing"],
    )
    def test_comes_again_once_and_then_when_its_lease_ends_while_no_outcome_can_be_stored(
        self, leasing: Leasing, pool: str
    ) -> None:
        """Each run counts as a delivery."""
        once = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
        leasing.settings["result_backend_transport_options"] = {"retry_policy": once}
        leasing.settings["redis_queue_max_deliveries"] = 3
        with RedisServer() as backend:
            url = {"RESULT_URL": f"redis+socket://{backend.socket}"}
            with leasing.worker("one", pool=pool, environment=url).ready() as one:
                backend.kill()
                leasing.end_task("one", 6)
                began = time.monotonic()
                id_ = leasing.send(WAIT).id
                leases = leasing.leases()
                wait_until(leases.dead_letters, timeout=90, description="a dead letter")
                assert time.monotonic() > began + 2 * TIMEOUT
                assert leasing.started == [id_] * 3
                assert "could not store its result, 3 times" in leases.dead_letters()[0].reason
                one.wait_for_output("cannot store the failure of")
                after = leasing.send(WAIT).id
                lost = "lost 1 messages"
                wait_until(lambda: one.output.count(lost) == 5, timeout=90, description="the next one to be lost twice")
                backend.restart()
                leasing.wait_for_ends(6)
                leasing.wait_until_settled()
                assert leasing.started == [id_] * 3 + [after] * 3
                assert one.finish() == 0
                # What the solo pool raises reaches the worker.
                assert ("Connection to broker lost" in one.output) == (pool == "solo")
            assert not [key for key in leasing.client.scan_iter() if b":starts:" in key]

    @pytest.mark.parametrize("leasing", [FETCHES[-1]], indirect=True)
    def test_comes_again_when_the_child_that_had_a_batch_of_them_is_killed(self, leasing: Leasing) -> None:
        leasing.settings |= {"worker_prefetch_multiplier": 4, "worker_proc_alive_timeout": 30}
        with leasing.worker("one", pool="prefork", timeout=600.0).ready() as one:
            ids = sorted(leasing.send(BATCH).id for _ in range(2))
            leasing.wait_for_starts(2)
            for child in psutil.Process(one.pid).children():
                if not is_keeper(child):
                    child.kill()
            assert sorted(leasing.wait_for_starts(4)[2:]) == ids
            leasing.end_task("one")
            leasing.wait_until_settled()
            assert sorted(leasing.ended) == ids

    @pytest.mark.parametrize("leasing", [FETCHES[-1]], indirect=True)
    def test_is_no_message_that_waits_or_runs(self, leasing: Leasing) -> None:
        """Sweeps for lost messages, and Python's collector, run meanwhile."""
        leasing.settings |= {"worker_prefetch_multiplier": 4}
        with leasing.worker("one", "--concurrency", "2", pool="threads", timeout=60.0) as one:
            ids = [leasing.send(WAIT).id for _ in range(6)] + [leasing.send(BATCH).id]
            leasing.wait_for_leases(7)
            began = time.time()
            wait_until(lambda: time.time() > began + 2 * COLLECT_AFTER, description="two collections")
            leasing.end_task("one", 7)
            leasing.send(BATCH)
            leasing.wait_for_ends(8)
            leasing.wait_until_settled()
            assert one.finish() == 0
            assert "returned" not in one.output
        assert len(leasing.started) == 8
        assert set(ids) < set(leasing.started)


class TestLostConnection:
    @pytest.mark.parametrize(
        ("leasing", "pool"),
        first([(FETCHES[-1], "threads"), (POP, "threads"), *((FETCHES[-1], pool) for pool in ("gevent", "eventlet"))]),
        indirect=["leasing"],
    )
    def test_repeats_no_task_that_the_pool_has(self, leasing: Leasing, pool: str) -> None:
        leasing.settings |= {"worker_prefetch_multiplier": 4}
        with FaultProxy(str(leasing.store.socket)) as proxy:
            ids = [leasing.send(WAIT).id for _ in range(16)]
            leasing.broker_url = proxy.url
            notes = {"NOTES_URL": leasing.store.url}
            with leasing.worker("one", "--concurrency", "2", pool=pool, timeout=60.0, environment=notes) as one:
                for losses in range(1, 4):
                    leasing.wait_for_starts(2 * losses)
                    wait_until(lambda: len(leasing.held()) >= 4, description="messages that wait")
                    proxy.cut()
                    if pool == "threads":
                        # In a full pool of greenlets, the worker waits for the end of a task.
                        wait_until(
                            lambda: "Connection to broker lost" in one.output, description="the worker to notice"
                        )
                    leasing.end_task("one", 2)
                    leasing.wait_for_ends(2 * losses)
                    # Those that wait in the pool count, those that ran when the connection was lost do not.
                    assert len(leasing.held()) <= 10
                leasing.end_task("one", 12)
                leasing.wait_for_ends(16)
                leasing.wait_until_settled()
                assert one.finish() == 0
                assert "Connection to broker lost" in one.output
            assert sorted(leasing.started) == sorted(ids)
            assert not leasing.client.exists(leasing.queue)

    @pytest.mark.parametrize("leasing", [FETCHES[-1]], indirect=True)
    def test_repeats_no_task_that_a_child_has_not_confirmed(self, leasing: Leasing) -> None:
        """Celery before 5.7 forgets all jobs of the pool, and the child runs the one that it has."""
        forgets = celery.VERSION < (5, 7)
        leasing.settings["worker_prefetch_multiplier"] = 2
        with FaultProxy(str(leasing.store.socket)) as proxy:
            leasing.broker_url = proxy.url
            notes = {"NOTES_URL": leasing.store.url}
            with leasing.worker("one", pool="prefork", timeout=60.0, environment=notes).ready() as one:
                (child,) = [found for found in psutil.Process(one.pid).children() if not is_keeper(found)]
                # Before its first task, Celery may not know that the child is up.
                leasing.end_task("one")
                first_id = leasing.send(WAIT).id
                leasing.wait_for_ends(1)
                leasing.wait_until_settled()
                child.suspend()
                ids = [leasing.send(WAIT).id]
                one.wait_for_output(f"{ids[0]}] received")
                # When the next one has come, the first one is on its way to the child.
                ids.append(leasing.send(WAIT).id)
                one.wait_for_output(f"{ids[1]}] received")
                proxy.cut()
                one.wait_for_output("Connection to broker lost")
                one.wait_for_output(f"returned {1 + forgets} messages that waited")
                child.resume()
                runs = [first_id, *ids[:1] * forgets, *ids]
                leasing.end_task("one", len(runs) - 1)
                assert leasing.wait_for_ends(len(runs)) == runs
                leasing.wait_until_settled()
                assert one.finish() == 0
            assert leasing.started == runs


class TestKeeper:
    @pytest.mark.thorough
    def test_sends_one_command_each_third_of_the_timeout_for_a_thousand_tasks(self, leasing: Leasing) -> None:
        leasing.settings["worker_prefetch_multiplier"] = 1000
        for _ in range(1000):
            leasing.app().send_task(WAIT)
        with leasing.worker("one", pool="threads").ready():
            wait_until(lambda: len(leasing.held()) == 1000, description="all tasks to be held")

            def times() -> set[float]:
                return set(leasing.held().values())

            wait_until(lambda: len(times()) == 1, description="a renewal of all at once")
            seen = times()

            def renewals() -> bool:
                seen.update(times())
                return len(seen) >= 4

            with leasing.client.monitor() as monitor:
                wait_until(renewals, description="three more renewals")
                leasing.client.echo("the end")
                commands = takewhile(lambda text: "the end" not in text, commands_of(monitor))
                # Times of leases are whole seconds: three more take up to 3 s, which are 4.5 thirds of the timeout.
                assert sum(load("broker/renew").sha in text for text in commands) <= 5
            assert len(leasing.held()) == 1000

    def test_is_replaced_when_it_dies(self, leasing: Leasing) -> None:
        with leasing.busy("one") as one:
            keeper_of(one).kill()
            tag, since = single_lease(leasing.held())
            leasing.wait_for_renewal(tag, since, 1)
            assert "starting another one" in one.output

    @pytest.mark.parametrize(("leasing", "pool"), first(RECONNECTING[::-1]), indirect=["leasing"])
    def test_keeps_running_tasks_during_a_short_outage_of_redis(self, leasing: Leasing, pool: str) -> None:
        with RedisServer(aof="always") as broker, broker.client() as client:
            split = replace(leasing, broker_url=f"redis+socket://{broker.socket}", broker=client)
            with split.busy("one", pool=pool) as one:
                (id_,) = split.started
                tag, since = single_lease(split.held())
                split.wait_for_renewal(tag, since, 0.3)
                broker.restart()
                if pool == "prefork":
                    one.wait_for_output("Connection to broker lost")
                split.wait_for_renewal(tag, since, 1)
                with split.worker("two").ready():
                    split.wait_for_renewal(tag, since, 2)
                    split.end_task("one")
                    assert split.wait_for_ends(1) == [id_]
                    split.wait_until_settled()
                assert one.finish() == 0
            assert split.started == [id_]
            assert client.hlen("unacked") == 0
            assert client.llen(split.queue) == 0

    # Celery 5.5 forgets the jobs of a prefork pool.
    @pytest.mark.parametrize("cancelled", [True, *([] if lacking() else [False])])
    def test_puts_back_tasks_that_celery_gives_back_after_an_outage_of_redis(
        self, leasing: Leasing, *, cancelled: bool
    ) -> None:
        leasing.settings["worker_cancel_long_running_tasks_on_connection_loss"] = cancelled
        with RedisServer(aof="always") as broker, broker.client() as client:
            split = replace(leasing, broker_url=f"redis+socket://{broker.socket}", broker=client)
            with split.busy("one", pool="prefork", timeout=60.0) as one:
                broker.restart()
                if not cancelled:
                    wait_until(lambda: one.output.count("Connected to") == 2, description="the next connection")
                    for child in psutil.Process(one.pid).children():
                        if not is_keeper(child):
                            child.kill()
                id_, again = split.wait_for_starts(2)
                assert id_ == again


class TestRollout:
    """Workers without leases beside those with, in one queue, with kombu's visibility timeout of an hour."""

    HOUR = 3600
    ENDS = BrokerKeys("").lease_ends("unacked_index").decode()

    @pytest.fixture(autouse=True)
    def options(self, leasing: Leasing) -> None:
        """Let stock workers look for expired messages each second, and all do so while a task runs."""
        leasing.options = {"unacked_restore_throttle": 1}

    def sweep(self, leasing: Leasing) -> None:
        """Wait until a worker with leases has looked for expired messages."""
        for number in range(2):
            # The end of a lease without a message, which such a look removes.
            leasing.client.zadd(self.ENDS, {f"probe {number}": 1})
            wait_until(lambda: not leasing.client.zcount(self.ENDS, 1, 1), description="a look for expired messages")

    def hold(self, leasing: Leasing, started: int) -> bytes:
        """Send a task that runs until it is told to end; return its delivery tag."""
        before = set(leasing.held())
        leasing.send(WAIT)
        leasing.wait_for_starts(started)
        (tag,) = set(leasing.held()) - before
        return tag

    @both_fetches
    def test_old_and_new_workers_side_by_side_run_each_task_once(self, leasing: Leasing) -> None:
        with leasing.worker("old", leases=False, pool="threads").ready():
            old_tag = self.hold(leasing, 1)
            with leasing.worker("new", pool="threads").ready():
                new_tag = self.hold(leasing, 2)
                since = leasing.held()[new_tag]
                for minutes in (2, 30, 57):
                    # The old worker has held its message for longer.
                    leasing.client.zadd("unacked_index", {old_tag: leasing.client.time()[0] - 60 * minutes})
                    self.sweep(leasing)
                leasing.wait_for_renewal(new_tag, since, 2)
                for name in ("old", "new"):
                    leasing.end_task(name)
                ids = leasing.wait_for_ends(2)
                leasing.wait_until_settled()
        assert sorted(leasing.started) == sorted(ids)
        assert not leasing.client.exists(self.ENDS)

    @both_fetches
    def test_tasks_of_killed_workers_come_back_by_the_rule_of_their_kind(self, leasing: Leasing) -> None:
        with leasing.worker("old", leases=False, pool="threads").ready() as old:
            old_tag = self.hold(leasing, 1)
            with leasing.worker("new", pool="threads").ready() as new:
                self.hold(leasing, 2)
                new.kill()
            old.kill()
        with leasing.worker("next", pool="threads"):
            first, second, third = leasing.wait_for_starts(3)
            assert second == third
            leasing.end_task("next")
            leasing.wait_for_ends(1)
            self.sweep(leasing)
            assert list(leasing.held()) == [old_tag]
            leasing.client.zincrby("unacked_index", -self.HOUR, old_tag)
            assert leasing.wait_for_starts(4)[3] == first

    def test_on_the_way_back_old_workers_run_what_a_killed_new_one_held(self, leasing: Leasing) -> None:
        with leasing.worker("new", pool="threads").ready() as new:
            tag = self.hold(leasing, 1)
            new.kill()
        with leasing.worker("old", leases=False, pool="threads").ready():
            for key in (self.ENDS, "unacked_index"):
                leasing.client.zincrby(key, -self.HOUR, tag)
            leasing.wait_for_starts(2)
            assert leasing.client.exists(self.ENDS)
            # The end of the lease of the killed worker is no reason to take the task from its new one.
            with leasing.worker("again", pool="threads"):
                wait_until(lambda: not leasing.client.exists(self.ENDS), description="the lease to be forgotten")
                leasing.end_task("old")
                (id_,) = leasing.wait_for_ends(1)
                leasing.wait_until_settled()
        assert leasing.started == [id_, id_]


@pytest.mark.thorough
class TestNames:
    def test_a_prefix_and_other_keys_of_the_broker_are_used(self, leasing: Leasing) -> None:
        leasing.options = {"global_keyprefix": "shop:", "unacked_key": "held", "unacked_index_key": "held_index"}
        leasing.index = "shop:held_index"
        with leasing.busy("one"):
            tag, since = single_lease(leasing.held())
            leasing.wait_for_renewal(tag, since, 1.5)
            assert leasing.client.zscore("shop:redis_queue:lease_ends:held_index", tag)
            leasing.end_task("one")
            leasing.wait_until_settled()
            assert not leasing.client.exists("shop:redis_queue:lease_ends:held_index")

    @both_fetches
    def test_other_databases_and_several_queues_are_used(self, leasing: Leasing) -> None:
        leasing.broker_url += "?virtual_host=2"
        leasing.settings["worker_prefetch_multiplier"] = 2
        with redis.Redis(unix_socket_path=str(leasing.store.socket), db=2) as broker:
            leasing.broker = broker
            with leasing.worker("one", "--queues", "a,b", pool="threads").ready():
                ids = [leasing.send(WAIT, queue=queue).id for queue in ("b", "a")]
                leasing.wait_for_leases(2)
                since = max(leasing.held().values())
                for tag in leasing.held():
                    leasing.wait_for_renewal(tag, since, 1)
                leasing.end_task("one", 2)
                assert sorted(leasing.wait_for_ends(2)) == sorted(ids)
                leasing.wait_until_settled()

    def test_tls_is_used(self) -> None:
        with RedisServer(tls=True) as store, store.client() as client:
            url = f"rediss://{HOST}:{store.port}/0?ssl_cert_reqs=none"
            leasing = Leasing(store, client, url)
            with leasing.busy("one"):
                tag, since = single_lease(leasing.held())
                leasing.wait_for_renewal(tag, since, 1)
                leasing.end_task("one")
                leasing.wait_until_settled()

    def test_sentinels_are_used(self) -> None:
        with SentinelSet() as sentinels, sentinels.client() as client:
            url = ";".join(f"sentinel://{host}:{port}" for host, port in sentinels.nodes)
            leasing = Leasing(sentinels.primary, client, url, options={"master_name": sentinels.master_name})
            with leasing.busy("one"):
                tag, since = single_lease(leasing.held())
                leasing.wait_for_renewal(tag, since, 1.5)
                leasing.end_task("one")
                leasing.wait_until_settled()


ONE = "redis://user:secret@one:6379/0"
SENTINELS = ["sentinel://one:26379", "sentinel://two:26379"]


@pytest.mark.parametrize("join", [list, ";".join])
@pytest.mark.parametrize(
    ("others", "count"),
    [
        (["redis://two"], 2),
        (["rediss://two", "redis://three"], 3),
        (["redis+socket:///tmp/two"], 2),
        (["amqp://two"], 2),
        (SENTINELS, 3),
    ],
)
def test_several_brokers_are_refused_with_a_clear_error(
    others: list[str], count: int, join: Callable[[list[str]], Any]
) -> None:
    for urls in ([ONE, *others], [*others, ONE]):
        app = Celery("tests", broker=join(urls), set_as_current=False)
        with pytest.raises(ConfigurationError, match=rf"broker_url names {count} brokers .*must be one") as caught:
            step.LeaseStep(SimpleNamespace(app=app, steps=[]))
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("urls", [[ONE], [ONE, ONE], SENTINELS, ["amqp://one", "amqp://two"]])
def test_single_brokers_and_those_with_own_leases_are_accepted(urls: list[str]) -> None:
    for broker in (urls, ";".join(urls)):
        check_broker(Celery("tests", broker=broker, set_as_current=False))


@pytest.mark.parametrize("leasing", [FETCHES[-1]], indirect=True)
def test_copies_of_one_message_in_two_queues_both_run(leasing: Leasing) -> None:
    app, exchange = leasing.app(), Exchange("topics", type="topic")
    queues = [Queue(name, exchange, routing_key="orders.#") for name in ("first", "second")]
    with leasing.worker("one", "--concurrency", "2", "-Q", "first,second", pool="threads").ready():
        with app.connection_for_write() as connection:
            for queue in queues:
                queue(connection).declare()
        id_ = app.send_task(WAIT, exchange=exchange, routing_key="orders.new", declare=[exchange]).id
        assert leasing.wait_for_starts(2) == [id_] * 2
        leasing.end_task("one", 2)
        leasing.wait_for_ends(2)
        leasing.wait_until_settled()


@pytest.mark.parametrize("leasing", [ATOMIC], indirect=True)
@pytest.mark.parametrize(("pool", "end"), [("prefork", "ends"), ("threads", "ends"), ("prefork", "is killed")])
def test_a_message_that_comes_again_starts_no_second_run_in_its_worker(leasing: Leasing, pool: str, end: str) -> None:
    with leasing.worker("one", "--concurrency", "2", pool=pool, timeout=20.0).ready() as worker:
        result = leasing.send(WAIT)
        leasing.wait_for_starts(1)
        # As a Redis that lost the last second: the message waits, and is not in flight.
        ((tag, record),) = leasing.client.hgetall("unacked").items()
        with leasing.client.pipeline() as pipe:
            pipe.hdel("unacked", tag)
            pipe.zrem(leasing.index, tag)
            pipe.lpush(leasing.queue, json.dumps(json.loads(record)[0]))
            pipe.execute()
        worker.wait_for_output("is not started a second time")
        assert leasing.started == [result.id]
        if end == "is killed":
            children = psutil.Process(worker.pid).children()
            for child in children:
                if not is_keeper(child):
                    child.kill()
            leasing.wait_for_starts(2)
        leasing.end_task("one")
        leasing.wait_until_settled()
        assert leasing.ended == [result.id]
        assert not leasing.client.exists(leasing.queue)
