"""The queues and the consumer for asyncio: what the loop, its tasks and their cancellation add to the synchronous ones.

Their models and the other tests of the consumer run for both: `tests/property`, `tests/queue`.
"""

import asyncio
import contextlib
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import redis_queue.delay.model
from redis_queue import ConfigurationError, InvalidValueError, Message, RedisQueue, StoreUnavailableError, aio, connect
from redis_queue.aio.queues import LEFT_OUT
from tests.support.loops import FREE, free_loop, until
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until


@pytest.mark.parametrize("name", ["RedisQueue", "DelayQueue"])
def test_each_method_is_there_with_its_arguments(name: str) -> None:
    sync, on_loop = getattr(redis_queue, name), getattr(aio, name)
    public = {
        attribute for attribute, _ in inspect.getmembers(sync, inspect.isfunction) if not attribute.startswith("_")
    }
    assert public - set(LEFT_OUT) - set(dir(on_loop)) == set()
    for attribute in public - set(LEFT_OUT):
        assert inspect.signature(getattr(on_loop, attribute)) == inspect.signature(getattr(sync, attribute))


def test_a_lease_a_loop_over_messages_and_one_over_entries(client: redis.Redis) -> None:
    async def main() -> None:
        async with aio.RedisQueue("work", client) as queue, aio.DelayQueue("later", client) as later:
            await queue.put_many([1, 2, 3])
            async with queue.lease() as message:
                assert must(message).body == 1
            with pytest.raises(ZeroDivisionError):
                async with queue.lease():
                    raise ZeroDivisionError
            assert (await queue.stats()).ready == 2
            async with contextlib.aclosing(queue.consume(timeout=5)) as messages:
                assert (await anext(messages)).body == 2
            seen = [message.body async for message in queue.consume(timeout=0.05)]
            assert seen == [2, 3]
            ids = await later.push_many([redis_queue.delay.model.Push("x", delay=60) for _ in range(3)])
            assert {entry.id async for entry in later} == set(ids)
            page = await later.list(limit=1)
            assert [entry.id async for entry in later.scan(after=aio.DelayQueue.cursor(page[0]))] == ids[1:]

    asyncio.run(main())


def test_calls_of_500_tasks_do_not_refuse_each_other(client: redis.Redis) -> None:
    """All of them share a thread: with one slot, a later call that overtakes an earlier one would have it refused."""

    async def main() -> None:
        async with aio.RedisQueue("work", client, max_body=100_000) as queue:

            async def work(number: int) -> Any:
                # The larger, the later it arrives.
                await queue.put("x" * (number % 7) * 9_000 + str(number))
                message = must(await queue.get(timeout=20))
                assert await queue.ack(message)
                return int(message.body.lstrip("x"))

            assert sorted(await asyncio.gather(*map(work, range(500)))) == list(range(500))
            assert len(queue.sync._records._numbered._callers) <= 500
            before = set(queue.sync._records._numbered._callers)
            await asyncio.gather(*map(work, range(50)))
            assert set(queue.sync._records._numbered._callers) == before  # names of slots are used again
        assert (await queue.stats()).in_flight == 0
        await queue.close()

    asyncio.run(main())


