"""An app with unique tasks of each kind, in the process of a test, and what it leaves in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import Unique
from redis_queue.admission.owners import Owners, field_of
from redis_queue.celery import DurableTasks
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.fetching import Taker, connected
from tests.support.celery.flows import KEYS, QUEUE, url_of
from tests.support.servers import RedisServer


@contextmanager
def app_of(server: RedisServer, **settings: Any) -> Iterator[Celery]:
    """Make an app with a task of each kind, and one that is not unique."""
    app = Celery("unique", broker=url_of(server), set_as_current=False)
    app.conf.update({"task_default_queue": QUEUE, "task_ignore_result": True, **settings})
    DurableTasks(app)
    kinds = {
        "end": Unique("order:{order}"),
        "start": Unique("order:{order}", until="start"),
        "latest": Unique("order:{order}", until="start", on_conflict="replace"),
        "strict": Unique("order:{order}", on_conflict="raise"),
        "hourly": Unique("order:{order}", until=timedelta(hours=1)),
        "single": Unique(),
    }

    def define(name: str, **options: Any) -> None:
        @app.task(name=name, shared=False, **options)  # type: ignore[untyped-decorator]
        def task(order: int = 0, text: str = "") -> None:
            """Do nothing."""

    define("plain")
    for name, unique in kinds.items():
        define(name, unique=unique)
    try:
        yield app
    finally:
        app.close()


@contextmanager
def taking(server: RedisServer) -> Iterator[Taker]:
    """Take messages as a worker with many processes."""
    with connected(server) as connection:
        taker = Taker(connection, [QUEUE], 100, processes=100)
        yield taker


def owners(app: Celery) -> Owners:
    return StoredTasks.of(app).unique


def owned(app: Celery) -> dict[tuple[str, str], str]:
    return {(owner.task, owner.key): owner.state for owner in owners(app).list()}


def outdate(client: redis.Redis, task: str, key: str) -> None:
    """Let the time of an owner pass."""
    assert client.zadd(KEYS.owner_ends, {field_of(task, key): 1}, xx=True, ch=True)


def traces(client: redis.Redis) -> list[bytes]:
    """Return the keys with traces of messages and owners, without notes that are forgotten after an hour."""
    found = [key for key in (KEYS.running, KEYS.backlog, KEYS.held, *OF_OWNERS) if client.exists(key)]
    seconds, _ = client.time()
    has_marks = client.zcount(KEYS.replaced, (seconds + 3700) * 1000, "+inf") > 0
    return [key for key in found if has_marks or key != KEYS.replaced]


def settle_all(taker: Taker, client: redis.Redis) -> None:
    """Settle all messages, and check that nothing of them is left."""
    taker.settle()
    assert not traces(client)


OF_OWNERS = (KEYS.owners, KEYS.owner_ids, KEYS.owner_ends, KEYS.replaced, KEYS.owned)


def send(app: Celery, task: str, *args: Any, **options: Any) -> str:
    """Send a task; return the id of the result."""
    return str(app.tasks[task].apply_async(args, **options).id)


def dispatch(app: Celery, *ids: str) -> None:
    """Send what is due, and the stored tasks *ids*."""
    for id_ in ids:
        StoredTasks.of(app).run_now(id_)
    Dispatcher(app, StoredTasks.of(app).queue).run_once()


class KilledError(BaseException):
    """Stands for the end of a process."""


def killed(*_: Any, **__: Any) -> None:
    """End a process."""
    raise KilledError


def interrupt(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], methods: dict[tuple[type, str], Any], call: Any
) -> None:
    """Call *call* with other *methods*; it ends with *error*."""
    with monkeypatch.context() as patch:
        for (kind, name), method in methods.items():
            patch.setattr(kind, name, method)
        with pytest.raises(error):
            call()


UNCONFIRMED = {(Owners, "confirm"): killed, (Owners, "withdraw"): killed}
