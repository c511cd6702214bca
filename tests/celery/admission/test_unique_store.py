"""Keys of unique tasks that wait in the store: they follow a new due time, and deleted dead letters free them."""

from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery

from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions.action import Choice
from redis_queue.operate.actions.queues import purge_plan
from tests.support.actions import act
from tests.support.celery.uniques import app_of, owned, owners, send, traces
from tests.support.servers import RedisServer
from tests.support.wait import must

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def ends_in(app: Celery, task: str) -> timedelta:
    """Return in how long the key of *task* is free at the latest."""
    return must(owners(app).get(task, "order:7")).until - datetime.now(timezone.utc)


def bury(app: Celery, task_id: str) -> None:
    """Let a dispatcher give up the stored task *task_id*."""
    queue = StoredTasks.of(app).queue
    queue.run_now(task_id)
    (entry,) = queue.claim()
    queue.nack(entry, reason="test", dead=True)


class TestNewTime:
    @pytest.mark.parametrize(("task", "kept"), [("end", DAY), ("hourly", HOUR)])
    def test_the_time_of_the_key_counts_from_it(self, app: Celery, task: str, kept: timedelta) -> None:
        first, delayed = send(app, task, 7, countdown=60), StoredTasks.of(app)
        assert delayed.reschedule(first, countdown=10 * 86_400)
        assert abs(ends_in(app, task) - 10 * DAY - kept) < timedelta(minutes=1)
        assert delayed.reschedule(first, eta=datetime.now(timezone.utc) + 5 * DAY)
        assert abs(ends_in(app, task) - 5 * DAY - kept) < timedelta(minutes=1)
        assert delayed.run_now(first)
        assert abs(ends_in(app, task) - kept) < timedelta(minutes=1)
        assert owned(app) == {(task, "order:7"): "delayed"}
        assert send(app, task, 7) == first

    def test_also_if_a_user_of_the_dashboard_chooses_it(self, app: Celery) -> None:
        first = send(app, "end", 7, countdown=60)
        chosen = {"ids": [first]}
        assert act(AppAccess(app), "scheduled", "reschedule", arguments={"when": 3 * DAY}, **chosen).count == 1
        assert abs(ends_in(app, "end") - 4 * DAY) < timedelta(minutes=1)
        assert act(AppAccess(app), "scheduled", "run-now", **chosen).count == 1
        assert abs(ends_in(app, "end") - DAY) < timedelta(minutes=1)

    def test_a_task_that_does_not_own_the_key_leaves_it(self, app: Celery) -> None:
        first = send(app, "end", 7, countdown=60)
        assert owners(app).release("end", "order:7")
        second = send(app, "end", 7, countdown=60)
        assert second != first
        assert StoredTasks.of(app).reschedule(first, countdown=10 * 86_400)
        assert ends_in(app, "end") < 2 * DAY

    def test_a_task_that_is_being_sent_leaves_it(self, app: Celery) -> None:
        first = send(app, "end", 7, countdown=60)
        StoredTasks.of(app).run_now(first)
        StoredTasks.of(app).queue.claim()
        assert not StoredTasks.of(app).reschedule(first, countdown=10 * 86_400)
        assert ends_in(app, "end") < 2 * DAY


class TestDeletedDeadLetter:
    def test_its_key_is_free(self, app: Celery, client: redis.Redis) -> None:
        first = send(app, "end", 7, countdown=60)
        bury(app, first)
        assert owned(app) == {("end", "order:7"): "delayed"}
        assert act(AppAccess(app), "dead", "delete", ids=[first]).count == 1
        assert not traces(client)
        assert send(app, "end", 7) != first

    @pytest.mark.parametrize("prefix", ["", "shop:"])
    @pytest.mark.parametrize("all_of_them", [False, True], ids=["delete", "purge"])
    def test_its_key_is_free_also_with_a_prefix_of_the_broker(
        self, server: RedisServer, prefix: str, all_of_them: bool
    ) -> None:
        with app_of(server, broker_transport_options={"global_keyprefix": prefix}) as app:
            first, access = send(app, "end", 7, countdown=60), AppAccess(app)
            bury(app, first)
            if all_of_them:
                plan = purge_plan(access, Choice({"name": None, "places": ["dead"], "noun": "dead letters"}))
                assert [done.count for done in plan.run()] == [1]
            else:
                assert act(access, "dead", "delete", ids=[first]).count == 1
            assert owners(app).count() == 0
            assert send(app, "end", 7, countdown=60) != first

    def test_one_that_stays_keeps_its_key(self, app: Celery) -> None:
        first = send(app, "end", 7, countdown=60)
        bury(app, first)
        before = datetime.now(timezone.utc) - HOUR
        assert act(AppAccess(app), "dead", "delete", ids=[first], at=before).count == 0
        assert owned(app) == {("end", "order:7"): "delayed"}
        assert ends_in(app, "end") > HOUR

    def test_one_whose_key_another_task_owns_leaves_it(self, app: Celery) -> None:
        first = send(app, "end", 7, countdown=60)
        bury(app, first)
        second = send(app, "end", 7)
        assert second != first
        assert act(AppAccess(app), "dead", "delete", ids=[first]).count == 1
        assert owned(app) == {("end", "order:7"): "waiting"}
        assert send(app, "end", 7) == second

    def test_a_task_that_waits_is_not_deleted(self, app: Celery) -> None:
        first = send(app, "end", 7, countdown=60)
        assert act(AppAccess(app), "dead", "delete", ids=[first]).count == 0
        assert owned(app) == {("end", "order:7"): "delayed"}
        assert ends_in(app, "end") > HOUR
        assert send(app, "end", 7) == first