CALLS: dict[str, Callable[[Any, Message], Any]] = {
    "put": lambda queue, _: queue.put("new"),
    "put_many": lambda queue, _: queue.put_many(range(1200)),
    "get": lambda queue, _: queue.get(),
    "ack": lambda queue, held: queue.ack(held),
    "nack": lambda queue, held: queue.nack(held),
    "extend": lambda queue, held: queue.extend(held),
    "stats": lambda queue, _: queue.stats(),
    "peek": lambda queue, _: queue.peek(5),
    "purge": lambda queue, _: queue.purge(),
    "consume": lambda queue, _: anext(queue.consume()),
    "lease": lambda queue, _: queue.lease().__aenter__(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_cancelled_call_ends_at_once_and_leaves_the_queue_usable(server: RedisServer, name: str) -> None:
    """A silent Redis holds each call: the loop stays free, and a deadline of the caller holds."""

    async def main(proxy: FaultProxy) -> None:
        queue = aio.RedisQueue("work", proxy.url)
        await queue.put("held")
        held = must(await queue.get())
        proxy.mode = "blackhole"
        async with free_loop():
            for _ in range(3):
                before = time.monotonic()
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(CALLS[name](queue, held), 0.1)
                assert time.monotonic() - before < 0.1 + FREE
        proxy.mode = "pass"
        # What was abandoned arrives now, too: calls made later win.
        await queue.put("after", dedupe_key="after")
        assert await queue.look("after") is not None
        assert (await queue.stats()).in_flight <= 5
        await queue.destroy()
        await queue.close()

    with FaultProxy(server.address) as proxy:
        asyncio.run(main(proxy))


def test_a_silent_redis_is_an_error_within_the_timeouts(server: RedisServer) -> None:
    async def main() -> None:
        queue = aio.RedisQueue("work", connect(server.url, socket_timeout=0.3))
        await queue.put(1)
        server.pause()
        async with free_loop():
            found = await asyncio.gather(*(queue.put(2) for _ in range(100)), return_exceptions=True)
        server.resume()
        assert {type(error) for error in found} == {StoreUnavailableError}
        assert all("unknown" in str(error) for error in found)
        await queue.close()

    asyncio.run(main())


def test_one_queue_on_several_loops_one_after_the_other_and_at_once(client: redis.Redis) -> None:
    queue = aio.RedisQueue("work", client)

    async def work(numbers: range) -> None:
        await asyncio.gather(*map(queue.put, numbers))
        await queue.close()

    for start in (0, 10):
        asyncio.run(work(range(start, start + 10)))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda start: asyncio.run(work(range(start, start + 10))), (20, 30, 40, 50)))
    assert sorted(message.body for message in queue.sync.peek(500)) == list(range(60))


def test_a_loop_may_drop_a_task_that_waits(client: redis.Redis) -> None:
    """The synchronous code behind it ends, too."""
    queue = aio.RedisQueue("work", client)
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            queue.sync.get()
        except BaseException as error:
            ends.append(error)
            raise

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(aio.run(wait))
    loop.run_until_complete(asyncio.wait([waiting], timeout=0.2))
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = waiting.get_coro()
    with contextlib.suppress(RuntimeError):  # of redis-py: it closes its connection as if a loop ran
        coroutine.close()
    assert len(ends) == 1
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    asyncio.run(queue.put(1))


def test_a_child_process_makes_its_own_connections_and_slots(client: redis.Redis) -> None:
    queue = aio.RedisQueue("work", client)
    asyncio.run(queue.put("parent"))
    child = os.fork()
    if not child:
        os._exit(0 if asyncio.run(queue.put("child")) else 1)
    for number in range(20):
        asyncio.run(queue.put(number))
    assert os.waitpid(child, 0)[1] == 0
    assert len(queue.sync) == 22


def test_other_tasks_are_not_part_of_a_call_that_made_them(client: redis.Redis) -> None:
    """A task has a copy of the context in which it was made: synchronous calls in it are ordinary ones."""
    made: list[asyncio.Task[Any]] = []

    async def other(queue: aio.RedisQueue) -> int:
        queue.sync.put("by the other")
        return len(queue.sync)

    async def main() -> None:
        async with aio.RedisQueue("work", client) as queue:

            def key(body: Any) -> str:
                made.append(asyncio.create_task(other(queue)))
                return str(body)

            await queue.put_many([1], dedupe_key=key)
            assert await made[0] in (1, 2)
            assert len(queue.sync) == 2

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["cluster_client", "sentinel_client"])
def test_a_cluster_and_sentinel(request: pytest.FixtureRequest, kind: str) -> None:
    client = request.getfixturevalue(kind)

    async def main() -> None:
        queue, later = aio.RedisQueue("work", client), aio.DelayQueue("later", client, shards=3)
        async with queue, later, free_loop():
            waiting = asyncio.create_task(queue.get(timeout=20))
            await asyncio.gather(*map(queue.put, range(20)))
            assert must(await waiting).body in range(20)
            ids = [await later.push(number) for number in range(9)]
            assert sorted([entry.id for entry in await later.pop(9)]) == sorted(ids)

    asyncio.run(main())


