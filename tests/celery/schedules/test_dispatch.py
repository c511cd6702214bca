"""Schedules beside the other work of a dispatcher: neither holds up the other."""

from dataclasses import replace

import pytest
from celery import Celery

from redis_queue.celery import DispatchLoop
from redis_queue.celery.dispatch import beat
from redis_queue.celery.dispatch.beat import dispatch_due
from redis_queue.schedules.store import Change
from redis_queue.store.keys import Keys, ScheduleKeys
from tests.support.celery.dispatch import running
from tests.support.celery.periodic import Rota
from tests.support.celery.periodic_names import TICK
from tests.support.store.server_states import Ballast
from tests.support.wait import must, wait_until

KEYS = ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0))


def test_dispatcher_of_an_app_without_schedules_waits_for_due_entries(rota: Rota) -> None:
    app = Celery("plain", broker=rota.broker_url, set_as_current=False)
    app.conf.redis_queue_url = rota.server.url
    leader = Keys("redis_queue", "delay", "scheduled", 0).leader
    loop = DispatchLoop(app)
    with running(loop):
        wait_until(lambda: loop.leads, description="the dispatcher to lead")
        left = rota.client.pttl(leader)
        wait_until(lambda: rota.client.pttl(leader) < left - 500, description="half a second to pass")
        assert rota.client.info("commandstats")["cmdstat_evalsha"]["calls"] < 50
    app.close()


def test_periodic_task_sends_delayed_tasks_while_a_full_redis_refuses_runs(rota: Rota) -> None:
    rota.durable.app.send_task(TICK, countdown=0.1)
    rota.schedules.put("tick", 0.1, TICK)
    wait_until(lambda: rota.schedules.store.now() > rota.state("tick").due + 200, description="both to be due")
    ballast = Ballast(rota.client)
    assert dispatch_due(rota.app) == {"sent": 1, "failed": 0}
    assert rota.state("tick").runs == 0
    ballast.free()
    # The next one may be due meanwhile.
    assert dispatch_due(rota.app) == {"sent": rota.state("tick").runs, "failed": 0}
    assert rota.state("tick").runs > 0


def test_periodic_task_sends_delayed_tasks_while_many_runs_are_due(rota: Rota, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat, "DISPATCH_EVERY", 0.1)
    rota.schedules.put("tick", 0.1, TICK, missed="all")
    before = rota.state("tick")
    month_ago = replace(before, due=before.due - 30 * 86_400_000)
    rota.schedules.store.change([Change("tick", str(before).encode(), month_ago, look=0)])
    rota.durable.app.send_task(TICK, countdown=0.01)
    wait_until(lambda: rota.durable.queue.moves.due_in() == 0, description="it to be due")
    assert dispatch_due(rota.app)["sent"] > 1
    assert rota.durable.queue.count() == 0
    assert 0 < rota.state("tick").runs < 30 * 86_400


def test_schedule_that_a_newer_version_wrote_is_looked_at_again(rota: Rota) -> None:
    rota.schedules.put("tick", 0.1, TICK)
    rota.client.hset(KEYS.schedules, "tick", '{"v": 2}')
    wait_until(lambda: rota.schedules.store.now() > rota.state("tick").due, description="the first run to be due")
    rota.schedules.dispatch.run()
    look = must(rota.client.zscore(KEYS.schedule_looks, "tick"))
    assert 60_000 < look - rota.schedules.store.now() < 600_000


def test_beat_schedule_is_declared_once_a_full_redis_takes_it(rota: Rota) -> None:
    rota.durable.app.conf.beat_schedule = {"tick": {"task": TICK, "schedule": 60}}
    ballast = Ballast(rota.client)
    with running(DispatchLoop(rota.app, declares=True)):
        wait_until(lambda: rota.client.info("errorstats").get("errorstat_OOM"), description="a refused call")
        assert rota.schedules.list() == []
        ballast.free()
        wait_until(rota.schedules.list, description="the schedule")
