"""MessageWriter: store Celery messages as entries of the DelayQueue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.celery.kombu.keys import ListNames
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.headers import Attempt, new_call
from redis_queue.celery.message.producer import build, lifetime_ms
from redis_queue.celery.revoked_state import clear_revoked
from redis_queue.celery.tracing import schedule_spans
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.delay.writer import RENEWED, REPLACED
from redis_queue.errors import InvalidValueError

if TYPE_CHECKING:
    from celery import Celery


class MessageWriter:
    """Stores messages of *app* in the queue that *open_queue* returns; raises what a push raises."""

    def __init__(self, app: Celery, open_queue: Callable[[], DelayQueue]) -> None:
        self._app = app
        # Opening it asks Redis: if that fails, the span of the schedule shows the error.
        self._open_queue = open_queue

    def store(self, messages: Sequence[tuple[Envelope, Due]]) -> list[bool]:
        """Store messages in one round trip per 500; each replaces an entry that waits under its task id.

        Tell for each whether it certainly replaced one, which will not be sent.
        """
        calls = [new_call() for _ in messages]
        named = [(envelope.with_call(call), due) for (envelope, due), call in zip(messages, calls, strict=True)]
        with schedule_spans(named) as traced:
            pushes = [self.as_push(*message, mark=call) for message, call in zip(traced, calls, strict=True)]
            outcomes = self._open_queue().calls.renew_many(pushes)
        for (envelope, _), outcome in zip(messages, outcomes, strict=True):
            if outcome == RENEWED:
                clear_revoked(self._app, envelope.id)
        return [outcome == REPLACED for outcome in outcomes]

    def store_attempt(self, envelope: Envelope, due: Due, attempt: Attempt) -> None:
        """Store a retry; it replaces an earlier attempt of the same call.

        An entry of another call with the same id is kept: then the retry gets an entry of its own.
        """
        with schedule_spans([(envelope.with_call(attempt.call), due)]) as traced:
            ((message, _),) = traced
            push = self.as_push(message, due)
            for id_ in attempt.ids(message.id):
                own = replace(push, payload=message.pack(id_), id=id_, mark=attempt.mark)
                if self._open_queue().calls.replace_own(own):
                    return
            # Only possible if another tool wrote an entry with this id and without a call name.
            raise InvalidValueError(
                f"{message.id!r}: other calls wait under this id and under all ids for its retries: cancel one of them"
            )

    def as_push(self, envelope: Envelope, due: Due, *, mark: str = "") -> Push:
        """Return the entry for a message, with the *mark* of its call."""
        delay, due_at = due
        return Push(
            envelope.pack(),
            delay=delay,
            due_at=due_at,
            id=envelope.id or None,
            headers=envelope.storage_headers() or None,
            destination=self._destination(envelope),
            mark=mark,
        )

    def _destination(self, envelope: Envelope) -> str | None:
        """Return the list that the message goes to, if it is known without asking the broker."""
        if self._lists is None or envelope.exchange or not envelope.routing_key:
            return None
        if any(isinstance(item, Mapping) and lifetime_ms(build(item)) for item in envelope.declare):
            return None
        return self._lists.of_queue(envelope.routing_key, envelope.priority)

    @LazyProperty
    def _lists(self) -> ListNames | None:
        return ListNames.of_app(self._app)
