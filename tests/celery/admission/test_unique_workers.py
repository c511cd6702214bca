"""Unique tasks with real workers: their keys are free after every end, and no duplicate runs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.flow_names import AGAIN, FAIL, WORK
from tests.support.celery.flows import KEYS, Fleet, kill
from tests.support.wait import wait_until

Make = Callable[..., Fleet]


def unique(make: Make, **options: Any) -> Fleet:
    """Return workers whose tasks are unique: WORK by its key, AGAIN and FAIL as a whole."""
    rules = {WORK: {"key": "{key}", **options}, AGAIN: dict(options), FAIL: dict(options)}
    return make(settings={"redis_queue_unique": rules})


def wait_until_clean(fleet: Fleet, *more: bytes) -> None:
    """Wait until no message, no key of a task and none of *more* is left."""
    fleet.wait_until_free()
    left = (KEYS.owners, KEYS.owner_ends, KEYS.owned, *more)
    wait_until(lambda: not fleet.client.exists(*left), timeout=20, description="all keys to be free")


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_key_is_free_after_its_task(make: Make, pool: str) -> None:
    fleet = unique(make)
    fleet.start("a", pool=pool)
    with fleet.producer() as app:
        for number in range(3):
            first = app.send_task(WORK, kwargs={"key": "x", "hold": True})
            fleet.wait_for("enter", number + 1)
            assert app.send_task(WORK, kwargs={"key": "x"}).id == first.id
            fleet.release()
            wait_until_clean(fleet)
    assert len(fleet.entered()) == 3


def test_a_key_is_free_when_its_task_starts(make: Make) -> None:
    fleet = unique(make, until="start")
    fleet.start("a", concurrency=1)
    with fleet.producer() as app:
        call = {"key": "x", "hold": True}
        first = app.send_task(WORK, kwargs=call).id
        fleet.wait_for("enter", 1)
        second = app.send_task(WORK, kwargs=call).id
        assert app.send_task(WORK, kwargs=call).id == second != first
        fleet.release(2)
        fleet.wait_for("leave", 2)
    assert fleet.entered() == [first, second]
    wait_until_clean(fleet)


def test_every_end_frees_the_key(make: Make) -> None:
    fleet = unique(make)
    fleet.start("a", concurrency=1)
    with fleet.producer() as app:
        app.send_task(WORK, kwargs={"key": "first", "hold": True})
        fleet.wait_for("enter", 1)
        revoked = app.send_task(WORK, kwargs={"key": "revoked"})
        app.control.revoke(revoked.id, reply=True, timeout=10, limit=1)
        app.send_task(WORK, kwargs={"key": "expired"}, expires=0.001)
        app.send_task(WORK, kwargs={"key": "wrong", "unknown": 5})
        app.send_task(FAIL)
        app.send_task(WORK, kwargs={"key": "slow", "seconds": 600}, time_limit=1)
        app.send_task(WORK, kwargs={"key": "terminated", "seconds": 600})
        fleet.release()
        wait_until(lambda: len(fleet.entered()) == 3, timeout=30, description="the last task to run")
        app.control.terminate(fleet.entered()[-1])
    wait_until_clean(fleet)


@pytest.mark.parametrize("countdown", [0, 0.2])
@pytest.mark.parametrize("until", ["start", "end"])
def test_retries_keep_the_key(make: Make, countdown: float, until: str) -> None:
    fleet = unique(make, until=until)
    fleet.start("a")
    with fleet.producer() as app:
        first = app.send_task(AGAIN, (3, countdown)).id
        while _ends_of(first, fleet) < 4:
            second = app.send_task(AGAIN, (0, countdown)).id
            if second != first and until == "end":
                assert _ends_of(first, fleet) == 4, "it waits or runs until then"
        wait_until_clean(fleet)
    if until == "end":
        assert fleet.entered()[:4] == [first] * 4


def _ends_of(task: str, fleet: Fleet) -> int:
    return [id_ for kind, _, id_, _ in fleet.events() if kind == "leave"].count(task)


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_a_retry_goes_on_while_another_call_waits(make: Make, on_conflict: str) -> None:
    fleet = unique(make, until="start", on_conflict=on_conflict)
    fleet.start("a", concurrency=1)
    with fleet.producer() as app:
        first = app.send_task(AGAIN, (2, 0.2), {"hold": True}).id
        fleet.wait_for("enter", 1)
        second = app.send_task(AGAIN, (0, 0), countdown=1).id
        fleet.release()
        wait_until_clean(fleet)
    assert second != first
    assert sorted(fleet.entered()) == sorted([first] * 3 + [second])


def test_a_killed_worker_blocks_no_key(make: Make) -> None:
    fleet = unique(make)
    with fleet.producer() as app:
        (worker,) = fleet.start("a", concurrency=1)
        first = app.send_task(WORK, kwargs={"key": "x", "hold": True}).id
        fleet.wait_for("enter", 1)
        kill(worker)
        assert app.send_task(WORK, kwargs={"key": "x"}).id == first, "it will run again"
        fleet.start("b", concurrency=1)
        fleet.wait_for("enter", 2)
        assert app.send_task(WORK, kwargs={"key": "x"}).id == first
        fleet.release()
        wait_until_clean(fleet)
        assert fleet.entered() == [first, first]


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
def test_of_many_callers_at_once_one_is_right(make: Make, on_conflict: str) -> None:
    fleet = unique(make, on_conflict=on_conflict)
    fleet.start("a")
    with fleet.producer() as app, ThreadPoolExecutor(8) as pool:

        def call(number: int) -> str:
            return str(app.send_task(WORK, kwargs={"key": f"k{number % 3}"}, countdown=number % 2 and 0.05).id)

        ids = set(pool.map(call, range(400)))
        wait_until(lambda: ids <= set(fleet.entered()), timeout=40, description="each of these tasks to run")
        # The message of a call that was to replace one that has started may still be due; it does not run.
        wait_until(lambda: not StoredTasks.of(app).count(), description="no task to be delayed")
    wait_until_clean(fleet)
    inside: dict[str, str] = {}
    for kind, key, id_, _ in fleet.events():
        if kind == "enter":
            assert key not in inside, "two tasks of a key ran at once"
            inside[key] = id_
        else:
            assert inside.pop(key) == id_
    assert len(fleet.entered()) == len(set(fleet.entered())) == len(ids)
