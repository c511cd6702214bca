"""Revokes: a worker discards the calls of revoked tasks, also after a restart, but no newer calls with their ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from celery import Celery, bootsteps
from celery.utils.collections import LimitedSet
from celery.worker import state
from celery.worker.request import Request

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.kombu.internals import around
from redis_queue.celery.message.headers import call_in
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.delay.entries import MAX_REVOKED, REMEMBERED
from redis_queue.errors import RedisQueueError
from redis_queue.store.ids import is_id

logger = logger_of(__name__)

HAND_OVER: Final = frozenset(f"celery.concurrency.{name}" for name in ("thread", "gevent", "eventlet"))
"""Modules of the pools that start a task later than Celery asks whether it is revoked."""

RETRY: Final = 5.0
"""Seconds after which a worker that could not read the revoked ids tries again."""


class RevokedIds(LimitedSet):  # type: ignore[misc]
    """Celery's set of revoked ids, which also has those of the store.

    Thousands of others push Celery's own ids out; so do ids from a host whose monotonic clock is ahead.
    """

    @property
    def _stored(self) -> dict[str, float]:
        """The ids of the store, with the ends on the monotonic clock, in this order."""
        found: dict[str, float] = self.__dict__.setdefault("stored", OrderedDict())
        return found

    def add_stored(self, ids: Iterable[str]) -> None:
        """Keep *ids* for as long as the store does."""
        now, stored = monotonic(), self._stored
        for id_ in ids:
            stored.pop(id_, None)
            stored[id_] = now + REMEMBERED / 1000
        # Oldest first.
        while stored and (len(stored) > MAX_REVOKED or next(iter(stored.values())) < now):
            del stored[next(iter(stored))]

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(key) or key in self._stored

    def discard(self, item: Any) -> None:
        super().discard(item)
        self._stored.pop(item, None)

    pop_value = discard

    def clear(self) -> None:
        super().clear()
        self._stored.clear()

    def __reduce__(self) -> Any:
        # The file of --statedb is also read without redis_queue.
        return LimitedSet, super().__reduce__()[1]


def discard_tasks(ids: Iterable[str]) -> None:
    """Make this worker discard the tasks *ids*."""
    if not isinstance(state.revoked, RevokedIds):
        # Not another set: modules of Celery have this one.
        state.revoked.__class__ = RevokedIds
    state.revoked.add_stored(ids)


class RevokeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Bootstep that reads the revoked ids of the store, and checks messages with such an id before they are discarded.

    It starts when the worker hears broadcasts, so that it misses no revoke, and before it receives messages.
    """

    requires = ("celery.worker.consumer.control:Control",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._app = consumer.app
        if type(consumer.pool).__module__ in HAND_OVER:
            around(consumer.pool, "on_apply", _unless_revoked)

    def start(self, consumer: Any) -> None:
        """Read the ids; while the store is away, try again later."""
        stored = delayed_of(consumer.app)
        if stored is None:
            return
        try:
            discard_tasks(reversed(list(stored.queue.revokes.revoked_ids())))
        except RedisQueueError as error:
            logger.warning("cannot read the revoked ids: %s", error, extra={"action": "revokes_unknown"})
            consumer.timer.call_after(RETRY, self.start, (consumer,))

    def intake(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return *handle*, before which a message that is newer than the revoke of its id clears that id."""

        def on_message(message: Any) -> Any:
            headers = message.headers or {}
            task_id = headers.get("id") or (message.properties or {}).get("correlation_id")
            if isinstance(task_id, str) and task_id in state.revoked and is_newer(self._app, task_id, headers):
                state.revoked.discard(task_id)
            return handle(message)

        return on_message


def _unless_revoked(apply: Callable[..., Any], target: Any, args: Any, kwargs: Any, **options: Any) -> Any:
    """Let a pool *apply* a *target*, but discard a task that is revoked or expired when it is to start."""
    accepted, discarded = options.get("accept_callback"), False
    request: Any = getattr(accepted, "__self__", None)

    def accept(*found: Any) -> None:
        nonlocal discarded
        discarded = request.revoked()
        kept(accepted)(*found)

    def kept(call: Any) -> Any:
        return lambda *args, **kwargs: None if discarded else call(*args, **kwargs)

    if isinstance(request, Request):
        target, options = kept(target), {**options, "accept_callback": accept, "callback": kept(options["callback"])}
    return apply(target, args, kwargs, **options)


def is_newer(app: Celery, task_id: str, headers: Mapping[str, Any]) -> bool:
    """Return whether the call in *headers* was stored after *task_id* was revoked; asks Redis.

    False if unknown: then Celery's rule applies, and the call is discarded.
    """
    stored, call = delayed_of(app), call_in(headers)
    if stored is None or call is None or not is_id(task_id):
        return False
    try:
        return bool(stored.queue.revokes.is_renewed(task_id, call))
    except RedisQueueError as error:
        extra = {"action": "store_unavailable", "task_id": task_id}
        logger.warning("cannot tell whether %s is newer than its revoke: %s", task_id, error, extra=extra)
        return False


def has_newer_call(app: Celery, task_id: str) -> bool:
    """Return whether this worker holds a call of *task_id* that is newer than its revoke."""
    request = state.requests.get(task_id)
    return request is not None and is_newer(app, task_id, request.request_dict)
