"""Broker: one connection that publishes, and what any transport of kombu can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kombu.exceptions import OperationalError
from kombu.transport.virtual import Channel as VirtualChannel
from kombu.transport.virtual.base import NotEquivalentError

from redis_queue.celery.message.declarations import build, exchange_type
from redis_queue.celery.message.destinations import Destinations, described_name
from redis_queue.celery.message.envelope import Envelope
from redis_queue.logs import logger_of
from redis_queue.model import Entry

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

Settle = Callable[[int, str | None], None]
"""Takes the number of a message in its batch and why it was refused; None means that the broker has it."""


def only_wait() -> None:
    """Do nothing while a broker confirms."""


class UnroutableError(LookupError):
    """A message reaches no queue."""


MOST_DECLARED: Final = 10_000
"""Most declarations that one connection remembers."""


class Broker:
    """Publishes on a connection of its own, one message at a time: for transports that know nothing faster."""

    #: Whether lists of this broker can be written by the scripts of the store.
    shares_store: bool = False
    #: Messages between two looks at the time: a slow broker must not outlast the leases.
    at_once: int = 20
    #: Errors of a broker for a declaration that differs from the existing queue or exchange.
    conflicts: tuple[type[Exception], ...] = (NotEquivalentError,)

    def __init__(self, app: Celery, connection: Any) -> None:
        self.app = app
        self.connection = connection
        self.channel: Any = connection.channel()
        self.destinations = Destinations(app)
        #: Called where there is a wait for confirms, before it.
        self.meanwhile: Callable[[], None] = only_wait
        self._declared: set[str] = set()
        self._told: set[str] = set()

    def publish(self, envelopes: Sequence[Envelope], settle: Settle) -> None:
        """Publish in order and call *settle* for each message as soon as its fate is known.

        Raises kombu's OperationalError, or what kombu counts as a connection error, when the broker is away: what
        became of those not settled is unknown then.
        """
        producer = self.connection.Producer(self.channel, auto_declare=False)
        for number, envelope in enumerate(envelopes):
            settle(number, self._refusal(lambda: self._publish(producer, envelope)))  # noqa: B023

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        self.connection.release()

    def lists_of_queues(self) -> list[str]:
        """Return the lists of Redis that a move may write; only brokers that share the store have any."""
        return []

    def check(self, entry: Entry, envelope: Envelope) -> None:  # noqa: ARG002 - others look at the entry, too
        """Raise ForbiddenDestinationError if the destination of *entry*, which holds *envelope*, is not allowed."""
        self.destinations.check(envelope)

    def declare(self, envelope: Envelope) -> None:
        """Declare what *envelope* needs, once per connection.

        Queues of the app's configuration are declared as configured. Existing queues with other attributes are used as
        they are. A missing queue that the app does not know is created as its sender declared it, but without bindings
        unless ``redis_queue_allowed_queues`` allows them.
        """
        for item, key in self._needs(envelope):
            if key not in self._declared:
                self._declare(item, by_name=not envelope.exchange)
                if len(self._declared) >= MOST_DECLARED:
                    self._declared.clear()
                self._declared.add(key)

    def declare_again(self, envelope: Envelope) -> None:
        """Declare what *envelope* needs once more when the next one needs it: something of it has gone."""
        self._declared -= {key for _, key in self._needs(envelope)}

    def _declare(self, item: Any, *, by_name: bool) -> None:
        name = described_name(item)
        entity = self.destinations.own(name)
        if entity is None and isinstance(item, Mapping):
            described: Any = build(item)
            if self.destinations.may_declare(described):
                entity = described
        if entity is not None:
            self._declare_unless_other(entity)
        elif by_name and name is not None:
            self.make_queue(described if isinstance(item, Mapping) else self.destinations.missing(name))

    def _declare_unless_other(self, entity: Any) -> None:
        try:
            self.declare_entity(entity)
        except self.conflicts as error:
            if entity.name not in self._told:
                self._told.add(entity.name)
                logger.warning(
                    "%s exists and is not as configured here; it is used as it is: %s",
                    entity.name,
                    error,
                    extra={"action": "declaration_differs"},
                )

    def declare_entity(self, entity: Any) -> None:
        """Declare one queue or exchange."""
        entity(self.channel).declare()

    def make_queue(self, queue: Any) -> None:
        """Create *queue* without bindings, unless it exists."""
        if not queue.no_declare:
            queue(self.channel).queue_declare()

    @staticmethod
    def _needs(envelope: Envelope) -> list[tuple[Any, str]]:
        """Return the queues and exchanges that *envelope* needs before it is published, each with a key."""
        needed = envelope.declare or ([] if envelope.exchange else [envelope.routing_key])
        return [(item, f"{bool(envelope.exchange)} {item!r}") for item in needed]

    def _refusal(self, attempt: Callable[[], Any]) -> str | None:
        """Run *attempt* and return why its message was refused; raises where the broker is away."""
        try:
            attempt()
        except Exception as error:
            if self.is_away(error):
                raise
            return f"{type(error).__name__}: {error}"
        return None

    def is_away(self, error: Exception) -> bool:
        """Tell a broker that cannot be reached from a message that it will never take."""
        # kombu counts KeyError among the connection errors of Redis; it comes from an unknown name in the message.
        kinds = (*self.connection.connection_errors, OperationalError, OSError)
        cause = error.__cause__ if isinstance(error, OperationalError) and error.__cause__ else error
        return isinstance(cause, kinds) and not isinstance(cause, KeyError)

    def _publish(self, producer: Any, envelope: Envelope) -> None:
        self.declare(envelope)
        if isinstance(self.channel, VirtualChannel) and envelope.exchange:
            self.queues_of(envelope)
        producer.publish(
            envelope.body,
            exchange=envelope.exchange,
            routing_key=envelope.routing_key,
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            headers=dict(envelope.headers),
            **properties(envelope),
        )

    def queues_of(self, envelope: Envelope) -> list[str] | None:
        """Return the queues behind a virtual exchange; None for a fanout, which asks no table.

        Raises UnroutableError if it leads nowhere: its transport would drop the message.
        """
        # If this process did not declare the exchange, use the type that the sender gave.
        known = exchange_type(envelope.declare, envelope.exchange)
        channel, kind = self.channel, self.channel.typeof(envelope.exchange, known)
        if kind.type == "fanout":
            return None
        found = list(kind.lookup(channel.get_table(envelope.exchange), envelope.exchange, envelope.routing_key, None))
        if not any(found):
            raise UnroutableError(
                f"exchange {envelope.exchange!r} has no queue for routing key {envelope.routing_key!r}"
            )
        return found


def properties(envelope: Envelope) -> dict[str, Any]:
    """Return the properties of *envelope* at this moment: the time to live counts from now.

    What has expired goes without one, so that a worker tells that it was revoked; a broker would drop it in silence.
    """
    found = dict(envelope.properties)
    if envelope.expires_at is not None:
        left = envelope.expires_at / 1000 - time.time()
        if left > 0:
            found["expiration"] = left
    return found
