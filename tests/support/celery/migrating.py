"""An app before and after its migration to redis_queue, for `celery -A tests.support.celery.migrating`.

`BROKER` and `STORE` are URLs; without `MIGRATED` it is plain Celery. Its task records its id and the time.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from redis_queue.celery import DurableTasks

app = Celery("migrating", broker=os.environ["BROKER"])
app.conf.redis_queue_url = os.environ["STORE"]
# Longer than all delays.
app.conf.broker_transport_options = {"visibility_timeout": 10 * 365 * 86400}
if os.environ.get("MIGRATED"):
    DurableTasks(app, leases=False)


@app.task(name="migrating.note", bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
def note(self: Any) -> None:
    """Record the id and the time of this run."""
    with redis.Redis.from_url(os.environ["STORE"]) as client:
        client.rpush("noted", f"{self.request.id} {time.time()}")
