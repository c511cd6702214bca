"""The walk of a delayed call: how many of our modules it enters before its script is sent."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import redis
from celery import Celery

import redis_queue
from redis_queue.celery import DurableTasks
from tests.support.servers import RedisServer

ROOT = f"{Path(redis_queue.__file__).parent}/"
SCRIPTS = "store/scripts.py"
MOST = 14


def test_a_countdown_enters_few_modules_before_its_script(redis_server: RedisServer, client: redis.Redis) -> None:
    app = Celery("walk", broker=f"redis+socket://{redis_server.socket}", set_as_current=False)
    DurableTasks(app)

    @app.task(name="walk", shared=False)  # type: ignore[untyped-decorator]
    def task() -> None:
        """Do nothing."""

    walk: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        place = frame.f_code.co_filename.removeprefix(ROOT)
        if event == "call" and place != frame.f_code.co_filename and SCRIPTS not in walk and place not in walk:
            walk.append(place)

    # The first call opens connections and computes what stays.
    task.apply_async(countdown=60)
    sys.setprofile(note)
    try:
        task.apply_async(countdown=60)
    finally:
        sys.setprofile(None)
        app.close()
    assert walk[-1] == SCRIPTS
    assert len(walk) - 1 <= MOST, "\n".join(walk)
