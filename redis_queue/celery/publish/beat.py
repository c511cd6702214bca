"""Beat waits for a broker that is away or refuses messages, instead of leaving runs out."""

from __future__ import annotations

from typing import Any

from celery import signals
from kombu.exceptions import OperationalError

from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.waits import Backoff
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.errors import StoreUnavailableError
from redis_queue.store.redis_errors import is_outage, redact

logger = logger_of(__name__)


def wait_in_outages() -> None:
    """Let beat send a run that is due once its broker takes it, for apps with DelayedTasks; no-op if already done.

    Celery logs a stack trace for each run that it cannot send, and leaves it out.
    """
    signals.beat_init.connect(_wait_in_outages, weak=False, dispatch_uid="redis_queue_beat_waits")


def _wait_in_outages(sender: Any, **_: Any) -> None:
    from celery.beat import SchedulingError  # noqa: PLC0415 - only beat has it loaded

    scheduler, stopped = sender.scheduler, sender._is_shutdown
    if delayed_of(scheduler.app) is None:
        return
    send, backoff = scheduler.apply_async, Backoff(first=0.2)
    log = OutageLog(logger, "beat cannot send", "beat sends again", action="beat_waits")

    def apply_async(entry: Any, *args: Any, **options: Any) -> Any:
        while True:
            try:
                found = send(entry, *args, **options)
            except SchedulingError as error:
                cause = error.__context__
                if cause is None or not (is_outage(cause) or isinstance(cause, OperationalError)):
                    raise
                pause = backoff.next()
                log.note(StoreUnavailableError(redact(str(cause))), retry_in=pause)
                if stopped.wait(pause):
                    raise
            else:
                backoff.reset()
                log.end()
                return found

    scheduler.apply_async = apply_async
