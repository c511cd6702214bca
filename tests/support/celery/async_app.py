"""An app with ``async def`` tasks, for real workers; it is configured as `delaying_app`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
from celery import Celery, signals
from pydantic import BaseModel

from redis_queue.celery import DurableTasks

app = Celery("delaying", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"], set_as_current=False)
app.conf.update(
    redis_queue_url=os.environ["STORE_URL"],
    task_default_queue=os.environ["QUEUE"],
    control_exchange=f"{os.environ['QUEUE']}-control",
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ.get("SETTINGS", "{}")),
)
durable = DurableTasks(app)
prepared: ContextVar[str] = ContextVar("prepared", default="")


@signals.task_prerun.connect  # type: ignore[untyped-decorator]
def prepare(task_id: str, **_: Any) -> None:
    """Set a context variable, as middleware would."""
    prepared.set(task_id)


@app.task(bind=True, name="where", shared=False)  # type: ignore[untyped-decorator]
async def where(self: Any, seconds: float = 0.0) -> dict[str, Any]:
    """Say in which process and on which loop this ran, and what a task that it made sees of its request."""

    async def child() -> Any:
        await asyncio.sleep(seconds)
        return self.request.id

    made = asyncio.create_task(child())
    await asyncio.sleep(seconds)
    return {
        "pid": os.getpid(),
        "loop": id(asyncio.get_running_loop()),
        "ids": [self.request.id, await made, prepared.get()],
        "parent": self.request.parent_id,
    }


@app.task(name="flaky", shared=False, bind=True, autoretry_for=(ValueError,), default_retry_delay=0)  # type: ignore[untyped-decorator]
async def flaky(self: Any) -> int:
    """Fail twice."""
    await asyncio.sleep(0)
    if self.request.retries < 2:
        raise ValueError("not yet")
    return int(self.request.retries)


@app.task(name="again", shared=False, bind=True)  # type: ignore[untyped-decorator]
async def again(self: Any) -> int:
    """Retry once."""
    await asyncio.sleep(0)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(name="failing", shared=False)  # type: ignore[untyped-decorator]
async def failing() -> None:
    await asyncio.sleep(0)
    raise KeyError("no such customer")


@app.task(name="sleepy", shared=False)  # type: ignore[untyped-decorator]
async def sleepy() -> str:
    """Sleep until the soft time limit."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "cleaned up"
    return "slept"


@app.task(name="limited", shared=False)  # type: ignore[untyped-decorator]
async def limited(kind: str) -> None:
    """Wait for a child in a way of asyncio until the soft time limit; say at the child's end that it was cancelled."""
    ends: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    waits: dict[str, Any] = {
        "await": child,
        "gather": lambda: asyncio.gather(child(), child()),
        "wait_for": lambda: asyncio.wait_for(child(), 50),
        "TaskGroup": partial(in_task_group, child),
        "anyio": partial(in_anyio, child),
        "timeout": partial(in_timeout, child),
    }
    try:
        await waits[kind]()
    finally:
        app.backend.store_result(f"{kind} ends", sorted(set(ends)), "SUCCESS")


async def in_task_group(child: Any) -> None:
    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
        group.create_task(child())
        group.create_task(child())


async def in_anyio(child: Any) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(child)
        group.start_soon(child)


async def in_timeout(child: Any) -> None:
    async with asyncio.timeout(50):  # type: ignore[attr-defined]
        await child()


@app.task(name="exits", shared=False)  # type: ignore[untyped-decorator]
async def exits(kind: str) -> str:
    """End the process in a way of asyncio."""

    async def leave() -> None:
        sys.exit(3)

    async def pause() -> None:
        await asyncio.sleep(0.2)

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    ways: dict[str, Any] = {
        "task": lambda: sys.exit(3),
        "child": lambda: asyncio.create_task(leave()),
        "orphan": lambda: loop.call_soon(asyncio.create_task, leave()) and pause(),
        "callback": lambda: loop.call_soon(sys.exit, 3) and pause(),
        "stop": lambda: loop.stop() or pause(),
        "broken": lambda: loop._selector.close() or pause(),  # type: ignore[attr-defined]
        "cancelled": lambda: task.cancel() and pause(),  # type: ignore[union-attr]
    }
    await ways[kind]()
    return "went on"


class Model(BaseModel):
    number: int


@app.task(name="typed", shared=False, pydantic=True)  # type: ignore[untyped-decorator]
async def typed(model: Model) -> Model:
    await asyncio.sleep(0)
    return Model(number=model.number + 1)


@app.task(name="typed_bound", shared=False, pydantic=True, bind=True, autoretry_for=(KeyError,), default_retry_delay=0)  # type: ignore[untyped-decorator]
async def typed_bound(self: Any, model: Model) -> Model:
    await asyncio.sleep(0)
    if not self.request.retries:
        raise KeyError("again")
    return Model(number=(await typed(model)).number + self.request.retries)


@app.task(name="sends", shared=False)  # type: ignore[untyped-decorator]
async def sends() -> Any:
    return await durable.aresult(await durable.asend("where"), timeout=20)


@app.task(name="calls", shared=False)  # type: ignore[untyped-decorator]
async def calls() -> Any:
    return await sleepless(1)


@app.task(name="sleepless", shared=False)  # type: ignore[untyped-decorator]
async def sleepless(number: int) -> int:
    """Return the next number."""
    await asyncio.sleep(0)
    return number + 1
