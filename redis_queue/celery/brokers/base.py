"""Broker: a connection that publishes, by the means that every transport of kombu has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport.virtual import Channel as VirtualChannel
from kombu.transport.virtual.base import NotEquivalentError

from redis_queue.basics.logs import logger_of
from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.message.envelope import Envelope, described_name
from redis_queue.celery.message.producer import build, exchange_type
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry

logger = logger_of(__name__)

Settle = Callable[[int, str | None], None]
"""Takes the number of a message in its batch and why it was refused; None if the broker has taken it."""

WhileWaiting = Callable[[], None]
"""Called while the broker writes its confirms, before they are read."""

MAX_DECLARED: Final = 10_000
"""Maximum number of declarations that one connection remembers."""


def do_nothing() -> None:
    """Do nothing."""


class UnroutableError(LookupError):
    """A message reaches no queue."""


def reason_of(error: Exception) -> str:
    """Return why a message was refused, as people read it among the dead letters."""
    return str(error) if isinstance(error, InvalidValueError | UnroutableError) else f"{type(error).__name__}: {error}"


class Broker:
    """Publishes on a connection of its own, one message at a time: for transports without a faster way."""

    #: Whether the scripts of the store can write the lists of this broker.
    shares_store: bool = False
    #: Messages between two looks at the time: a slow publish must not outlast the leases.
    at_once: int = 20
    #: Errors that a broker raises for a declaration that differs from the existing queue or exchange.
    conflicts: tuple[type[Exception], ...] = (NotEquivalentError,)

    def __init__(self, app: Celery, connection: Any) -> None:
        self.app = app
        self.connection = connection
        self.channel: Any = connection.channel()
        self.destinations = Destinations(app)
        self._declared: set[str] = set()
        self._conflicting: set[str] = set()

    def publish(self, envelopes: Sequence[Envelope], settle: Settle, while_waiting: WhileWaiting = do_nothing) -> None:  # noqa: ARG002 - it waits for no confirms
        """Publish in order, and call *settle* for each message as soon as the broker has taken or refused it.

        Raises kombu's OperationalError, or one of kombu's connection errors, if the broker is away: it may or may not
        have taken the messages that are not settled then.
        """
        producer = self.connection.Producer(self.channel, auto_declare=False)
        for number, envelope in enumerate(envelopes):
            try:
                self._publish(producer, envelope)
            except Exception as error:  # noqa: BLE001 - raised again unless it is about this message
                settle(number, self.refusal(error))
            else:
                settle(number, None)

    def close(self) -> None:
        """Close the connection, in whatever state it is."""
        self.connection.release()

    def lists_of_queues(self) -> list[str]:
        """Return the Redis lists that a move may write; none unless the broker shares the store."""
        return []

    def check(self, entry: Entry, envelope: Envelope) -> None:  # noqa: ARG002 - RedisBroker checks the entry as well
        """Raise ForbiddenDestinationError if the destination of *entry*, which holds *envelope*, is not allowed."""
        self.destinations.check(envelope)

    def declare(self, envelope: Envelope) -> None:
        """Declare the queues and exchanges that *envelope* needs, once per connection.

        Queues of the app's configuration are declared as configured. Existing queues with other attributes are used as
        they are. A missing queue that the app does not know is created as its sender declared it, but without bindings
        unless ``redis_queue_allowed_queues`` allows them.
        """
        for item, key in self._needs(envelope):
            if key not in self._declared:
                self._declare(item, by_name=not envelope.exchange)
                if len(self._declared) >= MAX_DECLARED:
                    self._declared.clear()
                self._declared.add(key)

    def declare_again(self, envelope: Envelope) -> None:
        """Let the next message that needs the same as *envelope* declare it again: some of it is gone."""
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
            if entity.name not in self._conflicting:
                self._conflicting.add(entity.name)
                extra = {"action": "declaration_differs"}
                logger.warning(
                    "%s exists with other attributes and is used as it is: %s", entity.name, error, extra=extra
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

    def refusal(self, error: Exception) -> str:
        """Return why a message was refused, by the *error* of its publish; raises *error* if the broker is away."""
        if self.is_away(error):
            raise error
        return reason_of(error)

    def is_away(self, error: Exception) -> bool:
        """Return whether *error* means that the broker cannot be reached, not that it refuses a message."""
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
        """Return the queues that a virtual exchange leads to; None for a fanout, which has no table.

        Raises UnroutableError if there are none: the transport would drop the message.
        """
        channel, own = self.channel, self.destinations.exchange(envelope.exchange)
        if own is not None and own.name not in channel.state.exchanges:
            # kombu takes an exchange that this connection does not know for a direct one.
            own(channel).declare()
        kind = channel.typeof(envelope.exchange, exchange_type(envelope.declare, envelope.exchange))
        if kind.type == "fanout":
            return None
        found = list(kind.lookup(channel.get_table(envelope.exchange), envelope.exchange, envelope.routing_key, None))
        if not any(found):
            raise UnroutableError(
                f"exchange {envelope.exchange!r} has no queue for routing key {envelope.routing_key!r}"
            )
        return found


def properties(envelope: Envelope) -> dict[str, Any]:
    """Return the properties of *envelope*, with a time to live that counts from now.

    An expired message has none: a worker then reports it as revoked, where a broker would drop it silently.
    """
    found = dict(envelope.properties)
    if envelope.expires_at is not None:
        left = envelope.expires_at / 1000 - time.time()
        if left > 0:
            found["expiration"] = left
    return found
