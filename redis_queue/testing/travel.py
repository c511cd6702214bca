"""The clock of a test, which the test moves, and the store in which messages of flows wait by that clock."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from celery import Celery

from redis_queue.admission.flows import OF_QUEUE, route_of
from redis_queue.basics.times import from_ms
from redis_queue.celery.admission.admission import FlowReply
from redis_queue.celery.admission.sender import FlowSender
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.store import Store
from redis_queue.store.ids import id_text
from redis_queue.store.scripts import Scripts

MoveTo = Callable[[datetime], object]
"""Move the clock of the process: ``move_to`` of time-machine or freezegun."""

MAX_AGE: Final = 60_000
"""Milliseconds that a slow test may take between a send and a look at it."""

LEASE_MS: Final = 3_600_000
"""The lease of a message, which nobody looks at here."""

FOR_WORKERS: Final = "redis_queue.testing:for_workers"
"""Queue of the messages that nothing takes here: they own their keys, but use no limits."""


class TravelClock:
    """The clock of the process plus the travelled time; it can be stopped."""

    def __init__(self) -> None:
        self.move_to: MoveTo | None = None
        self._ahead = 0
        self._stopped: int | None = None
        self._travelled: list[tuple[int, int]] = []

    def __call__(self) -> int:
        """Return milliseconds since the epoch."""
        return _process_ms() + self._ahead if self._stopped is None else self._stopped

    def stop_at(self, moment: int) -> None:
        """Stop at *moment*, or now if that is later."""
        here = self()
        self._stopped = max(moment, here)
        self._travelled.append((here, self._stopped))
        if self.move_to is not None:
            self.move_to(from_ms(self._stopped))

    def resume(self) -> None:
        """Continue from the time at which it was stopped."""
        if self._stopped is not None:
            self._ahead = self._stopped - _process_ms()
            self._stopped = None

    def age(self, since: int) -> int:
        """Return the ms since *since* without travelled time, at most a minute."""
        travelled = sum(max(0, to - max(begin, since)) for begin, to in self._travelled)
        return min(max(0, self() - since - travelled), MAX_AGE)


def _process_ms() -> int:
    # Not time_ns(): freezegun and time-machine both move this one.
    return int(time.time() * 1000)


class TravelSender(FlowSender):
    """The sender of messages of flows of *app*, with any broker: messages do not reach it.

    *note* gets each message that is sent at once. It runs here if *is_eager* returns True, else it is for workers.
    """

    def __init__(self, app: Celery, is_eager: Callable[[], bool], note: Callable[[Envelope], Any]) -> None:
        super().__init__(app, check=lambda _: None)
        self._is_eager = is_eager
        self._note = note
        #: The ids of the tasks that wait until their limits admit them.
        self.waiting: set[str] = set()
        #: When the next message may be taken by its rate, in ms since the epoch, as :meth:`take` has found.
        self.due_ms = math.inf

    def prepare(self, envelope: Envelope, queue: str, header: FlowHeader, *, is_new: bool = True) -> Callable[[], bool]:
        """Return a call that puts a message behind the others; False if another one owns its key."""
        runs_here = self._is_eager() or not is_new
        send = super().prepare(envelope, queue if runs_here else FOR_WORKERS, header, is_new=is_new)

        def call() -> bool:
            sent = send()
            if sent and is_new:
                self._note(envelope)
            if sent and runs_here:
                self.waiting.add(envelope.id)
            return sent

        return call

    def take(self) -> tuple[str, Envelope] | None:
        """Take the next message that its flows admit now; return its delivery tag and the message, or None."""
        store = Store.of(self._app)
        scripts, keys = Scripts(store.client), store.flow_keys
        flows = map(id_text, scripts.command("HKEYS", keys.backlog))
        queues = sorted({flow.removeprefix(OF_QUEUE) for flow in flows if flow.startswith(OF_QUEUE)} - {FOR_WORKERS})
        now, tag = store.clock(), f"{os.urandom(8).hex()}-"
        reply = self._script("admission/take")(
            now=now,
            limit=1,
            at_once=1,
            tag=tag,
            channel="",
            turn=0,
            settled=0,
            lease=LEASE_MS,
            more=[part for queue in queues for part in (queue, route_of(queue))],
        )
        taken = FlowReply.of(reply)
        self.due_ms = now + taken.next_in * 1000
        if not taken.messages:
            return None
        ((_, message),) = taken.messages
        envelope = Envelope.of_element(message)
        self.waiting.discard(envelope.id)
        return f"{tag}001", envelope

    def settle(self, tag: str) -> None:
        """Settle a message that has run."""
        self._script("admission/settle")(now=Store.of(self._app).clock(), more=[tag])

    def _script(self, name: str) -> Callable[..., Any]:
        store = Store.of(self._app)
        names = ("index", "unacked", "line", "listener", "lease_ends")
        of_worker = {name: f"{{{store.prefix}:flow}}:testing:{name}".encode() for name in names}
        return Scripts(store.client).bind(name, store.flow_keys, **of_worker)
