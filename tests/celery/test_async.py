"""Callers on an event loop, and tasks that are ``async def``, with real workers."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async
from celery import chain, group
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from redis_queue.celery import DurableTasks, async_calls
from redis_queue.model import CancelOutcome
from tests.support.celery.fleet import Fleet, fleet_on_one_redis
from tests.support.celery.processes import CeleryProcess
from tests.support.loops import free_loop
from tests.support.wait import wait_until

POOLS = ["prefork", "spawn", "threads", "gevent"]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with fleet_on_one_redis() as fleet:
        yield fleet


@pytest.fixture
def durable(fleet: Fleet) -> DurableTasks:
    app = fleet.app(result_backend=fleet.broker_url)
    return DurableTasks(app, leases=False)


@contextmanager
def worker(fleet: Fleet, pool: str = "threads") -> Iterator[CeleryProcess]:
    if pool == "spawn":
        # Celery 5.7 knows it; for others it is prefork again.
        pool = "prefork"
        fleet.settings |= {"worker_pool_start_method": "spawn", "worker_proc_alive_timeout": 60}
    with fleet.worker(app="tests.support.celery.async_app", pool=pool).ready() as running:
        yield running


@pytest.fixture(scope="module")
def limits() -> Iterator[DurableTasks]:
    """An app with a worker that has time limits."""
    with fleet_on_one_redis() as fleet, worker(fleet, "prefork"):
        yield DurableTasks(fleet.app(result_backend=fleet.broker_url), leases=False)


def signature(durable: DurableTasks, name: str, *args: Any, **options: Any) -> Any:
    return durable.app.signature(name, args, **options)


# --- tasks ---


@pytest.mark.parametrize("pool", POOLS)
def test_async_tasks_in_a_worker(fleet: Fleet, durable: DurableTasks, pool: str) -> None:
    async def main() -> None:
        names = ["flaky", "again", "calls", "sends"]
        runs = [await durable.asend("where", [0.05]) for _ in range(20)]
        sent = [await durable.asend(name) for name in names]
        found = await asyncio.gather(*(durable.aresult(run, timeout=40) for run in runs))
        assert [run["ids"] for run in found] == [[run.id] * 3 for run in runs]
        # One loop for each process, however many tasks it ran.
        assert len({(run["pid"], run["loop"]) for run in found}) == len({run["pid"] for run in found})
        flaky, again, called, child = [await durable.aresult(result, timeout=40) for result in sent]
        assert (flaky, again, called) == (2, 1, 2)
        assert child["parent"] == sent[3].id
        with pytest.raises(KeyError, match="no such customer"):
            await durable.aresult(await durable.asend("failing"), timeout=40)

    with worker(fleet, pool):
        asyncio.run(main())


def test_time_limits_and_revoke_hold(fleet: Fleet, durable: DurableTasks) -> None:
    async def main() -> None:
        soft = await durable.asend("sleepy", soft_time_limit=1)
        assert await durable.aresult(soft, timeout=40) == "cleaned up"
        hard = await durable.asend("sleepy", time_limit=1)
        with pytest.raises(TimeLimitExceeded):
            await durable.aresult(hard, timeout=40)
        killed = await durable.asend("where", [60])
        await durable.acall(wait_until, lambda: durable.app.control.inspect().active(), description="a run", timeout=40)
        await durable.acall(durable.app.control.revoke, killed.id, terminate=True)
        state = await durable.acall(
            wait_until, lambda: killed.ready() and killed.state, description="its end", timeout=40
        )
        assert state == "REVOKED"

    with worker(fleet, "prefork"):
        asyncio.run(main())


@pytest.mark.parametrize("pool", POOLS)
def test_a_loop_survives_what_tasks_do_to_it(fleet: Fleet, durable: DurableTasks, pool: str) -> None:
    async def main() -> None:
        for kind in ("orphan", "callback", "stop"):
            assert await durable.aresult(await durable.asend("exits", [kind]), timeout=40) == "went on"
        for kind, error in (("broken", "the event loop of async tasks ended"), ("cancelled", "the task was cancelled")):
            with pytest.raises(RuntimeError, match=error):
                await durable.aresult(await durable.asend("exits", [kind]), timeout=40)
        await durable.aresult(await durable.asend("where"), timeout=40)

    with worker(fleet, pool) as running:
        asyncio.run(main())
        assert running.finish() == 0


@pytest.mark.parametrize("kind", ["task", "child"])
@pytest.mark.parametrize("pool", POOLS)
def test_an_exit_ends_an_async_task_as_any_other_task(
    fleet: Fleet, durable: DurableTasks, pool: str, kind: str
) -> None:
    async def main() -> None:
        await durable.asend("exits", [kind])
        assert await durable.aresult(await durable.asend("sleepless", [1]), timeout=40) == 2

    with worker(fleet, pool):
        asyncio.run(main())


@pytest.mark.parametrize("kind", ["await", "gather", "wait_for", "anyio", "TaskGroup", "timeout"])
def test_a_soft_limit_ends_the_children_of_a_task(limits: DurableTasks, kind: str) -> None:
    if kind in ("TaskGroup", "timeout") and not hasattr(asyncio, kind):
        assert sys.version_info < (3, 11)
        return

    async def main() -> None:
        with pytest.raises(SoftTimeLimitExceeded):
            await limits.aresult(await limits.asend("limited", [kind], soft_time_limit=1), timeout=40)
        assert limits.app.AsyncResult(f"{kind} ends").get(timeout=1) == ["cancelled"]

    asyncio.run(main())


def test_pydantic_models_are_converted(fleet: Fleet, durable: DurableTasks) -> None:
    async def main() -> None:
        for name, number in (("typed", 2), ("typed_bound", 3)):
            run = await durable.asend(name, [{"number": 1}])
            assert await durable.aresult(run, timeout=40) == {"number": number}

    with worker(fleet):
        asyncio.run(main())


def test_an_async_task_runs_eagerly_and_is_awaited_as_a_function(fleet: Fleet) -> None:
    app = fleet.app()
    DurableTasks(app)

    @app.task(shared=False)  # type: ignore[untyped-decorator]
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @app.task(shared=False)  # type: ignore[untyped-decorator]
    async def leave() -> None:
        await asyncio.create_task(asyncio.to_thread(sys.exit, 3))

    app.finalize()
    with pytest.raises(SystemExit):
        leave.apply()
    assert double.apply([2]).get() == 4
    assert asyncio.run(double(3)) == 6


def test_calls_of_asgiref_run_in_the_thread_that_waits_for_the_task(fleet: Fleet) -> None:
    app = fleet.app()
    DurableTasks(app)
    go_on, late = threading.Event(), list[asyncio.Task[int]]()

    async def later() -> int:
        await asyncio.to_thread(go_on.wait, 20)
        return await sync_to_async(threading.get_ident)()

    @app.task(shared=False)  # type: ignore[untyped-decorator]
    async def where_calls_run() -> int:
        late.append(asyncio.create_task(later()))
        with pytest.raises(ZeroDivisionError):
            await sync_to_async(lambda: 1 / 0)()
        return await sync_to_async(threading.get_ident)()

    def run() -> bool:
        return bool(where_calls_run.apply().get() == threading.get_ident())

    app.finalize()
    assert run()
    # The loop of the task is not the one of later calls of this thread.
    assert not hasattr(SyncToAsync.threadlocal, "main_event_loop")
    assert async_to_sync(sync_to_async(run))()
    go_on.set()
    wait_until(lambda: all(task.done() for task in late), description="the late calls")
    assert threading.get_ident() not in {task.result() for task in late}


# --- callers ---


def test_a_cancelled_call_is_cancelled_whenever_it_gets_its_turn(durable: DurableTasks) -> None:
    async def main() -> list[Any]:
        asked: list[asyncio.Task[Any]] = []
        turns = async_calls.TURNS.get()
        for _ in range(100):
            for _ in range(async_calls.THREADS.limit):
                await turns.acquire()
            calls = [asyncio.create_task(durable.acall(threading.get_ident)) for _ in range(4)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for steps, call in enumerate(calls):
                turns.release()
                for _ in range(steps):
                    await asyncio.sleep(0)
                asked += [call] * call.cancel()
            for _ in range(async_calls.THREADS.limit - len(calls)):
                turns.release()
            await asyncio.wait(calls)
        for _ in range(async_calls.THREADS.limit):
            await asyncio.wait_for(turns.acquire(), 5)
        return [call for call in asked if not call.cancelled()]

    assert asyncio.run(main()) == []


def test_send_list_cancel_and_results(fleet: Fleet, durable: DurableTasks) -> None:
    async def main() -> None:
        later = await durable.asend("sleepless", [1], countdown=60, task_id="later")
        assert [entry.id for entry in await durable.alist(task="sleepless")] == ["later"]
        assert await durable.acancel("later") is CancelOutcome.CANCELLED
        assert not await durable.alist()
        with pytest.raises(TimeoutError, match="not ready after"):
            await durable.aresult(await durable.asend("where", countdown=60), timeout=0.1)
        assert later.id == "later"
        run = chain(signature(durable, "sleepless", 1), signature(durable, "sleepless"))
        many = group(signature(durable, "sleepless", number) for number in range(10))
        assert await durable.aresult(await durable.asend(run), timeout=40) == 3
        assert await durable.aresult(await durable.asend(many), timeout=40) == list(range(1, 11))
        broken = chain(signature(durable, "failing"), signature(durable, "sleepless", 1, immutable=True))
        with pytest.raises(KeyError):
            await durable.aresult(await durable.asend(broken), timeout=40)

    with worker(fleet):
        asyncio.run(main())


def test_a_thousand_sends_and_results_leave_the_loop_free(fleet: Fleet, durable: DurableTasks) -> None:
    async def main() -> None:
        await durable.asend("sleepless", [0])
        async with free_loop():
            sent = await asyncio.gather(
                *(durable.asend("sleepless", [number], countdown=number % 2, timeout=60) for number in range(1000))
            )
            found = await asyncio.gather(*(durable.aresult(result, timeout=60) for result in sent))
        assert found == list(range(1, 1001))
        # Some may be those of an earlier test.
        own = [thread for thread in threading.enumerate() if thread.name.startswith("redis-queue_")]
        assert 1 <= len(own) <= async_calls.THREADS.limit

    with worker(fleet):
        asyncio.run(main())


def test_a_silent_redis_holds_neither_the_loop_nor_a_deadline(
    fleet: Fleet, durable: DurableTasks, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await durable.asend("where")
        fleet.store.pause()
        try:
            async with free_loop():
                before = time.monotonic()
                found = await asyncio.gather(
                    *(durable.asend("where", countdown=60, timeout=0.5, task_id=f"t{n}") for n in range(100)),
                    return_exceptions=True,
                )
                assert time.monotonic() - before < 2
                assert {type(error) for error in found} == {TimeoutError}
                texts = [str(error) for error in found]
                assert sum("whether it took effect is unknown" in text for text in texts) == async_calls.THREADS.limit
                assert sum("it had no effect" in text for text in texts) == 100 - async_calls.THREADS.limit
                assert "task id t7" in texts[7]
                waiting = asyncio.create_task(durable.acancel("t1"))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
        finally:
            fleet.store.resume()
        ids = {entry.id for entry in await durable.alist(limit=500, timeout=30)}
        assert {f"t{n}" for n in range(100) if "no effect" in texts[n]} & ids == set()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())


def test_a_deadline_must_be_a_duration(durable: DurableTasks) -> None:
    with pytest.raises(ValueError, match="timeout=-1: must be"):
        asyncio.run(durable.asend("where", timeout=-1))
