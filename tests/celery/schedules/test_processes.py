"""Schedules in real processes: beats, workers and dispatchers share them, on Redis and on RabbitMQ."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redis_queue.celery import DispatchLoop, DurableTasks
from redis_queue.celery.schedules.declaration import CLEAN_UP
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.store.keys import Keys, ScheduleKeys
from tests.support.celery.brokers import Broker
from tests.support.celery.dispatch import running
from tests.support.celery.periodic import Rota, ms_of, rota_on_one_redis
from tests.support.celery.periodic_names import FAIL, GATE, TICK, WAIT
from tests.support.celery.processes import CeleryProcess
from tests.support.faketime import clock_off_by
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.store.server_states import Ballast
from tests.support.wait import must, wait_until

KEYS = ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0))


def entries(*names: str, every: float = 0.2, **options: Any) -> dict[str, Any]:
    return {name: {"task": TICK, "schedule": every, "options": options} for name in names}


class TestReferenceApplication:
    """`tasks.putback.putback` and `tasks.delay_dispatch.delay_dispatch` in the application of an installation."""

    PUTBACK = "tasks.putback.putback"
    DELAY_DISPATCH = "tasks.delay_dispatch.delay_dispatch"
    SHORTENED = "tests.support.celery.periodic_tasks"
    WORKER = ("worker", "--pool", "threads", "--loglevel", "INFO", "--without-mingle", "--without-gossip")
    WITH_BEAT = ("worker", "--beat", "--concurrency", "1", "--loglevel", "INFO", "--without-mingle", "--without-gossip")
    BEAT = ("beat", "--loglevel", "INFO", "--pidfile", "")

    @pytest.mark.parametrize(
        "beat", [BEAT, (*BEAT, "-S", "redis_queue"), None], ids=["stock beat", "-S redis_queue", "no beat"]
    )
    def test_both_tasks_run(self, beat: tuple[str, ...] | None) -> None:
        with RedisServer() as server, ExitStack() as stack:
            environment = {"REDIS_URL": server.url, "PUTBACK_EVERY": "1", "SCHEDULES": "0" if beat else "1"}
            worker = stack.enter_context(
                CeleryProcess("-A", self.SHORTENED, *self.WORKER, environment=environment, beat=False)
            )
            if beat:
                stack.enter_context(CeleryProcess("-A", self.SHORTENED, *beat, environment=environment))
            for task in (self.PUTBACK, self.DELAY_DISPATCH):
                worker.wait_for_output(f"Task {task}[")
            wait_until(lambda: worker.output.count("succeeded in") > 4, description="some runs")
            known = {one.task: one.rules for one in _schedules(server).list()}
            # Stock beat cleans up results as well.
            wanted = {self.PUTBACK: "every 1 s", self.DELAY_DISPATCH: "every 1 s", CLEAN_UP: "0 4 * * *"}
            assert known == ({} if beat == self.BEAT else wanted)
            assert "Traceback" not in worker.output

    def test_unchanged_application_puts_back_every_five_minutes(self) -> None:
        with RedisServer() as server:
            environment = {"REDIS_URL": server.url}
            beat = CeleryProcess("-A", "tasks", *self.BEAT, "-S", "redis_queue", environment=environment)
            worker = CeleryProcess("-A", "tasks", *self.WORKER, environment=environment, beat=False)
            with beat, worker:
                schedules = _schedules(server)
                found = wait_until(lambda: schedules.get("redis-queue-putback"), description="the schedule")
                assert found.rules == "every 5 min"
                assert abs(must(found.next_run) - datetime.now(timezone.utc) - timedelta(minutes=5)) < timedelta(
                    minutes=1
                )
                id_ = schedules.run_now("redis-queue-putback")
                worker.wait_for_output(f"Task {self.PUTBACK}[{id_}] succeeded")

    def test_stock_beat_ends_if_workers_send_the_schedule(self) -> None:
        with RedisServer() as server, server.client() as client:
            environment = {"REDIS_URL": server.url, "PUTBACK_EVERY": "1", "SCHEDULES": "1"}
            with CeleryProcess("-A", self.SHORTENED, *self.BEAT, environment=environment) as beat:
                beat.wait()
                assert "redis_queue_schedules is on" in beat.output
                assert "run no beat, or celery beat -S redis_queue" in beat.output
                assert "Traceback" not in beat.output
            assert client.keys("*redis_queue") == []

    def test_worker_with_stock_beat_sends_the_schedule_itself(self) -> None:
        with RedisServer() as server:
            environment = {"REDIS_URL": server.url, "PUTBACK_EVERY": "1", "SCHEDULES": "1"}
            with CeleryProcess("-A", self.SHORTENED, *self.WITH_BEAT, environment=environment) as worker:
                worker.wait_for_output("redis_queue_schedules is on")
                worker.wait_for_output(f"Task {self.PUTBACK}[")
                # What stock beat sends is in its log.
                assert "Sending due task" not in worker.output


def _schedules(server: RedisServer) -> Schedules:
    app = Celery("tasks", broker=f"redis+socket://{server.socket}", set_as_current=False)
    app.conf.redis_queue_url = server.url
    return DurableTasks(app, leases=False).schedules


def test_two_beats_and_two_workers_send_each_due_time_once(rota: Rota) -> None:
    names = [f"tick-{number}" for number in range(5)]
    rota.settings["beat_schedule"] = entries(*names)
    with rota.beat(), rota.beat(), rota.worker("one"), rota.worker("two"):
        for name in names:
            rota.wait_for(name, 10)
        rota.settle(*names, every=200)


def test_beat_embedded_in_a_worker_sends_the_schedule(rota: Rota) -> None:
    rota.settings["beat_schedule"] = entries("tick")
    options = ("worker", "--beat", "--scheduler", "redis_queue", "--pool", "prefork", "--concurrency", "1")
    with rota.process(*options, beat=True) as worker:
        rota.wait_for("tick", 3)
        rota.settle("tick", every=200)
        assert worker.finish_between_ticks() == 0 if False else True


def test_leader_that_is_killed_is_replaced(rota: Rota) -> None:
    rota.schedules.put("tick", 0.2, TICK)
    with rota.worker("one"), rota.dispatcher() as first:
        rota.wait_for("tick", 3)
        first.kill()
        with rota.dispatcher() as second:
            rota.wait_for("tick", len(rota.dues("tick")) + 5)
            second.kill()
        # The worker takes over from a leader that it cannot see.
        rota.wait_for("tick", len(rota.dues("tick")) + 5)
        rota.settle("tick", every=200)


def test_frozen_leader_sends_nothing_when_it_continues(rota: Rota) -> None:
    rota.schedules.put("tick", 0.2, TICK)
    with rota.dispatcher() as leader:
        # No worker took its message yet: this process has sent it.
        wait_until(lambda: rota.client.llen(rota.queue) > 2, description="some runs")
        os.kill(leader.pid, signal.SIGSTOP)
        with rota.worker("one"):
            rota.wait_for("tick", rota.client.llen(rota.queue) + 8)
            os.kill(leader.pid, signal.SIGCONT)
            rota.wait_for("tick", len(rota.dues("tick")) + 8)
            rota.settle("tick", every=200)


CUTS: dict[str, Callable[[FaultProxy, int], None]] = {
    "the request is lost": lambda proxy, number: proxy.cut_next_request(passes=number),
    "the reply is lost": lambda proxy, number: proxy.drop_next_reply(passes=number),
    "the request comes once more, late": lambda proxy, number: proxy.hold_next_request(passes=number),
}

COMMANDS = 12
"""More than a dispatcher sends from one run to the next one."""


@pytest.mark.parametrize("cut", CUTS)
def test_each_due_time_is_sent_once_whichever_command_is_cut(cut: str) -> None:
    with rota_on_one_redis(tcp=True) as rota, FaultProxy(rota.server.address) as proxy:
        rota.schedules.put("tick", 0.2, TICK, missed="all")
        timeouts = {"broker_transport_options": {"socket_timeout": 0.3}}
        behind = replace(rota, broker_url=proxy.url, settings=timeouts, store_url=f"{proxy.url}?socket_timeout=0.3")
        assert behind.durable.app is behind.app
        with running(DispatchLoop(behind.app)):
            for number in range(COMMANDS):
                wait_for_more(rota, 1)
                CUTS[cut](proxy, number)
                wait_until(lambda: not proxy.pending_drops, description=f"command {number} to be cut")
                wait_for_more(rota, 2)
                proxy.release()
        with rota.worker("one"):
            rota.settle("tick", every=200)
        assert rota.state("tick").skipped == 0
        behind.close()


def wait_for_more(rota: Rota, count: int) -> None:
    """Wait for so many more runs."""
    runs = rota.state("tick").runs
    wait_until(lambda: rota.state("tick").runs >= runs + count, description=f"{count} more runs")


class TestFullRedis:
    """Redis is full for a while: runs are late, and no dispatcher hammers on it."""

    def fill(self, rota: Rota) -> tuple[Ballast, int]:
        """Fill Redis until a dispatcher has been refused several times; return the time (ms) at which it began."""
        seconds, micros = rota.client.time()
        ballast = Ballast(rota.client)
        wait_until(lambda: self.refusals(rota) >= 5, description="refused calls")
        return ballast, seconds * 1000 + micros // 1000

    def refusals(self, rota: Rota) -> int:
        return int(rota.client.info("errorstats").get("errorstat_OOM", {}).get("count", 0))

    def test_latest_run_is_sent_once_and_the_others_are_counted(self, rota: Rota) -> None:
        rota.schedules.put("tick", 0.3, TICK)
        with rota.dispatcher():
            wait_until(lambda: rota.client.llen(rota.queue) >= 2, description="some runs")
            ballast, full_since = self.fill(rota)
            # Each pause is longer than the one before, up to the interval.
            assert self.refusals(rota) < 2 + (rota.schedules.store.now() - full_since) / 25
            ballast.free()
            state = rota.state("tick")
            wait_until(lambda: rota.state("tick").runs > state.runs + 2, description="runs after the outage")
            with rota.worker("one"):
                rota.settle("tick", every=300)
            missed = [due for due in rota.dues("tick") if full_since < due <= state.due]
            assert len(missed) <= 1
            assert rota.state("tick").late > 0

    def test_all_runs_are_sent_with_missed_all(self, rota: Rota) -> None:
        rota.schedules.put("tick", 0.3, TICK, missed="all")
        with rota.dispatcher():
            wait_until(lambda: rota.client.llen(rota.queue) >= 2, description="some runs")
            self.fill(rota)[0].free()
            state = rota.state("tick")
            wait_until(lambda: rota.state("tick").runs > state.runs + 5, description="runs after the outage")
            with rota.worker("one"):
                rota.settle("tick", every=300)
            assert rota.state("tick").skipped == 0


HOSTILE: dict[str, bytes | dict[str, Any]] = {
    "bytes": b"\xff\xfe\x00",
    "depth": b"[" * 100_000,
    "number": b"9" * 5000,
    "another version": b'{"v": 2}',
    "zone": {"timezone": "Mars/Base"},
    "rules": {"rules": [{"every": -1}]},
    "cron": {"rules": [{"cron": "0 0 30 2 *"}]},
    "serializer": {"options": {"serializer": "nope"}},
    "countdown": {"options": {"countdown": "soon"}},
    "headers": {"options": {"headers": "no mapping"}},
    "unknown option": {"options": {"queue": {"a": ["list"]}}},
    "exchange": {"options": {"exchange": "nowhere", "routing_key": "nobody"}},
    "huge": {"kwargs": {"x": "x" * 200_000}},
    "surrogate": {"task": "\ud800"},
}


def test_bad_schedules_stop_no_other(rota: Rota) -> None:
    rota.schedules.put("tick", 0.2, TICK, missed="all")
    for name, hostile in HOSTILE.items():
        rota.schedules.put(name, 0.2, TICK)
        known = json.loads(rota.client.hget(KEYS.schedules, name) or b"")
        definition = json.dumps(known | hostile) if isinstance(hostile, dict) else hostile
        rota.client.hset(KEYS.schedules, name, definition)
        rota.client.hset(KEYS.schedule_events, name, b"\xff\n\n0 0\n")
    with rota.dispatcher() as dispatcher, rota.worker("one"):
        rota.wait_for("tick", 10)
        assert dispatcher.output.count("Traceback") == 0
        assert rota.state("tick").skipped == 0
    assert {name for name in HOSTILE if rota.dues(name)} <= {"exchange", "huge"}


def test_rabbitmq_gets_each_due_time_at_least_once_under_one_id(rabbitmq_url: str) -> None:
    with RedisServer() as server, server.client() as client, Broker(rabbitmq_url) as broker:
        queue = broker.name("periodic")
        broker.forget_later(f"{queue}-control.pidbox", f"{queue}-events")
        rota = Rota(server, client, rabbitmq_url, queue)
        rota.settings["broker_transport_options"] = broker.options
        rota.schedules.put("tick", 0.2, TICK)
        with rota.worker("one", "threads", "--without-dispatch") as worker:
            for number in range(3):
                with rota.dispatcher() as dispatcher:
                    rota.wait_for("tick", 5 * number + 5)
                    dispatcher.kill()
            with rota.dispatcher():
                rota.wait_for("tick", 20)
                rota.schedules.pause("tick")
                state = rota.state("tick")
                wait_until(lambda: len(rota.ids_by_due("tick")) >= state.runs, description="all runs")
            assert worker.output.count("Traceback") == 0
        found = rota.ids_by_due("tick")
        assert {len(ids) for ids in found.values()} == {1}
        assert len(found) == state.runs
        assert len(range(state.since + 200, state.due, 200)) == state.runs + state.skipped
        rota.close()


class TestRollingDeploy:
    """Versions of an app declare their ``beat_schedule``."""

    def test_restart_of_an_old_version_changes_nothing_and_force_rolls_back(self, rota: Rota) -> None:
        old = rota.with_settings(beat_schedule=entries("kept", every=60) | entries("changed", "removed", every=60))
        new = rota.with_settings(beat_schedule=entries("kept", every=60) | entries("changed", "added", every=90))
        rules = {"kept": "every 1 min", "changed": "every 1 min", "removed": "every 1 min"}
        with old.beat() as beat:
            beat.wait_for_output("changed,")
        assert self.rules(rota) == rules
        kept = rota.state("kept")
        with new.beat() as beat:
            beat.wait_for_output("deleted")
        newer = {"kept": "every 1 min", "changed": "every 1 min 30 s", "added": "every 1 min 30 s"}
        assert self.rules(rota) == newer
        with old.beat() as beat:
            beat.wait_for_output("are not used")
        assert self.rules(rota) == newer
        old.app.conf.beat_schedule = old.settings["beat_schedule"]
        report = old.durable.declare_schedules(force=True)
        assert (sorted(report.changed), report.deleted, report.newer) == (["changed", "removed"], ["added"], "")
        assert self.rules(rota) == rules
        with new.beat() as beat:
            beat.wait_for_output("are not used")
        assert self.rules(rota) == rules
        # Equal in all versions: its next run and its counts have stayed.
        assert rota.state("kept") == kept
        old.close()

    def rules(self, rota: Rota) -> dict[str, str]:
        return {one.name: one.rules for one in rota.schedules.list()}


@pytest.mark.parametrize("seconds", [-90, 90])
def test_due_times_follow_the_clock_of_redis(rota: Rota, seconds: int) -> None:
    rota.settings["beat_schedule"] = entries("tick", every=0.3)
    rota.environment = clock_off_by(seconds)
    with rota.beat(), rota.worker("one"):
        rota.wait_for("tick", 5)
        rota.settle("tick", every=300)
    lateness = [row["at"] - ms_of(row["due"]) / 1000 for row in rota.ran]
    assert min(lateness) >= 0
    assert max(lateness) < 30


class TestOverlap:
    """A run has not ended when the next one is due."""

    def begin(self, rota: Rota, **options: Any) -> None:
        """Start a schedule whose first run waits at the gate."""
        rota.schedules.put("wait", 0.2, WAIT, **options)
        rota.wait_for("wait", 1)

    def open_gate(self, rota: Rota) -> None:
        rota.client.rpush(GATE, "open")

    def wait_for_skips(self, rota: Rota, count: int = 5) -> None:
        wait_until(lambda: rota.state("wait").overlap >= count, description=f"{count} skipped runs")

    def test_skip(self, rota: Rota) -> None:
        with rota.worker("one"):
            self.begin(rota, overlap="skip")
            self.wait_for_skips(rota)
            (first,) = rota.dues("wait")
            self.open_gate(rota)
            _, second = rota.wait_for("wait", 2)
            state = rota.state("wait")
            assert second - first > 5 * 200
            assert state.runs == 2
            self.open_gate(rota)

    def test_queue_keeps_one_run(self, rota: Rota) -> None:
        with rota.worker("one"):
            self.begin(rota, overlap="queue")
            (first,) = rota.dues("wait")
            wait_until(
                lambda: rota.schedules.store.now() > first + 2000, description="runs that fall due while it runs"
            )
            assert len(rota.dues("wait")) == 1
            self.open_gate(rota)
            rota.wait_for("wait", 2)
            assert rota.state("wait").overlap >= 5
            self.open_gate(rota)

    def test_cancel_stops_the_run_before(self, rota: Rota) -> None:
        with rota.worker("one", "prefork") as worker:
            worker.wait_for_output("ready.")
            self.begin(rota, overlap="cancel")
            rota.wait_for("wait", 3)
            worker.wait_for_output("Terminating")
            assert rota.state("wait").skipped == rota.state("wait").late

    def test_run_that_a_killed_worker_lost_blocks_no_longer_than_its_timeout(self, rota: Rota) -> None:
        # With late acknowledgement, another worker would run it again.
        rota.settings["task_acks_late"] = False
        with rota.worker("one") as first:
            self.begin(rota, overlap="skip", overlap_timeout=2)
            self.wait_for_skips(rota)
            first.kill()
        with rota.worker("two"):
            lost, after = rota.wait_for("wait", 2)
            assert after - lost >= 2000
            self.open_gate(rota)

    def test_run_of_a_killed_worker_that_another_one_repeats_blocks_until_it_ends(self, rota: Rota) -> None:
        with rota.worker("one") as first:
            self.begin(rota, overlap="skip")
            first.kill()
        with rota.worker("two"):
            first_due, again = rota.wait_for("wait", 2)
            assert again == first_due
            self.open_gate(rota)
            assert rota.wait_for("wait", 3)[-1] > first_due
            self.open_gate(rota)

    @pytest.mark.parametrize("way", ["unknown task", "unreadable", "invalid", "expired", "revoked"])
    def test_run_that_ends_without_its_task_does_not_block(self, rota: Rota, way: str) -> None:
        """A message ends in a worker in other ways than by its task."""
        own = rota.with_settings(task_protocol=1) if way == "unreadable" else rota
        options: dict[str, dict[str, Any]] = {
            "unreadable": {"serializer": "pickle"},
            "invalid": {"headers": {"expires": "never"}},
            "expired": {"expires": 0.001},
        }
        with own.worker("one") as worker:
            worker.wait_for_output("ready.")
            if way == "revoked":
                dues = range(1, 20)
                rota.schedules.put("a", 0.5, TICK, overlap="skip")
                since = rota.state("a").since
                rota.app.control.revoke([rota.schedules.store.run_id("a", since + 500 * due) for due in dues])
            else:
                task = "nobody.has.it" if way == "unknown task" else TICK
                rota.schedules.put("a", 0.5, task, overlap="skip", **options.get(way, {}))
            wait_until(lambda: rota.state("a").runs >= 3, description="runs of the schedule")
        ended = [event.text for event in rota.schedules.events("a") if event.kind == "ended"]
        assert set(ended) == {"revoked" if way in ("expired", "revoked") else "failed"}
        assert rota.ran == []

    def test_schedule_whose_runs_fail_is_paused(self, rota: Rota) -> None:
        rota.schedules.put("fail", 0.2, FAIL, pause_after_failures=2)
        with rota.worker("one"):
            found = wait_until(lambda: (found := rota.schedules.find("fail")).paused and found, description="the pause")
            assert found.failures >= 2
            assert must(found.failed) >= 2
            count = rota.state("fail").runs
            rota.wait_for("fail", count)
            event = next(one for one in rota.schedules.events("fail") if one.kind == "paused")
            assert "in a row failed" in event.text
