"""Destinations: the queues and exchanges that stored tasks may be sent to.

A client that stores a task chooses its destination, but the dispatcher sends the task with its own permissions. So the
dispatching app decides which destinations are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from celery import Celery
from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE

from redis_queue.basics.lazy_property import cache_key
from redis_queue.celery.kombu.keys import ListNames
from redis_queue.celery.message.producer import exchanges_of
from redis_queue.celery.settings import CelerySettings
from redis_queue.delay.model import MAX_MOVE_LISTS
from redis_queue.errors import InvalidValueError
from redis_queue.store.keys import is_reserved

if TYPE_CHECKING:
    from redis_queue.celery.message.envelope import Envelope

MAX_SEEN: Final = 200
"""Maximum number of queues outside the configuration that are remembered as allowed."""

_INTERNAL: Final = re.compile(
    r"_kombu\..*|unacked.*|celery-task(?:set)?-meta-.*|chord-unlock-.*|(?:.*\.)?pidbox|celeryev(?:\..*)?"
    r"|celery_delayed_\d+|amq\..*",
    re.DOTALL,
)
"""Names reserved by Celery, kombu and RabbitMQ: remote control, events, results, bindings, messages in flight."""


class ForbiddenDestinationError(InvalidValueError):
    """The destination of a task is not allowed."""


def check_reserved(name: str, kind: str = "list") -> None:
    """Raise ForbiddenDestinationError for reserved names; needs no app."""
    if is_reserved(name) or _INTERNAL.fullmatch(name):
        raise ForbiddenDestinationError(f"{kind} {name[:200]!r} is reserved: use another name")


class Destinations:
    """The queues and exchanges of *app*.

    Queues and exchanges of its configuration are allowed. With ``redis_queue_allowed_queues``, so are the names
    in it, and no others. Without it, all names are allowed that are not reserved, unless ``task_create_missing_queues``
    is off. All checks raise ForbiddenDestinationError. Nothing here connects to a server.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._allowed = CelerySettings.of(app).allowed_queues
        self._seen: dict[str, None] = {}
        self._exchanges = lru_cache(1)(self._read_exchanges)

    def check(self, envelope: Envelope) -> None:
        if envelope.exchange:
            self.check_exchange(envelope.exchange)
        else:
            self.check_queue(envelope.routing_key)

    def check_call(self, options: Mapping[str, Any]) -> None:
        """Check the destination of a call before it is sent: sending would add its queue to those of the app."""
        if isinstance(options.get("queue"), str):
            self.check_queue(options["queue"])
        if isinstance(options.get("exchange"), str) and options["exchange"]:
            self.check_exchange(options["exchange"])

    def check_queue(self, name: str) -> None:
        if self.own(name) is not None or name in self._seen:
            return
        self._check(name, "queue")
        if len(self._seen) < MAX_SEEN:
            self._seen[name] = None

    def check_exchange(self, name: str) -> None:
        default = self._app.conf.task_default_exchange or ""
        if name not in {default, CELERY_DELAYED_DELIVERY_EXCHANGE} and self.exchange(name) is None:
            self._check(name, "exchange")

    def exchange(self, name: str) -> Any:
        """Return the exchange *name* of the configuration, or None."""
        return self._exchanges(*cache_key(self._app.amqp.queues)).get(name)

    def check_list(self, key: str, names: ListNames) -> None:
        """Check a Redis key, which must be the list of a queue."""
        queue = names.queue_of(key)
        if queue is None:
            raise ForbiddenDestinationError(
                f"{key[:200]!r} is not the list of a queue: it must begin with {names.prefix!r}"
            )
        self.check_queue(queue)

    def check_names(self, exchange: str, queue: str) -> None:
        """Check an exchange, or a queue if there is none; "" is not checked."""
        if exchange:
            self.check_exchange(exchange)
        elif queue:
            self.check_queue(queue)

    def lists(self, names: ListNames) -> list[str]:
        """Return the lists that are known to be allowed; others are checked one by one."""
        queues = dict.fromkeys([*self._app.amqp.queues, *self._seen])
        return [name for queue in queues for name in names.all_of(queue)][:MAX_MOVE_LISTS]

    def own(self, name: Any) -> Any:
        """Return the queue *name* of the configuration, or None."""
        queues = self._app.amqp.queues
        return queues[name] if isinstance(name, str) and (name in queues or name in queues.aliases) else None

    def missing(self, name: str) -> Any:
        """Return the queue that Celery creates for a name that is not in the configuration."""
        # A lookup in app.amqp.queues would add it, and before Celery 5.7 a reconnecting worker consumes from all.
        return self._app.amqp.Queues(self._app.conf.task_queues or (), create_missing=True)[name]

    def may_declare(self, entity: Any) -> bool:
        """Return whether a message may declare *entity* with its bindings: the setting names it and its exchanges."""
        return all(self._is_named(name) for name in {entity.name, *exchanges_of(entity)})

    def _check(self, name: str, kind: str) -> None:
        check_reserved(name, kind)
        conf = self._app.conf
        if name == conf.event_exchange or name.startswith(f"{conf.event_queue_prefix}."):
            raise ForbiddenDestinationError(f"{kind} {name[:200]!r} is reserved for events: use another name")
        free = self._allowed is None and conf.task_create_missing_queues
        if not free and not self._is_named(name):
            raise ForbiddenDestinationError(
                f"{kind} {name[:200]!r} is not in the app's configuration: add it to task_queues or to "
                "redis_queue_allowed_queues"
            )

    def _read_exchanges(self, *_: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for queue in list(self._app.amqp.queues.values()):
            found |= exchanges_of(queue)
        return found

    def _is_named(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._allowed or ())