def test_what_cannot_be_used_is_refused() -> None:
    class Own(redis.Connection):
        pass

    client = redis.Redis.from_pool(redis.ConnectionPool(connection_class=Own))
    with pytest.raises(ConfigurationError, match="connection_class=Own: must be"):
        asyncio.run(aio.RedisQueue("work", client).put(1))
    client = connect("rediss://localhost:1", check=False, ssl_validate_ocsp=True)
    with pytest.raises(ConfigurationError, match="option ssl_validate_ocsp"):
        asyncio.run(aio.RedisQueue("work", client).put(1))
    with pytest.raises(ConfigurationError, match="must be a Redis URL"):
        aio.RedisQueue("work", redis.asyncio.Redis())  # type: ignore[arg-type]


def test_without_greenlet_the_import_names_the_extra() -> None:
    code = "import sys; sys.modules['greenlet'] = None; import redis_queue.aio"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'celery-redis-queue[aio]'" in found.stderr


# --- the consumer ---


@pytest.mark.parametrize("handler", [None, print, lambda _: None])
def test_a_handler_must_be_a_coroutine_function(client: redis.Redis, handler: Any) -> None:
    with pytest.raises(InvalidValueError, match="must be an `async def` function"):
        aio.Consumer(aio.RedisQueue("work", client), handler)


def test_handlers_run_at_once_on_the_loop_in_the_context_of_run(client: redis.Redis) -> None:
    user: ContextVar[str] = ContextVar("user")
    seen: list[tuple[str, int]] = []
    running = most = 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert threading.current_thread() is threading.main_thread()
        await asyncio.sleep(0.01)
        seen.append((user.get(), message.body))
        running -= 1

    async def main() -> None:
        async with aio.RedisQueue("work", client) as queue:
            await queue.put_many(range(100))
            consumer = aio.Consumer(queue, handle, concurrency=20, batch=5)
            user.set("ada")
            task = asyncio.create_task(consumer.run())
            await until(lambda: len(seen) == 100)
            consumer.stop()
            await task
            assert (await queue.stats()).acked == 100

    asyncio.run(main())
    assert sorted(seen) == [("ada", number) for number in range(100)]
    assert 10 < most <= 20


def test_a_handler_that_blocks_the_loop_keeps_its_lease(client: redis.Redis) -> None:
    started, held = list[int](), RedisQueue("work", client).in_flight

    async def handle(message: Message) -> None:
        started.append(message.deliveries)
        end = held()[0].expires_at + timedelta(seconds=1.2)
        wait_until(lambda: held()[0].expires_at >= end, description="four leases")

    async def main() -> None:
        async with aio.RedisQueue("work", client, lease=0.3, poll_interval=0.05) as queue:
            await queue.put(1)
            consumer = aio.Consumer(queue, handle, concurrency=3)
            task = asyncio.create_task(consumer.run())
            await until(lambda: queue.sync.stats().acked)
            consumer.stop()
            await task

    asyncio.run(main())
    assert started == [1]


@pytest.mark.parametrize("how", ["cancel", "grace"])
def test_cancelled_handlers_give_their_messages_back(client: redis.Redis, how: str) -> None:
    ends: list[str] = []

    async def handle(message: Message) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ends.append(message.body)

    async def main() -> None:
        async with aio.RedisQueue("work", client) as queue:
            await queue.put_many(["a", "b"])
            consumer = aio.Consumer(queue, handle, concurrency=2, grace=0.1 if how == "grace" else 60)
            task = asyncio.create_task(consumer.run())
            await until(lambda: queue.sync.stats().in_flight == 2 and len(consumer._running) == 2)
            if how == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                consumer.stop()
                await task
            await until(lambda: queue.sync.stats().ready == 2)
            assert sorted(ends) == ["a", "b"]

    asyncio.run(main())
