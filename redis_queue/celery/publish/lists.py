"""BrokerLists: the lists of a Redis broker, to which messages go without the work of kombu's client for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kombu.transport.redis import Channel, SentinelChannel
from kombu.utils.json import dumps

from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.internals import around
from redis_queue.store.links import DirectLink

if TYPE_CHECKING:
    from redis_queue.celery.message.envelope import Envelope

_LISTS: Final = "redis_queue_lists"
"""Attribute of a channel: its BrokerLists."""


@dataclass(slots=True)
class Seen:
    """What became of a message that Celery made: *envelope* went into the store, or *message* into a list."""

    headers: Mapping[str, Any]
    envelope: Envelope | None = None
    #: The options of the publish.
    sending: dict[str, Any] = field(default_factory=dict)
    #: The queue of the message, if its task may belong to a flow.
    queue: str | None = None
    lists: BrokerLists | None = None
    key: str = ""
    message: dict[str, Any] = field(default_factory=dict)
    #: The form of the message, if others are like it.
    form: Any = None
    #: The queue of this name that the app had by then.
    declared: Any = None
    declared_as: str = ""


class _Current(threading.local):
    """What a thread does with messages for lists: apps with one broker share kombu's connections to it."""

    #: Return True if the message is sent later.
    take: Callable[[Seen], bool] | None = None


current: Final = _Current()


class BrokerLists:
    """The lists of the Redis that kombu's *channel* is connected to. Raises the errors of redis-py.

    From now on, what the channel itself puts into a list goes this way, too. Its errors are handled as kombu's: the
    channel is closed, and the next one is another one.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._link = DirectLink(client_of(channel))
        self._prefix = channel.global_keyprefix or ""
        around(channel, "_put", self._put)
        around(channel, "close", self._close)

    @classmethod
    def of(cls, producer: Any) -> BrokerLists | None:
        """Return the lists to which kombu's *producer* sends; None if it has no channel yet, or no channel to Redis."""
        # That of a pool opens the channel of its connection when it publishes.
        channel: Any = getattr(producer.connection, "_default_channel", None)
        if type(channel) not in (Channel, SentinelChannel) or channel.connection is None:
            return None
        found: BrokerLists | None = vars(channel).get(_LISTS)
        if found is None and "_put" not in vars(channel):
            found = cls(channel)
            setattr(channel, _LISTS, found)
        return found

    @property
    def is_open(self) -> bool:
        """Whether the channel is in use: else its queues may have to be declared again."""
        return self._channel.connection is not None and not self._channel.closed

    def push(self, key: str, element: str) -> None:
        """Put a message behind all others in the list *key*."""
        self._link.send("LPUSH", key, element)

    def push_many(self, rows: Sequence[tuple[str, str]]) -> list[Exception | None]:
        """Put messages into their lists, each a pair of key and element, in one round trip.

        Return for each the error with which Redis refused it. If this raises, any of them may have arrived.
        """
        by_key: dict[str, list[str]] = {}
        for key, element in rows:
            by_key.setdefault(key, []).append(element)
        replies = self._link.send_many([("LPUSH", key, *elements) for key, elements in by_key.items()])
        refused = {key: reply for key, reply in zip(by_key, replies, strict=True) if isinstance(reply, Exception)}
        return [refused.get(key) for key, _ in rows]

    def _put(self, put: Any, queue: str, message: dict[str, Any], **options: Any) -> None:
        channel = self._channel
        # kombu 5.5 lets no list expire.
        expiring = getattr(channel, "_expires", ())
        if options.get("_publish_batch") is not None or queue in expiring or not self.is_open:
            put(queue, message, **options)
            return
        priority = channel._get_message_priority(message, reverse=False)
        key = f"{self._prefix}{channel._q_for_pri(queue, priority)}"
        if current.take is None or not current.take(Seen(message["headers"], lists=self, key=key, message=message)):
            self.push(key, dumps(message))

    def _close(self, close: Any) -> None:
        self._link.close()
        close()
