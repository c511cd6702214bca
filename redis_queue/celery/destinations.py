"""Destinations: the queues and exchanges that stored tasks may be sent to.

Whoever may store a task chooses where it goes, and it goes there with the rights of the process that dispatches. So
its app decides what that may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE

from redis_queue.celery.entities import exchanges_of
from redis_queue.celery.lists import ListNames
from redis_queue.celery.settings import CelerySettings
from redis_queue.delay_model import MAX_MOVE_LISTS
from redis_queue.errors import InvalidValueError
from redis_queue.keys import is_reserved

if TYPE_CHECKING:
    from celery import Celery

    from redis_queue.celery.entry import TaskEntry
    from redis_queue.celery.envelope import Envelope

MOST_SEEN: Final = 200
"""Queues beyond the configuration that are remembered as allowed."""

_INTERNAL: Final = re.compile(
    r"_kombu\..*|unacked.*|celery-task(?:set)?-meta-.*|chord-unlock-.*|(?:.*\.)?pidbox|celeryev(?:\..*)?"
    r"|celery_delayed_\d+|amq\..*",
    re.DOTALL,
)
"""What Celery, kombu and RabbitMQ keep for themselves: remote control, events, results, bindings, what is in flight."""


class ForbiddenDestinationError(InvalidValueError):
    """A task may not be sent where it says."""


def check_key(name: str, kind: str = "list") -> None:
    """Check a name where no app is known: raise ForbiddenDestinationError for those that others keep for themselves."""
    if is_reserved(name) or _INTERNAL.fullmatch(name):
        raise ForbiddenDestinationError(f"{kind} {name[:200]!r} is not for tasks")


class Destinations:
    """The queues and exchanges of *app*.

    Queues and exchanges of its configuration are allowed. With ``redis_queue_allowed_queues``, so are those that it
    names, and no others. Without it, all others are that are not reserved, unless ``task_create_missing_queues`` is
    off. All checks raise ForbiddenDestinationError; nothing connects.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._allowed = CelerySettings.of(app).allowed_queues
        self._seen: dict[str, None] = {}

    def check(self, envelope: Envelope) -> None:
        """Check where *envelope* goes."""
        if envelope.exchange:
            self.check_exchange(envelope.exchange)
        else:
            self.check_queue(envelope.routing_key)

    def check_call(self, options: Mapping[str, Any]) -> None:
        """Check where a call with *options* goes: sent first, a queue would be one of the app's own from then on."""
        if isinstance(options.get("queue"), str):
            self.check_queue(options["queue"])
        if isinstance(options.get("exchange"), str) and options["exchange"]:
            self.check_exchange(options["exchange"])

    def check_queue(self, name: str) -> None:
        """Check a queue."""
        if self.own(name) is not None or name in self._seen:
            return
        self._check(name, "queue")
        if len(self._seen) < MOST_SEEN:
            self._seen[name] = None

    def check_exchange(self, name: str) -> None:
        """Check an exchange."""
        if name != CELERY_DELAYED_DELIVERY_EXCHANGE and name not in self._exchanges():
            self._check(name, "exchange")

    def check_list(self, key: str, names: ListNames) -> None:
        """Check a key of Redis, which must be a list of a queue."""
        queue = names.queue_of(key)
        if queue is None:
            raise ForbiddenDestinationError(f"{key[:200]!r} is no list of a queue: it must begin with {names.prefix!r}")
        self.check_queue(queue)

    def check_task(self, task: TaskEntry) -> None:
        """Check where a stored task goes, as far as that can be read."""
        if task.exchange:
            self.check_exchange(task.exchange)
        elif name := task.routing_key or task.queue:
            self.check_queue(name)

    def lists(self, names: ListNames) -> list[str]:
        """Return the lists that are known to be allowed; others are checked one by one."""
        queues = dict.fromkeys([*self._app.amqp.queues, *self._seen])
        return [name for queue in queues for name in names.all_of(queue)][:MAX_MOVE_LISTS]

    def own(self, name: Any) -> Any:
        """Return the queue *name* of the configuration, or None."""
        queues = self._app.amqp.queues
        return queues[name] if isinstance(name, str) and (name in queues or name in queues.aliases) else None

    def missing(self, name: str) -> Any:
        """Return the queue that Celery makes of a name that is not in the configuration."""
        # Looked up among the app's own, it would stay: before Celery 5.7 a reconnecting worker takes from all of them.
        return self._app.amqp.Queues(self._app.conf.task_queues or (), create_missing=True)[name]

    def may_declare(self, entity: Any) -> bool:
        """Tell whether a message may declare *entity*, bindings and all: the setting names it and its exchanges."""
        return all(self._is_named(name) for name in {entity.name, *exchanges_of(entity)})

    def _check(self, name: str, kind: str) -> None:
        check_key(name, kind)
        conf = self._app.conf
        if name == conf.event_exchange or name.startswith(f"{conf.event_queue_prefix}."):
            raise ForbiddenDestinationError(f"{kind} {name[:200]!r} is not for tasks")
        free = self._allowed is None and conf.task_create_missing_queues
        if not free and not self._is_named(name):
            raise ForbiddenDestinationError(
                f"{kind} {name[:200]!r} is not in the app's configuration: add it to task_queues or to "
                "redis_queue_allowed_queues"
            )

    def _is_named(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._allowed or ())

    def _exchanges(self) -> set[str]:
        found = {name for queue in self._app.amqp.queues.values() for name in exchanges_of(queue)}
        return found | {self._app.conf.task_default_exchange or ""}


def described_name(item: Any) -> Any:
    """Return the name of the queue in a description of :func:`redis_queue.celery.entities.describe`."""
    return item.get("queue") if isinstance(item, Mapping) else item
