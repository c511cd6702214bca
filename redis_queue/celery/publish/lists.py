"""BrokerLists: the lists of a Redis broker, to which messages go without the work of kombu's client for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import redis
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel, SentinelChannel
from kombu.utils.json import dumps

from redis_queue.celery.entries import with_retries
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.internals import SENDING, around, has
from redis_queue.errors import StoreError
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.links import DirectLink
from redis_queue.store.redis_errors import UNKNOWN, is_refused
from redis_queue.store.scripts import NumberedCalls, Scripts

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

    #: Put the message where it goes; raise the errors of redis-py, at which kombu sends it again.
    take: Callable[[Seen], Any] | None = None


current: Final = _Current()


class BrokerLists:
    """The lists of the Redis that kombu's *channel* is connected to. Raises the errors of redis-py.

    From now on, what the channel itself puts into a list goes this way, too. Its errors are handled as kombu's: the
    channel is closed, and the next one is another one.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        client = client_of(channel)
        self._link = DirectLink(client)
        self._prefix = channel.global_keyprefix or ""
        self._calls = NumberedCalls(Scripts(client, self._link), BrokerKeys(self._prefix))
        self._runs_scripts = True
        around(channel, "_put", self._put)
        around(channel, "close", self._close)

    @classmethod
    def of(cls, producer: Any) -> BrokerLists | None:
        """Return the lists to which kombu's *producer* sends; None if it has no channel yet, or no channel to Redis."""
        if not has(SENDING):
            return None
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

    @property
    def failures(self) -> int:
        """How often a connection failed: afterwards, queues may have to be declared again."""
        return self._link.failures

    def push(self, key: str, element: str, sending: Callable[[], Mapping[str, Any]]) -> None:
        """Put a message behind all others in the list *key*, once even if the reply is lost.

        *sending* returns Celery's options for retries. Raises OperationalError if it is unknown whether the message
        arrived, else the errors of redis-py.
        """
        if self._runs_scripts:
            call = self._calls.prepare("broker/push", others={"list": key.encode()}, message=element)
            try:
                _once(call, sending)
            except StoreError as error:
                if UNKNOWN in str(error) or error.__cause__ is None:
                    raise OperationalError(str(error)) from error
                # A server without scripts, or a user who may run none, gets the plain command.
                if not is_refused(error.__cause__):
                    raise error.__cause__ from None
                self._runs_scripts = False
            else:
                return
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
        if current.take is None:
            self._link.send("LPUSH", key, dumps(message))
        else:
            current.take(Seen(message["headers"], lists=self, key=key, message=message))

    def _close(self, close: Any) -> None:
        self._link.close()
        close()


def _once(call: Callable[[], Any], sending: Callable[[], Mapping[str, Any]]) -> None:
    """Make a numbered *call*, and again for as long as Celery retries a publish if it may have arrived."""
    try:
        call()
    except StoreError as error:
        # The caller of a silent server has waited already.
        if UNKNOWN not in str(error) or isinstance(error.__cause__, redis.TimeoutError):
            raise
        with_retries(call, sending())
