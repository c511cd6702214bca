"""DelayedTasks: make every delayed task of a Celery app durable, in one line."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from celery.app.amqp import AMQP

from redis_queue.basics.times import Seconds
from redis_queue.celery.control.cancels import wrap_control
from redis_queue.celery.dispatch.beat import wait_in_outages
from redis_queue.celery.intake import restore_requests
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.publish.bulk import Bulk, Sent
from redis_queue.celery.publish.capture import Capture
from redis_queue.celery.publish.send import seconds_of
from redis_queue.celery.store import ATTRIBUTE
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.celery.task_leases import TaskLeases
from redis_queue.celery.tracing import describe_runs
from redis_queue.celery.worker import install_worker
from redis_queue.store.chunks import CHUNK

if TYPE_CHECKING:
    from celery import Celery


class DelayedTasks(StoredTasks):
    """Every ``countdown=``, ``eta=`` and ``retry()`` of *app* waits in Redis until it is due.

    After a call with a delay returns, the task is as durable as its Redis. It is sent to its normal queue when it is
    due by the clock of the Redis server, not earlier. Any worker of the app moves due tasks; so does ``celery -A app
    redis-queue dispatch``. Settings are ``redis_queue_*`` in the app's configuration
    (:class:`redis_queue.celery.settings.CelerySettings`). Raises ConfigurationError for invalid settings, at the first
    use or when a worker starts. A second call for the same app returns the same object. With *leases* the app gets
    :class:`redis_queue.celery.TaskLeases` as well.
    """

    def __new__(cls, app: Celery, *, leases: bool = False) -> DelayedTasks:  # noqa: ARG004 - for __init__
        found: DelayedTasks | None = vars(app).get(ATTRIBUTE)
        return found if found is not None else super().__new__(cls)

    def __init__(self, app: Celery, *, leases: bool = False) -> None:
        if leases:
            TaskLeases(app)
        if vars(app).get(ATTRIBUTE) is self:
            return
        super().__init__(app)
        setattr(app, ATTRIBUTE, self)
        self._capture = Capture(self)
        self._capture.wrap_calls()
        install_worker(app)
        wrap_control(self)
        describe_runs()
        restore_requests()
        wait_in_outages()
        if not _is_amqp_in_creation(app):
            self.attach(app.amqp)

    def attach(self, amqp: AMQP) -> None:
        """Store the delayed messages that *amqp* sends."""
        self._capture.wrap(amqp)

    def push_many(self, signatures: Iterable[Any], *, countdown: Seconds | None = None) -> builtins.list[Any]:
        """Delay many signatures at once, one round trip per 500; return their results in order.

        The ``countdown`` or ``eta`` of a signature takes precedence over *countdown*. Raises InvalidValueError for a
        signature without a delay; earlier full batches of 500 stay stored.
        """
        results: builtins.list[Any] = []
        batch: builtins.list[tuple[Envelope, Due]] = []
        seconds = seconds_of(countdown)
        with Bulk(self.app, self._collect, self.settings.min_delay_seconds).open() as bulk:
            for signature in signatures:
                result, kept = bulk.message(signature, seconds)
                results.append(result)
                batch += kept
                if len(batch) >= CHUNK:
                    self.writer.store(batch)
                    batch = []
        self.writer.store(batch)
        return results

    def _collect(self, signature: Any, options: Mapping[str, Any]) -> Sent:
        """Call *signature* through Celery; return its result and the messages to store."""
        results: builtins.list[Any] = []
        kept = self._capture.collect(lambda: results.append(signature.apply_async(**options)))
        return results[0], kept


def _is_amqp_in_creation(app: Celery) -> bool:
    # With Celery(amqp=…), the AMQP object creates the DelayedTasks while app.amqp is still being created.
    return isinstance(app.amqp_cls, str) and app.amqp_cls.endswith(":DelayedAMQP") and "amqp" not in vars(app)


class DelayedAMQP(AMQP):  # type: ignore[misc]
    """For ``Celery(amqp="redis_queue.celery:DelayedAMQP")``: delayed tasks of the app wait in Redis."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        DelayedTasks(app).attach(self)
