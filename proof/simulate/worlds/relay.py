"""Django's outbox: a view that writes calls in transactions, two relays into the DelayQueue, and a Celery worker."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Final

import django
from celery import Celery
from django.conf import settings

from proof.simulate.scheduler import EPOCH, SIM
from proof.simulate.server import Server
from proof.simulate.worlds.celery import CeleryWorld
from redis_queue.basics.waits import StopEvent
from redis_queue.errors import RedisQueueError
from redis_queue.validation.history import Event, Violation

DATABASE: Final = "file:outbox?mode=memory&cache=shared"
"""One for all processes of a schedule; it refuses at once what another transaction has locked."""

APPS: Final = ["redis_queue.contrib.django", "redis_queue.contrib.django.outbox"]

ENGINE: Final = {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE, "OPTIONS": {"timeout": 0}}

settings.configure(INSTALLED_APPS=APPS, DATABASES={"default": ENGINE}, USE_TZ=True)
django.setup()

from django.core.management import call_command  # noqa: E402 - after the settings
from django.db import Error, connection, transaction  # noqa: E402 - the same

from redis_queue.contrib.django.outbox import cancel, models, schedule  # noqa: E402 - the same
from redis_queue.contrib.django.outbox.management.commands.redis_queue_relay import Command  # noqa: E402 - the same

AHEAD: Final = 47
"""Seconds by which the clock of the database differs from that of Redis."""

#: The database lives as long as one of its connections.
KEPT: Final = sqlite3.connect(DATABASE, uri=True, timeout=0)


# SQLite has no clock of its own.
vars(models)["time"] = SimpleNamespace(time_ns=lambda: round((EPOCH + SIM.now + AHEAD) * 1e9))


class RelayWorld(CeleryWorld):
    """A view whose transactions may fail, relays, and a worker that dispatches and runs."""

    #: A failover undoes what a relay has moved.
    spared = frozenset({"failover"})
    #: A relay that does not learn that it has stored a call stores it again, also after it was sent.
    harmless = frozenset({"skew"})
    longest = 4.0

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        call_command("migrate", verbosity=0)
        models.Call.objects.all().delete()
        self.undone_calls: set[str] = set()

    @property
    def roles(self) -> dict[str, Callable[[], object]]:
        return {"sender": self.send, "relay-1": self.relay, "relay-2": self.relay, "worker-1": self.work}

    def connect(self) -> None:
        """Connect this process to the database; what it did not commit is rolled back when it ends."""
        assert SIM.current is not None
        self.app().set_current()
        connection.ensure_connection()
        SIM.current.process.at_exit.append(connection.connection.close)

    def send(self) -> None:
        """Write calls, one after the other."""
        self.connect()
        super().send()

    def call(self, _: Celery, label: str, delay: float) -> str:
        """Write the call of *label*; one in four transactions is rolled back, one in four calls is cancelled."""
        choice = SIM.rng.random()
        try:
            with transaction.atomic():
                schedule("run", (label,), countdown=delay or None, task_id=label)
                if choice < 0.25:
                    self.undone_calls.add(label)
                    raise RedisQueueError("the request failed")
            if choice > 0.75:
                time.sleep(SIM.rng.uniform(0, delay + 2))
                self.note(Event("cancel", "invoke", label))
                done = cancel(label)
                self.note(Event("cancel", "ok" if done else "refused", label, at=self.now_ms()))
        except Error as error:
            raise RedisQueueError(str(error)) from error
        return label

    def relay(self) -> None:
        self.connect()
        Command()._until(StopEvent(), None, 1.0)

    def wrong(self) -> Iterator[Violation]:
        """Yield calls that ran although their transaction was rolled back."""
        yield from super().wrong()
        ran = {event.id for event in self.events if event.op == "claim"}
        yield from (Violation("rolled back, but ran", label, self.events) for label in sorted(self.undone_calls & ran))

    def is_done(self) -> bool:
        try:
            (waiting,) = KEPT.execute("SELECT count(*) FROM redis_queue_outbox_call").fetchone()
        except sqlite3.OperationalError:
            return False
        return not waiting and super().is_done()
