"""TravelGate: messages of flows in a test, taken as by a worker, by the clock of the test."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from redis_queue.celery.consume.gates import Taken
from redis_queue.celery.flow.gate import Gate
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.flow_header import FlowHeader
from redis_queue.celery.store import Store
from redis_queue.flow.flows import OF_QUEUE, route_of
from redis_queue.store.ids import id_text
from redis_queue.store.scripts import Scripts

if TYPE_CHECKING:
    from celery import Celery

LEASE_MS: Final = 3_600_000
"""The lease of a message, which nobody looks at here."""

FOR_WORKERS: Final = "redis_queue.testing:for_workers"
"""Queue of the messages that nothing takes here: they own their keys, but use no limits."""


class TravelGate(Gate):
    """The gate of *app*, with any broker: messages do not reach it.

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
        """Return a call that puts a message into the gate; False if another one owns its key."""
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
        reply = self._script("flow/take")(
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
        taken = Taken.of(reply)
        self.due_ms = now + taken.next_in * 1000
        if not taken.messages:
            return None
        ((_, message),) = taken.messages
        envelope = Envelope.of_element(message)
        self.waiting.discard(envelope.id)
        return f"{tag}001", envelope

    def settle(self, tag: str) -> None:
        """Settle a message that has run."""
        self._script("flow/settle")(now=Store.of(self._app).clock(), more=[tag])

    def _script(self, name: str) -> Callable[..., Any]:
        store = Store.of(self._app)
        names = ("index", "unacked", "line", "listener", "lease_ends")
        of_worker = {name: f"{{{store.prefix}:flow}}:testing:{name}".encode() for name in names}
        return Scripts(store.client).bind(name, store.flow_keys, **of_worker)
