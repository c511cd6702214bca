"""An app is made ready for a test, and given back as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from celery import _state

from redis_queue.celery.delayed_tasks import DelayedTasks
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import ATTRIBUTE
from redis_queue.delay.model import Conflict, Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.delay.shards import Shards
from redis_queue.delay.writer import EntryWriter
from redis_queue.store.records import Clock
from redis_queue.testing.overrides import Overrides
from redis_queue.testing.results import MemoryResults
from redis_queue.testing.sending import Take, sending_amqp

if TYPE_CHECKING:
    from celery import Celery

_BROKER: Final = "memory://"


class OrderedWriter(EntryWriter):
    """Remembers the order in which entries were pushed; an entry itself has only a millisecond."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards)
        self.order: dict[str, int] = {}
        self._count = itertools.count(1)

    def push(self, items: Iterable[Push | Any], on_conflict: Conflict) -> Iterator[tuple[str, int]]:
        """Store *items* and number them."""
        for id_, flag in super().push(items, on_conflict):
            self.order[id_] = next(self._count)
            yield id_, flag


class TravelQueue(DelayQueue):
    """A DelayQueue that knows the order in which its entries were pushed."""

    _writer_class = OrderedWriter
    _writer: OrderedWriter

    @property
    def order(self) -> dict[str, int]:
        """Position of each id."""
        return self._writer.order


class TravelStore(Store):
    """The store of an app whose delayed tasks go by *clock*."""

    def __init__(self, app: Celery, clock: Clock) -> None:
        super().__init__(app)
        self._clock = clock

    def delay_queue(self) -> TravelQueue:
        """Return the DelayQueue whose entries are task calls."""
        found = super().delay_queue()
        return TravelQueue(found.name, found.client, settings=found.settings, clock=self._clock)


def install(
    app: Celery,
    overrides: Overrides,
    *,
    url: str,
    clock: Clock,
    now: Callable[[], datetime],
    take: Take,
    after_send: Callable[[], None],
    before_wait: Callable[[str], None],
) -> DelayedTasks:
    """Let *app* delay in the Redis *url* by *clock*, send past *take*, and need neither broker nor backend.

    What was there before is noted in *overrides*. *after_send* is called when a send is done, *before_wait* for each
    task whose result is waited for.
    """
    _configure(app, overrides, url)
    attributes = vars(app)
    before = type(app.amqp)  # asked for first: it may be what brings DelayedTasks
    if ATTRIBUTE not in attributes:
        _remember_parts(app, overrides)
    overrides.put(attributes, "amqp", sending_amqp(app, before, take, now))
    overrides.put(attributes, "_pool", None)
    overrides.put(attributes, "_backend_cache", MemoryResults(app, before_wait))
    overrides.put(attributes, "redis_queue_store", TravelStore(app, clock))
    overrides.put(attributes, "send_task", _followed(app.send_task, after_send))
    delayed = DelayedTasks(app)
    for name in ("settings", "queue", "_lists"):
        overrides.drop(vars(delayed), name)
    delayed.attach(app.amqp)
    # Shared tasks are those of the current app, and Celery's fixture celery_app does not make its own one that.
    overrides.put(vars(_state._tls), "current_app", app)
    # Each thread has a current app of its own; those that have none take the default one.
    overrides.put(vars(_state), "default_app", app)
    return delayed


def _configure(app: Celery, overrides: Overrides, url: str) -> None:
    settings = {
        "task_always_eager": False,  # what is sent has to be seen: the test runs it itself
        **dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url"), _BROKER),
        "broker_transport_options": {},
        "broker_use_ssl": False,
        "redis_queue_url": url,
        "redis_queue_min_delay": 0,
        "redis_queue_on_store_error": "raise",
        "redis_queue_dispatch": False,  # nothing but the test moves what is due
    }
    _ = app.conf.task_always_eager  # read at first use; what is changed before that would be lost
    for name, value in settings.items():
        overrides.put(app.conf.changes, name, value)


def _remember_parts(app: Celery, overrides: Overrides) -> None:
    """Note what an app without DelayedTasks gets by them."""
    overrides.keep(app.steps["worker"])
    overrides.keep(app.steps["consumer"])
    overrides.keep(app.user_options["worker"])
    overrides.drop(vars(app), ATTRIBUTE)
    overrides.drop(vars(app), "control")
    overrides.put(vars(app), "control_cls", app.control_cls)


def _followed(send: Callable[..., Any], after_send: Callable[[], None]) -> Callable[..., Any]:
    def send_task(*args: Any, **kwargs: Any) -> Any:
        result = send(*args, **kwargs)
        after_send()
        return result

    return send_task
