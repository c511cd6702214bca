"""RabbitMQ: publish many messages, then wait once for all their confirms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import amqp
from amqp.exceptions import AccessRefused, FrameSyntaxError, NotFound, PreconditionFailed, ResourceLocked
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from amqp.spec import Basic
from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue.basics.times import monotonic
from redis_queue.celery.brokers.base import Broker, Settle, WhileWaiting, do_nothing, properties, reason_of
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.task_entry import restore_types
from redis_queue.errors import InvalidValueError, StoreError
from redis_queue.keeper.renewal import socket_timeout
from redis_queue.store.chunks import CHUNK

CONFIRM_WITHIN: Final = 10.0
"""Maximum seconds without any confirm; a broker that is out of memory or disk sends none."""

FRAME_OVERHEAD: Final = 20
"""Bytes of a header frame without its properties: frame header and end, class, weight and length of the body."""

PIECE: Final = 16 * 1024
"""Maximum bytes of a write, which has to end within the timeout of the socket; py-amqp writes each message by itself.

RabbitMQ begins with the first piece while the next ones are made: larger ones let it wait longer.
"""


class TooLargeError(InvalidValueError):
    """A part of a message is larger than RabbitMQ accepts."""


class AmqpBroker(Broker):
    """A channel in confirm mode. Messages are mandatory: a message that reaches no queue is returned and refused."""

    at_once = CHUNK
    conflicts = (PreconditionFailed, AccessRefused, ResourceLocked)

    def __init__(self, app: Celery, connection: Any, lease: float) -> None:
        # Before the first channel opens: otherwise only waits for confirms would have a timeout.
        timeout = connection.transport_options.get("read_timeout") or socket_timeout(lease)
        connection.connection.transport.sock.settimeout(timeout)
        super().__init__(app, connection)
        self._published = 0
        self._waiting: dict[int, int] = {}
        self._returned: dict[str, str] = {}
        self._settle: Settle = lambda *_: None
        self._ids: Sequence[str] = ()
        self._envelopes: Sequence[Envelope] = ()
        self._confirming: Any = None
        self._exchanges: set[str] = {""}

    def publish(self, envelopes: Sequence[Envelope], settle: Settle, while_waiting: WhileWaiting = do_nothing) -> None:
        """Publish all, then wait for all confirms.

        If a message makes the broker close the channel, the outcome of the messages around it is unknown: they are
        published again one by one, so that only that message is refused.
        """
        open_numbers = dict.fromkeys(range(len(envelopes)))

        def settle_once(number: int, why: str | None) -> None:
            if number in open_numbers:
                del open_numbers[number]
                settle(number, why)

        batches: list[list[int]] = [list(open_numbers)]
        while batches:
            batch = [number for number in batches.pop(0) if number in open_numbers]
            try:
                self._publish_batch(envelopes, batch, settle_once, while_waiting)
            except Exception as error:
                if self.is_away(error) or isinstance(error, StoreError):
                    raise
                self._confirming = None
                left = [number for number in batch if number in open_numbers]
                if len(left) == 1:
                    self.declare_again(envelopes[left[0]])
                    settle_once(left[0], reason_of(error))
                else:
                    batches[:0] = [[number] for number in left]

    def declare_entity(self, entity: Any) -> None:
        """Declare one queue or exchange on a channel of its own, which the broker closes on an error."""
        with self._scratch() as channel:
            entity(channel).declare()

    def make_queue(self, queue: Any) -> None:
        """Create *queue* without bindings, unless a queue of that name exists, with any attributes."""
        if queue.no_declare:
            return
        try:
            with self._scratch() as channel:
                queue(channel).queue_declare(passive=True)
        except NotFound:
            with self._scratch() as channel:
                queue(channel).queue_declare()

    def declare_again(self, envelope: Envelope) -> None:
        """Let the next message that needs the same as *envelope* declare it, and check its exchange, again."""
        super().declare_again(envelope)
        self._exchanges -= {envelope.exchange} - {""}

    def _publish_batch(
        self, envelopes: Sequence[Envelope], batch: Sequence[int], settle: Settle, while_waiting: WhileWaiting
    ) -> None:
        self._settle, self._waiting, self._envelopes = settle, {}, envelopes
        self._ids = [str(row.properties.get("correlation_id") or row.id or at) for at, row in enumerate(envelopes)]
        self._returned = {}
        channel = self._channel()
        refusals = {number: self._prepare(envelopes[number]) for number in batch}
        transport, piece = channel.connection.transport, bytearray()
        write = partial(frame_writer(channel.connection, _Piece(piece.extend)), 1, channel.channel_id, Basic.Publish)
        for number, refusal in refusals.items():
            envelope, mark = envelopes[number], self._ids[number]
            why = refusal or self._write(write, envelope, mark, channel.connection.frame_max)
            if why is not None:
                settle(number, why)
                continue
            # No confirm is read before all messages are sent.
            self._published += 1
            self._waiting[self._published] = number
            while len(piece) >= PIECE:
                transport.write(piece[:PIECE])
                del piece[:PIECE]
        if piece:
            transport.write(piece)
        while_waiting()
        self._await_confirms()
        if self._confirming is not channel:
            channel.close()

    def _prepare(self, envelope: Envelope) -> str | None:
        """Declare what *envelope* needs; return why it is refused."""
        try:
            self.declare(envelope)
            if envelope.exchange not in self._exchanges:
                # A message to a missing exchange would close the channel for all messages.
                with self._scratch() as channel:
                    channel.exchange_declare(envelope.exchange, "direct", passive=True)
                self._exchanges.add(envelope.exchange)
        except Exception as error:  # noqa: BLE001 - raised again unless it is about this message
            return self.refusal(error)
        return None

    def _write(self, write: Callable[..., None], envelope: Envelope, mark: str, frame_max: int) -> str | None:
        """Write *envelope*; return why it is refused."""
        try:
            write(_arguments(envelope.exchange, envelope.routing_key), _message(envelope, mark, frame_max))
        except FrameSyntaxError as error:
            # py-amqp counts it among the errors of a lost connection.
            return str(error)
        except Exception as error:  # noqa: BLE001 - raised again unless it is about this message
            return self.refusal(error)
        return None

    def _await_confirms(self) -> None:
        until = monotonic() + CONFIRM_WITHIN
        while self._waiting:
            before = len(self._waiting)
            left = until - monotonic()
            if left <= 0:
                raise OperationalError(f"no confirm from the broker for {CONFIRM_WITHIN:.0f} s")
            try:
                self.connection.drain_events(timeout=left)
            except TimeoutError:
                continue
            if len(self._waiting) < before:
                until = monotonic() + CONFIRM_WITHIN

    def _channel(self) -> Any:
        if self._confirming is None:
            channel = self._confirming = self.connection.channel()
            channel.confirm_select()
            self._published = 0
            channel.events["basic_ack"].add(partial(self._settle_up_to, None))
            channel.events["basic_nack"].add(self._on_nack)
            channel.events["basic_return"].add(self._on_return)
        return self._confirming

    @contextmanager
    def _scratch(self) -> Iterator[Any]:
        channel = self.connection.channel()
        try:
            yield channel
        finally:
            if channel.is_open:
                channel.close()

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        # The broker sends it before the confirm of the same message.
        mark = str(message.properties.get("correlation_id"))
        self._returned[mark] = f"unroutable: exchange {exchange!r}, routing key {routing_key!r}: {error}"

    def _on_nack(self, tag: int, multiple: bool) -> None:
        # If a channel first sends to a quorum queue just after its leader was lost, RabbitMQ refuses all that follows.
        self._confirming = None
        self._settle_up_to("the broker refused it (nack)", tag, multiple)

    def _settle_up_to(self, why: str | None, tag: int, multiple: bool) -> None:
        tags = [known for known in self._waiting if known <= tag] if multiple else [tag]
        for known in tags:
            number = self._waiting.pop(known, None)
            if number is None:
                continue
            returned = self._returned.pop(self._ids[number], None)
            if returned:
                # Its queue may have expired since it was declared.
                self.declare_again(self._envelopes[number])
            self._settle(number, returned or why)


class _Piece(NamedTuple):
    """A transport for py-amqp that collects what is written."""

    write: Callable[[Any], None]


@lru_cache(maxsize=2048)
def _arguments(exchange: str, routing_key: str) -> bytes:
    return bytes(dumps("Bssbb", (0, exchange, routing_key, True, False)))


class _Message(amqp.Message):  # type: ignore[misc]
    """A message whose properties must fit into one frame of *frame_max* bytes.

    Else RabbitMQ would close the connection, which looks like a broker that is away.
    """

    frame_max = 0

    def _serialize_properties(self) -> bytes:
        found: bytes = super()._serialize_properties()
        if len(found) > self.frame_max - FRAME_OVERHEAD:
            raise TooLargeError(
                f"headers of {len(found):,} bytes: must be <= {self.frame_max:,}, a frame of the broker"
            )
        return found


def _message(envelope: Envelope, mark: str, frame_max: int) -> amqp.Message:
    # Headers are plain JSON, in which values of other types have the form that kombu gives them.
    typed = {name: restore_types(value) for name, value in envelope.headers.items() if isinstance(value, list | dict)}
    found = {
        **properties(envelope),
        "correlation_id": mark,
        "content_type": envelope.content_type,
        "content_encoding": envelope.content_encoding,
        "application_headers": {**envelope.headers, **typed},
    }
    found["priority"] = found.get("priority") or 0
    if "expiration" in found:
        found["expiration"] = str(int(found["expiration"] * 1000))
    message = _Message(envelope.body)
    message.properties, message.frame_max = found, frame_max
    return message
