"""An app with flows, whose tasks tell a referee when they enter and leave.

Tests configure it with environment variables: BROKER_URL, SETTINGS as JSON, REFEREE_URL, and FLOWLESS for
an app without a flow in its code.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery

from redis_queue import Flow
from redis_queue.celery import DurableTasks
from tests.support.celery.flow_names import AGAIN, EVENTS, FAIL, GATE, NOTHING, SYNC, WORK

URL = os.environ["BROKER_URL"]
REFEREE = os.environ.get("REFEREE_URL", URL)
FLOWLESS = "FLOWLESS" in os.environ

app = Celery("flows", broker=URL, set_as_current=False)
app.conf.update(
    {
        "task_default_queue": "flows",
        "broker_connection_retry_on_startup": True,
        "task_ignore_result": True,
        **json.loads(os.environ.get("SETTINGS", "{}")),
    }
)
delayed = DurableTasks(app)

TELL = """
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', ms))
"""

_clients: dict[int, redis.Redis] = {}


def client() -> redis.Redis:
    if os.getpid() not in _clients:
        _clients[os.getpid()] = redis.Redis.from_url(REFEREE.replace("redis+socket", "unix"))
    return _clients[os.getpid()]


def run(task: Any, key: str, seconds: float, *, hold: bool) -> None:
    client().eval(TELL, 1, EVENTS, f"enter {key} {task.request.id}")
    if hold:
        while client().blpop([GATE], timeout=1) is None:
            pass
    elif seconds:
        time.sleep(seconds)
    client().eval(TELL, 1, EVENTS, f"leave {key} {task.request.id}")


@app.task(bind=True, name=WORK, shared=False)  # type: ignore[untyped-decorator]
def work(self: Any, key: str = "-", seconds: float = 0.0, *, hold: bool = False) -> None:
    """Work for *seconds*, or until the test lets it end."""
    run(self, key, seconds, hold=hold)


@app.task(bind=True, name=SYNC, shared=False, flow=None if FLOWLESS else Flow(limit=1, key="shop:{key}"))  # type: ignore[untyped-decorator]
def sync(self: Any, key: str = "-", seconds: float = 0.0, *, hold: bool = False) -> None:
    """Work alone for its key."""
    run(self, key, seconds, hold=hold)


@app.task(bind=True, name=AGAIN, shared=False, max_retries=5)  # type: ignore[untyped-decorator]
def again(self: Any, times: int, countdown: float = 0.0, *, hold: bool = False) -> None:
    """Retry *times* times; with *hold*, the test lets the first run end."""
    run(self, "again", 0.0, hold=hold and not self.request.retries)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)


@app.task(name=FAIL, shared=False)  # type: ignore[untyped-decorator]
def fail() -> None:
    raise ValueError("on purpose")


@app.task(name=NOTHING, shared=False)  # type: ignore[untyped-decorator]
def nothing() -> None:
    """Do nothing."""
