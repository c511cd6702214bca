"""An app with ``async def`` tasks, for real workers; it is configured as `delaying_app`."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from typing import Any

from celery import Celery, signals
from celery.exceptions import SoftTimeLimitExceeded

from redis_queue.celery import DurableTasks

app = Celery("delaying", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"], set_as_current=False)
app.conf.update(
    redis_queue_url=os.environ["STORE_URL"],
    task_default_queue=os.environ["QUEUE"],
    control_exchange=f"{os.environ['QUEUE']}-control",
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
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
    except SoftTimeLimitExceeded:
        return "cleaned up"
    return "slept"


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
