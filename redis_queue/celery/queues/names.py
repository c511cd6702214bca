"""Names of the queues of an app: those that it knows, and the one from which a message came."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from celery import Celery
from celery.app.task import extract_exec_options

from redis_queue.basics.lazy_property import cache_key
from redis_queue.celery.message.destinations import ForbiddenDestinationError, check_reserved
from redis_queue.store.keys import MAX_NAME

MAX_TASKS: Final = 10_000
"""Maximum number of tasks whose routes are read."""

_INTERNAL: Final = "celery."
"""First part of the names of Celery's own tasks."""


def known_queues(app: Celery) -> set[str]:
    """Return the configured queues of *app*, its default queue, and the queues of its tasks. Connects to no server.

    Queues that only a router function of the app names for some arguments are not in it.
    """
    # Not app.amqp.queues, to which a route to an unknown queue would add it.
    queues = app.amqp.Queues(app.conf.task_queues or (), create_missing=True)
    router = app.amqp.Router(queues=queues, create_missing=True)
    found = {app.conf.task_default_queue, *queues, *list(app.amqp.queues)}
    for name in _task_names(app)[:MAX_TASKS]:
        if not name.startswith(_INTERNAL):
            # A router is a function of the app, which may raise anything.
            with contextlib.suppress(Exception):
                found.add(_queue_of(router, app.tasks[name]))
    return set(readable(found))


def readable(names: Iterable[Any]) -> list[str]:
    """Return those of *names* that a queue of tasks can have: not reserved, printable, at most 200 characters."""
    return [name for name in names if _is_readable(name)]


def _task_names(app: Celery) -> list[str]:
    # To load the tasks runs code of the app; without them, the other queues are still known.
    with contextlib.suppress(Exception):
        app.loader.import_default_modules()
        return list(app.tasks)
    return []


def _is_readable(name: Any) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return False
    try:
        check_reserved(name)
    except ForbiddenDestinationError:
        return False
    return True


def _queue_of(router: Any, task: Any) -> Any:
    options = {name: value for name, value in extract_exec_options(task).items() if value is not None}
    queue = router.route(options, task.name, (), {}, task).get("queue")
    return getattr(queue, "name", queue)


class QueueNames:
    """Finds the queue of a message among the queues of *app*, by exchange and routing key."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._bindings = lru_cache(1)(self._read)

    def of(self, delivery_info: Mapping[str, Any]) -> str:
        """Return the queue of a message with *delivery_info*; its routing key if no queue is known."""
        exchange, routing_key = delivery_info.get("exchange"), delivery_info.get("routing_key")
        return self.bound(exchange, routing_key) or str(routing_key or "")

    def bound(self, exchange: Any, routing_key: Any) -> str:
        """Return the queue of the app that *exchange* reaches by *routing_key*; "" if it has none."""
        if not exchange:
            return str(routing_key or "")
        known = self._bindings(*cache_key(self._app.amqp.queues))
        try:
            return known.get((exchange, routing_key), "")
        except TypeError:
            # A message may carry anything here.
            return ""

    def _read(self, *_: Any) -> dict[tuple[Any, Any], str]:
        # The first queue of several with the same binding.
        known = reversed(list(self._app.amqp.queues.items()))
        return {
            (queue.exchange.name, queue.routing_key): str(name) for name, queue in known if queue.exchange is not None
        }
