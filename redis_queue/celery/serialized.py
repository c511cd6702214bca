"""serialized: run one task per key at a time; a task that finds the lock taken waits in the DelayQueue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from celery import current_task, states
from celery.app.task import Task
from celery.local import Proxy

from redis_queue.celery.consume.deferral import DEFERS, SERIAL, Deferred, serial_of, wake
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.errors import ConfigurationError, InvalidValueError, LockTakenError, RedisQueueError
from redis_queue.key_template import Key
from redis_queue.lock.lock import HeldLock, Lock, held_here
from redis_queue.lock.serialized import RetryIn, Serial
from redis_queue.logs import logger_of
from redis_queue.store.ids import is_id
from redis_queue.times import Seconds

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

MOST_WOKEN: Final = 5
"""Most waiting tasks that a finished task tries to make due at once, until one succeeds."""

BEGAN: Final = "redis_queue_began"
"""Attribute of a request whose task has started: its message cannot go back any more."""

F = TypeVar("F", bound=Callable[..., Any])


def serialized(*, key: Key, retry_in: RetryIn = 5.0, lease: Seconds = 60.0, wait: Seconds = 0.0) -> Callable[[F], F]:
    """Never run two tasks with the same *key* at the same time; put this decorator below ``@app.task``.

    *key* is a format string over the arguments, such as ``"customer:{customer_id}"``, or a function of them. All tasks
    with that key share one lock, in all apps with the same store and prefix. A task that finds the lock taken waits
    *wait* seconds for it in the worker. Then its message goes back into the app's DelayQueue unchanged, and no retry is
    counted. It runs again in *retry_in* seconds (a number, or a function of the arguments; up to a fifth is added), or
    once the lock is free if it has waited longest. The order of waiting tasks is not promised.

    While the task runs, its lease of *lease* seconds is extended; if its process dies, the next one runs when the lease
    has ended. :func:`redis_queue.current_lock` has the ``fence`` for writes to other systems. Needs
    ``DelayedTasks(app)``; without it the task fails with ConfigurationError. If it is called directly or eagerly and
    the lock is taken, it raises LockTakenError. Raises InvalidValueError for invalid arguments, at once.
    """

    def decorate(function: F) -> F:
        _check_function(function)
        serial = Serial(function, key, retry_in, lease, wait)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return _run(serial, args, kwargs)

        # Celery reads the signature of the function that it gets.
        vars(run)["__signature__"] = serial.signature
        vars(run)[SERIAL] = serial
        return cast("F", run)

    return decorate


def _check_function(function: Any) -> None:
    if issubclass(type(function), (Task, Proxy)):
        raise ConfigurationError("@serialized is above @app.task: put it below, next to the function")
    if not callable(function):
        raise InvalidValueError(f"serialized(…) of {function!r}: must be a function")


def _run(serial: Serial, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    task = _task_of(serial, args)
    own = 1 if args and args[0] is task else 0
    name = serial.name_of(args, kwargs, own=own)
    defers = _can_defer(task)
    store = Store.of(task.app)
    lock = Lock(name, store.client, lease=serial.lease, prefix=store.prefix)
    if held_here(lock):
        # A task that calls itself would wait for its own lock.
        return serial.function(*args, **kwargs)
    waiter = str(task.request.id) if defers and is_id(task.request.id) else ""
    held = lock.acquire(wait=serial.wait, id=waiter)
    if held is None:
        if not defers:
            raise LockTakenError(f"{task.name}: another holder has the lock {name!r}")
        raise _deferred(task, name, serial.delay_of(args, kwargs, own=own))
    request = task.request
    setattr(request, BEGAN, True)
    try:
        return serial.function(*args, **kwargs)
    finally:
        setattr(request, BEGAN, False)
        _release(held, task.app)


def _task_of(serial: Serial, args: tuple[Any, ...]) -> Any:
    """Return the task that runs *serial*'s function."""
    task = current_task._get_current_object() if current_task else None
    if task is not None and serial_of(task) is serial:
        return task
    if args and isinstance(args[0], Task):
        return args[0]
    raise ConfigurationError(f"{serial.function.__name__}() is serialized: call its task, which knows the app")


def _can_defer(task: Any) -> bool:
    """Tell whether the message of this run can go back; raises ConfigurationError if it must, but cannot."""
    request = task.request
    if request.called_directly or request.is_eager or getattr(request, BEGAN, False):
        return False
    if delayed_of(task.app) is None:
        raise ConfigurationError(f"{task.name} is serialized: its app needs DelayedTasks(app)")
    if not (request.properties or {}).get(DEFERS):
        raise ConfigurationError(f"{task.name} is serialized: define it before the worker starts")
    return True


def _deferred(task: Any, name: str, delay: float) -> Deferred:
    if task.track_started and not task.request.ignore_result:
        # Not STARTED any more.
        task.backend.store_result(task.request.id, None, states.PENDING, request=task.request)
    return Deferred(name, delay)


def _release(held: HeldLock, app: Celery) -> None:
    """Release the lock, and let the task that has waited longest run at once."""
    waiting = held.release().waiting
    delayed = delayed_of(app)
    if waiting is None or delayed is None:
        return
    try:
        for _ in range(MOST_WOKEN):
            # False: not stored yet, being sent, cancelled, or stored again with another due time.
            woken = is_id(waiting) and wake(delayed, waiting)
            waiting = held.lock.pass_over(waiting)
            if woken or waiting is None:
                return
    except RedisQueueError as error:
        # The next task runs by itself, only later.
        logger.warning(
            "cannot make the next waiting task due: %s", error, extra={"action": "wake_failed", "lock": held.lock.name}
        )
