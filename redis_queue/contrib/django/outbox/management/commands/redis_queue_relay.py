"""``manage.py redis_queue_relay``: move committed calls into the DelayQueue until stopped."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error, close_old_connections, router

from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.waits import Backoff, StopEvent, signal_handler
from redis_queue.contrib.django.outbox.models import Call
from redis_queue.contrib.django.outbox.transfer import Relayed, relay, waiting
from redis_queue.errors import RedisQueueError
from redis_queue.store.chunks import CHUNK

logger = logger_of(__name__)


class Command(BaseCommand):
    """Relays until SIGTERM or Ctrl-C; any number may run."""

    help = "Move delayed tasks from the outbox into Redis."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--status", action="store_true", help="Show how many calls wait, list those set aside or refused, and exit."
        )
        parser.add_argument("--once", action="store_true", help="Move the existing rows and exit.")
        parser.add_argument("--interval", type=float, default=1.0, help="Seconds between two relays (default: 1).")
        parser.add_argument(
            "--database", default=None, help="Database of the outbox (default: by the database router)."
        )

    def handle(self, *_: Any, **options: Any) -> None:
        if not 0.05 <= options["interval"] <= 3600:  # noqa: PLR2004
            raise CommandError(f"--interval {options['interval']:g}: must be from 0.05 to 3600 seconds")
        if options["status"]:
            self._show_status(options["database"] or router.db_for_read(Call))
            return
        if options["once"]:
            try:
                done = self._all(options["database"])
            except RedisQueueError as error:
                raise CommandError(f"not all was relayed: {error}") from error
            self.stdout.write(f"{done.moved:,} relayed, {done.failed:,} failed")
            return
        stopped = StopEvent()
        with signal_handler(lambda *_: stopped.set()):
            self._until(stopped, options["database"], options["interval"])

    def _show_status(self, database: str) -> None:
        # Without payload and times, which may be unreadable in a call that is set aside.
        invalid = Call.objects.using(database).filter(set_aside=True).order_by("id")
        refused = waiting(database).filter(failures__gt=0)
        self.stdout.write(
            f"{waiting(database).count():,} waiting, {refused.count():,} of them refused by Redis before, "
            f"{invalid.count():,} set aside"
        )
        for title, calls in (("set aside", invalid), ("refused", refused)):
            for task_id, task, error in calls.values_list("task_id", "task", "error")[:CHUNK]:
                self.stdout.write(f"{title}: {task} {task_id}: {error}")

    def _until(self, stopped: StopEvent, database: str | None, interval: float) -> None:
        backoff, outage = Backoff(), OutageLog(logger, "cannot relay", "relaying again", action="relay_away")
        while not stopped.is_set():
            try:
                self._all(database)
                backoff.reset()
                outage.end()
                stopped.wait(interval)
            except (RedisQueueError, Error) as error:
                pause = backoff.next()
                outage.note(error, retry_in=pause)
                close_old_connections()
                stopped.wait(pause)

    @staticmethod
    def _all(database: str | None) -> Relayed:
        total = Relayed()
        while (done := relay(using=database)) != Relayed():
            total += done
            if done.moved + done.failed < CHUNK:
                break
        return total
