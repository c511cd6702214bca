"""FlowTurns: what a channel does differently with messages of flows, which hold places that others wait for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from redis_queue.celery.admission.admission import Admission, Capacity, has_place
from redis_queue.celery.fetch.message import Durations, FetchedMessage

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
        self.returns_at = time.monotonic() + GIVE_BACK
        return self.returns_at

    def overdue(self, received: Iterable[FetchedMessage]) -> list[FetchedMessage]:
        """Return those of the *received* messages that have waited too long, and must go back; each only once."""
        if time.monotonic() < self.returns_at:
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
        now = time.monotonic()
        if message is not None:
            self._runs.note(message, now - message.handed_at)
        # Not before this turn of the event loop ends: first the worker notes that it has room for another message.
        return now + (FREE_WITHIN if free <= 0 else 0.0)
