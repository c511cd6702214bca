"""DurableTasks: make the tasks of a Celery app durable, in one line."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from celery import Celery, signals, uuid
from celery.app.amqp import AMQP
from celery.canvas import Signature

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import TaskConditions
from redis_queue.basics.times import Seconds
from redis_queue.basics.waits import PerLoop
from redis_queue.celery.async_calls import TIMEOUT, ResultWaits, within, without_subscription
from redis_queue.celery.async_tasks import run_async_tasks
from redis_queue.celery.control.cancels import wrap_control
from redis_queue.celery.dispatch.beat import wait_in_outages
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.outcome import DispatchReport
from redis_queue.celery.intake import restore_requests
from redis_queue.celery.leases.connections import prefer_safe_settings, prepare_connections
from redis_queue.celery.leases.poison import count_starts
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.publish.batch import Batch, batch_groups, read_ahead, subscribe_in_batches
from redis_queue.celery.publish.capture import Capture
from redis_queue.celery.publish.send import Sends, seconds_of
from redis_queue.celery.schedules.declaration import Declaration, DeclareReport
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.celery.settings import ATTRIBUTE, extension_of
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.celery.tracing import describe_runs
from redis_queue.celery.worker import install_steps
from redis_queue.errors import ConfigurationError, DuplicateTaskError
from redis_queue.model import CancelOutcome, DeadLetter

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class DurableTasks(StoredTasks):
    """Tasks of *app* survive restarts and crashes of workers: those that wait, and those that run.

    *delays*: every ``countdown=``, ``eta=`` and ``retry()`` waits in Redis until it is due. After a call with a delay
    returns, the task is as durable as its Redis. It is sent to its normal queue when it is due by the clock of the
    Redis server, not earlier. Any worker of the app moves due tasks; so does ``celery -A app redis-queue dispatch``.

    *leases*: workers hold their tasks under leases. On a Redis broker they renew them as long as they live, and fetch
    and settle messages in batches. So a task may run for longer than ``visibility_timeout`` and still runs once, and
    the tasks of a killed worker start again within one and a half times ``redis_queue_task_lease`` (60 s). What workers
    without leases hold comes back by kombu's own rule, so both kinds may share queues. ``task_acks_late`` and
    ``task_reject_on_worker_lost`` are True unless the app, or a task, sets them. On any broker, a task that takes its
    worker down ``redis_queue_max_deliveries`` times (5; a task may have its own ``max_deliveries``) is not run again:
    it becomes a dead letter of the app's DelayQueue, and its state is FAILURE.

    Flow control and unique tasks need both. Either is turned off by False; workers report what they do unless
    ``redis_queue_monitor`` is off. Settings are ``redis_queue_*`` in the app's configuration
    (:class:`redis_queue.celery.settings.CelerySettings`). Raises ConfigurationError if both are off, and for invalid
    settings, at the first use or when a worker starts. A second call for the same app returns the same object, and
    raises ConfigurationError if it has other arguments; ``DurableTasks.of(app)`` returns the object in any case.
    """

    def __new__(cls, app: Celery, *, delays: bool = True, leases: bool = True) -> DurableTasks:  # noqa: ARG004
        found: DurableTasks | None = extension_of(app)
        return found if found is not None else super().__new__(cls)

    def __init__(self, app: Celery, *, delays: bool = True, leases: bool = True) -> None:
        if extension_of(app) is self:
            if (delays, leases) != (self.delays, self.leases):
                raise ConfigurationError(
                    f"DurableTasks(app, delays={delays}, leases={leases}): the app has DurableTasks with "
                    f"delays={self.delays}, leases={self.leases}: call it once, or with the same arguments"
                )
            return
        if not delays and not leases:
            raise ConfigurationError("DurableTasks(app, delays=False, leases=False): one of them must be on")
        super().__init__(app)
        self.delays = delays
        self.leases = leases
        self.capture = Capture(self)
        setattr(app, ATTRIBUTE, self)
        app.fixups = {*app.fixups, partial(_install_on_copy, delays=delays, leases=leases)}
        run_async_tasks(app)
        install_steps(app, delays=delays, leases=leases)
        if leases:
            prefer_safe_settings(app)
            prepare_connections(app)
            count_starts()
        if delays:
            self._install_delays(app)

    def _install_delays(self, app: Celery) -> None:
        self.capture.wrap_calls()
        wrap_control(self)
        describe_runs()
        restore_requests()
        wait_in_outages()
        batch_groups()
        if not _is_amqp_in_creation(app):
            self.attach(app.amqp)

    @property
    def sends(self) -> Sends:
        """What each thread is about to send."""
        return self.capture.sends

    @LazyProperty
    def schedules(self) -> Schedules:
        """The periodic tasks of the app: put, list, pause and delete them, and see their runs.

        Raises ConfigurationError without *delays*.
        """
        if not self.delays:
            raise ConfigurationError("schedules need DurableTasks(app) with delays")
        return Schedules(self.app)

    def declare_schedules(self, *, force: bool = False) -> DeclareReport:
        """Store the app's ``beat_schedule``, unless a newer version of it is stored; *force*: make this one the newest.

        Dispatchers do so when they start, if ``redis_queue_schedules`` is on. Raises StoreError.
        """
        return Declaration(self.schedules).make(force=force)

    def attach(self, amqp: AMQP) -> None:
        """Store the delayed messages that *amqp* sends."""
        self.capture.wrap(amqp)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Send the messages that this thread sends in the `with` block together, up to 500 in a round trip.

        Messages of unique tasks and of flows, and those for other brokers than Redis, are sent one by one. If one
        cannot be sent, those that wait to be sent are dropped. Raises PartlySentError if others were sent by then.
        """
        if not self.delays:
            raise ConfigurationError("batch() needs DurableTasks(app) with delays")
        if self.sends.batch is not None:
            self.sends.batch.forget()
            yield self.sends.batch
            return
        conf = self.app.conf
        retries = {"retry": conf.task_publish_retry, "retry_policy": conf.task_publish_retry_policy}
        batch = Batch(self.writer.store, retries)
        subscribe_in_batches(self.app, self.sends.batch_of_result)
        with batch.ending():
            with self.sends.collect(batch):
                yield batch
            batch.send()

    def send_many(self, signatures: Iterable[Any], *, countdown: Seconds | None = None) -> builtins.list[Any]:
        """Send many signatures in a :meth:`batch`; return their results in order.

        It reads up to 500 of them, for 10 ms, and then sends these; one by one if code of your own takes part, as a
        receiver or a task class with its own ``apply_async``. *countdown* delays those that have no ``countdown`` and
        no ``eta``. For a unique task whose key is taken, the result is that of the task that owns the key. Raises
        InvalidDelayError, and what sending a single one raises.
        """
        delay = {} if countdown is None else {"countdown": seconds_of(countdown)}
        results: builtins.list[Any] = []

        def send(signature: Any, apply: Callable[..., Any]) -> Any:
            timed = signature.options.get("countdown") or signature.options.get("eta")
            try:
                return apply(signature, **({} if timed else delay))
            except DuplicateTaskError as error:
                return self.app.AsyncResult(error.task_id)

        with self.batch() as batch:
            chunks = read_ahead(signatures)
            for chunk in iter(partial(self.sends.alone, next, chunks, None), None):
                if self.capture.may_batch(chunk):
                    results += [send(signature, batch.apply) for signature in chunk]
                    batch.send()
                    continue
                for signature in chunk:
                    results.append(self.sends.alone(send, signature, type(signature).apply_async))
                    sent = getattr(results[-1], "results", results[-1:])
                    batch.sent += [one.id for one in sent if hasattr(one, "id")]
        return results

    async def asend(
        self,
        task: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: Seconds = TIMEOUT,
        **options: Any,
    ) -> Any:
        """Send *task* (a task, its name or a signature) as its ``apply_async`` does, without blocking the event loop.

        *options* are those of ``apply_async``, such as ``countdown=``. Returns its result. Raises what ``apply_async``
        raises, and TimeoutError after *timeout* seconds: the error tells whether the task may have been sent, and its
        id. If the caller is cancelled meanwhile, the task may be sent.
        """
        send = partial(self.app.send_task, task) if isinstance(task, str) else task.apply_async
        if not isinstance(task, Signature):
            options.setdefault("task_id", uuid())
        name = f"asend({getattr(task, 'name', task)!s:.200}), task id {options.get('task_id', 'unknown')}"
        return await within(
            timeout, partial(without_subscription, self.app, partial(send, args, kwargs, **options)), name
        )

    async def aresult(self, result: Any, *, timeout: Seconds) -> Any:
        """Return the value of *result* when its task has ended; raise the error of the task.

        *result* is what :meth:`asend` returns, also of a chain, group or chord. Raises TimeoutError after *timeout*.
        All results that are waited for are read together, every 10 ms at first, later every 0.5 s.
        """
        return await self._result_waits.get().wait(result, timeout)

    async def acancel(self, id: str, *, timeout: Seconds = TIMEOUT) -> CancelOutcome:
        """Cancel a delayed task as :meth:`cancel` does. Raises TimeoutError: then the task may be cancelled."""
        return await self.acall(self.cancel, id, timeout=timeout)

    async def alist(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        timeout: Seconds = TIMEOUT,
        **conditions: Unpack[TaskConditions],
    ) -> builtins.list[TaskEntry]:
        """Return a page of waiting tasks as :meth:`list` does. Raises TimeoutError."""
        return await self.acall(partial(self.list, after=after, limit=limit, **conditions), timeout=timeout)

    async def acall(self, work: Callable[..., T], *args: Any, timeout: Seconds = TIMEOUT, **kwargs: Any) -> T:
        """Return what *work*, any method of this object or of a task, returns, without blocking the event loop.

        It runs in one of 8 threads, with a copy of the context. Raises what it raises, and TimeoutError after
        *timeout* seconds: if it had not begun, it has no effect; else it runs on, and may take effect.
        """
        name = getattr(getattr(work, "func", work), "__name__", "a call")
        return await within(timeout, partial(work, *args, **kwargs), name)

    @LazyProperty
    def _result_waits(self) -> PerLoop[ResultWaits]:
        return PerLoop(lambda: ResultWaits(self.app))

    def dead_letters(self, offset: int = 0, limit: int = 100) -> builtins.list[DeadLetter]:
        """Return a page of dead letters, oldest first: tasks that took their workers down or could not be sent."""
        return self.queue.dead_letters(offset=offset, limit=limit)

    def redrive(self, ids: Iterable[str] | None = None, *, rate: float | None = None) -> int:
        """Send dead letters (default: all) again, their deliveries counted from zero; return how many."""
        alive = self.queue.redrive(ids, rate=rate)
        dispatcher = Dispatcher(self.app, self.queue)
        try:
            report = DispatchReport(self.queue)
            report.add(dispatcher.run())
            report.write(leads=False, at_once=True)
        finally:
            dispatcher.close()
        return alive


def _install_on_copy(app: Celery, *, delays: bool, leases: bool) -> None:
    """Install DurableTasks on *app*, the copy that a process of a pool gets which is spawned, not forked.

    Celery makes a copy with the fixups of the original. Its tasks are imported later, and belong to the copy.
    """

    def install(**_: Any) -> None:
        DurableTasks(app, delays=delays, leases=leases)

    signals.import_modules.connect(install, weak=False, sender=app)


def _is_amqp_in_creation(app: Celery) -> bool:
    # With Celery(amqp=…), the AMQP object creates the DurableTasks while app.amqp is still being created.
    return isinstance(app.amqp_cls, str) and app.amqp_cls.endswith(":DelayedAMQP") and "amqp" not in vars(app)


class DelayedAMQP(AMQP):  # type: ignore[misc]
    """For ``Celery(amqp="redis_queue.celery:DelayedAMQP")``: delayed tasks of the app wait in Redis.

    Leases are off: when the app makes this object, its tasks may have read their settings already.
    """

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        durable: DurableTasks = extension_of(app) or DurableTasks(app, leases=False)
        durable.attach(self)
