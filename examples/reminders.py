"""Reminders over HTTP with FastAPI: stored, listed, cancelled and awaited without blocking the event loop.

``uvicorn examples.reminders:api`` needs ``pip install '.[aio]' fastapi uvicorn`` and the Redis in REDIS_URL.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from redis_queue import Message, aio
from redis_queue.celery import DurableTasks

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

celery_app = Celery("reminders", broker=URL, backend=URL)
durable = DurableTasks(celery_app)


@celery_app.task(name="reminders.remind", shared=False)  # type: ignore[untyped-decorator]
async def remind(to: str, text: str) -> str:
    """Send a reminder; here, sending means returning its text. Workers run it on their event loop."""
    await asyncio.sleep(0)
    return f"{to}: {text}"


seen = aio.RedisQueue("seen", URL)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Check Redis on startup, and handle the messages of a queue as long as the server runs."""
    async with seen:
        consumer = aio.Consumer(seen, note, concurrency=10, grace=5)
        running = asyncio.create_task(consumer.run())
        yield
        consumer.stop()
        await running


async def note(message: Message) -> None:
    """Note that somebody has seen a reminder."""
    counts[message.body] = counts.get(message.body, 0) + 1


counts: dict[str, int] = {}
api = FastAPI(lifespan=lifespan)


class Reminder(BaseModel):
    """A reminder for somebody, in so many seconds."""

    to: str
    text: str
    seconds: float = 60


@api.post("/reminders", status_code=201)
async def create(reminder: Reminder) -> dict[str, str]:
    """Store a reminder until it is due."""
    try:
        result = await durable.asend(remind, [reminder.to, reminder.text], countdown=reminder.seconds, timeout=5)
    except (TimeoutError, ConnectionError) as error:
        raise HTTPException(503, "try again later") from error
    return {"id": result.id}


@api.get("/reminders")
async def waiting() -> list[dict[str, Any]]:
    """List the reminders that wait."""
    return [{"id": entry.id, "due_at": entry.due_at} for entry in await durable.alist(task=remind.name, timeout=5)]


@api.get("/reminders/{id_}")
async def sent(id_: str) -> dict[str, str]:
    """Wait for a reminder to be sent, for two seconds."""
    try:
        return {"sent": await durable.aresult(celery_app.AsyncResult(id_), timeout=2)}
    except TimeoutError:
        raise HTTPException(404, "not sent yet") from None


@api.delete("/reminders/{id_}")
async def cancel(id_: str) -> dict[str, bool]:
    """Cancel a reminder."""
    return {"cancelled": bool(await durable.acancel(id_, timeout=5))}


@api.post("/seen/{name}", status_code=202)
async def saw(name: str) -> None:
    """Put a message into the queue."""
    await seen.put(name)


@api.get("/seen")
async def numbers() -> dict[str, int]:
    """Tell how often each reminder was seen."""
    return counts
