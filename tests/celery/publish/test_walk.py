"""The walks of a delayed call and of a cancel: how many of our modules they enter before their script is sent."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis
from celery import Celery

import redis_queue
from redis_queue.celery import DurableTasks
from redis_queue.web import dashboard
from tests.support.servers import RedisServer
from tests.support.web.browser import Browser

ROOT = f"{Path(redis_queue.__file__).parent}/"
ENDS = ("store/scripts.py", "store/links.py")
ID = "task-of-a-row"
MOST = {"delay/push": 14, "delay/cancel": 10}


@pytest.mark.parametrize("script", MOST)
def test_a_walk_enters_few_modules(redis_server: RedisServer, client: redis.Redis, script: str) -> None:
    app = Celery("walk", broker=f"redis+socket://{redis_server.socket}", set_as_current=False)
    DurableTasks(app)

    @app.task(name="walk", shared=False)  # type: ignore[untyped-decorator]
    def task() -> None:
        """Do nothing."""

    browser = Browser(dashboard(app, secret_key="a key for tests only", allow_write=True))
    walk: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        place, given = frame.f_code.co_filename.removeprefix(ROOT), frame.f_locals
        if event == "call" and place != frame.f_code.co_filename and script not in walk:
            if place in ENDS:
                walk.extend([script] * (given.get("name") == script))
            # A page does much besides: on the way is what gets the id of the row.
            elif place not in walk and (script == "delay/push" or ID in repr({**given, "self": None})):
                walk.append(place)

    # The first call opens connections and computes what stays.
    for profile in (None, note):
        task.apply_async(countdown=60, task_id=ID)
        form = browser.get(f"/entry?kind=delay&queue=scheduled&id={ID}").form("/preview")
        asked = browser.send(form, ("verb", "cancel"))
        sys.setprofile(profile)
        try:
            task.apply_async(countdown=60) if script == "delay/push" else browser.send(asked.confirmation)
        finally:
            sys.setprofile(None)
    app.close()
    assert walk.pop() == script
    assert len(walk) <= MOST[script], "\n".join(walk)
