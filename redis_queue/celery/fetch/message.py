"""Messages that atomic fetch has taken, how long those of their tasks took before, and the turns of flows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from redis_queue.basics.times import monotonic
from redis_queue.celery.admission.admission import Admission, Capacity, has_place

NAMES: Final = 1000
"""Maximum number of names of tasks whose durations are remembered."""


class FetchedMessage(virtual.Message):
    """Message that is made when it is fetched; when kombu makes it again for its delivery, it gets the same object."""

    #: The queue from which it was fetched.
    queue: str
    #: The tag that its sender gave it, which each of its deliveries has; None if it has none.
    sent_as: str | None = None
    #: The name of its task; None if it has none.
    task: str | None = None
    #: When it was delivered to Celery, on the monotonic clock.
    handed_at = math.inf

    def __new__(cls, payload: Any, channel: Any = None, **options: Any) -> FetchedMessage:  # noqa: ARG004
        """Return *payload* if it is a message already."""
        return payload if isinstance(payload, cls) else super().__new__(cls)

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        if payload is not self:
            super().__init__(payload, channel=channel, **options)  # type: ignore[no-untyped-call]

    @classmethod
    def read(cls, item: bytes, tag: str, queue: str, channel: Any) -> FetchedMessage:
        """Return the message of a list's *item* with the delivery *tag*; raises any error if it cannot be read."""
        text = bytes_to_str(item)
        # The decoder of kombu is slow, and only needed for its own types of values.
        payload = loads(text) if "__type__" in text else json.loads(text)
        sent_as, payload["properties"]["delivery_tag"] = payload["properties"].get("delivery_tag"), tag
        # kombu turns the priority into an integer when it restores a message: 1e999999 gets a million digits.
        if isinstance(payload["properties"].get("priority"), Decimal):
            raise TypeError("priority: expected an integer, got a decimal")
        channel._get_message_priority(payload)
        # Make the message here: a later error would stop this worker, and each worker that gets the message.
        message = cls(payload, channel=channel)
        message.queue = queue
        message.sent_as = sent_as if isinstance(sent_as, str) else None
        name = message.headers.get("task") if isinstance(message.headers, dict) else None
        message.task = name if isinstance(name, str) else None
        return message


class Durations:
    """How many seconds the last message of each task took; of up to NAMES tasks."""

    def __init__(self) -> None:
        self._of: dict[str | None, float] = {}

    def note(self, message: FetchedMessage, seconds: float) -> None:
        """Record that *message* took *seconds*."""
        if len(self._of) >= NAMES:
            self._of.clear()
        self._of[message.task] = seconds

    def of(self, message: FetchedMessage) -> float:
        """Return how long the last message of the same task took; infinite if that is not known."""
        return self._of.get(message.task, math.inf)


FREE_WITHIN: Final = 0.002
"""Maximum seconds between an acknowledgement and the batch that frees its place in a flow."""

GIVE_BACK: Final = 0.03
"""Seconds after which a message of a flow that waits for a process returns to the store, where other workers find it.

If the last task of its name ended sooner than that after its delivery, it does not wait here.
"""


class FlowTurns:
    """Shares the room of one channel between messages of lists and of flows; does no I/O.

    A message of a flow is taken only if it starts soon, waits at most GIVE_BACK for a process that is busy, and frees
    its place soon after its end. *processes_left()* are the processes without a task of Celery.
    """

    def __init__(self, admission: Admission, processes_left: Callable[[], int]) -> None:
        self._admission = admission
        self._processes_left = processes_left
        #: Whether flows have the turn: their messages are delivered first, and are one more of an odd number.
        self.come_first = False
        #: When messages that still wait for a process return to the store, on the monotonic clock.
        self.returns_at = math.inf
        # From the handing on of a message until the end of its task.
        self._runs = Durations()

    def share(self, room: int, capacity: Capacity, *, lists_had_messages: bool) -> tuple[int, int]:
        """Return how many messages of *room* to ask for from lists, and how many of flows."""
        of_flows = max(0, min(room, capacity.room))
        if not self._admission.competes:
            return room, of_flows
        if lists_had_messages:
            self.come_first = not self.come_first
            of_flows = min(of_flows, (room + self.come_first) // 2)
        return max(1, room - of_flows), of_flows

    def begin_wait(self) -> float:
        """Record that messages of flows have arrived; return when those that still wait must go back."""
        self.returns_at = monotonic() + GIVE_BACK
        return self.returns_at

    def overdue(self, received: Iterable[FetchedMessage]) -> list[FetchedMessage]:
        """Return those of the *received* messages that have waited too long, and must go back; each only once."""
        if monotonic() < self.returns_at:
            return []
        self.returns_at = math.inf
        return [message for message in received if self.waits(message)]

    def waits(self, message: FetchedMessage) -> bool:
        """Return whether to hold *message* back: Celery would keep it, and its place, behind a running task."""
        if not has_place(message.delivery_tag) or self._runs.of(message) < GIVE_BACK:
            return False
        return self._processes_left() <= 0

    def end(self, message: FetchedMessage | None, free: int) -> float:
        """Record that the task of *message* has ended; return when its place must be freed.

        At once if the worker, with *free* processes, has nothing else to run.
        """
        now = monotonic()
        if message is not None:
            self._runs.note(message, now - message.handed_at)
        # Not before this turn of the event loop ends: first the worker notes that it has room for another message.
        return now + (FREE_WITHIN if free <= 0 else 0.0)
