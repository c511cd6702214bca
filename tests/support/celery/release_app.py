"""An app whose broker, store and results are one Redis: it wrote the data of a release, and its workers read them.

`python -m tests.support.store.release` and workers set BROKER_URL. Each task records its name and id in the list `RAN`.
"""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

from redis_queue import Flow, Unique
from redis_queue.celery import DurableTasks
from tests.support.store.release import RAN

URL = os.environ["BROKER_URL"]

app = Celery("release", broker=URL, set_as_current=False)
app.conf.update(
    accept_content=["json", "msgpack"],
    broker_connection_retry_on_startup=True,
    redis_queue_delay_queue="scheduled",
    redis_queue_task_lease=6,
    task_default_queue="shop",
    task_ignore_result=True,
    visibility_timeout=60,
)
durable = DurableTasks(app)


@app.task(name="plain", shared=False)  # type: ignore[untyped-decorator]
def plain(*args: Any, **kwargs: Any) -> None:
    with redis.Redis.from_url(URL.replace("redis+socket", "unix")) as client:
        client.rpush(RAN, f"{args} {kwargs}")


@app.task(name="flowing", shared=False, flow=Flow(limit=1, rate="100/s", fair="{shop}"))  # type: ignore[untyped-decorator]
def flowing(name: str, shop: str = "7") -> None:
    plain.run(name)


app.task(name="single", shared=False, unique=Unique())(plain.run)
