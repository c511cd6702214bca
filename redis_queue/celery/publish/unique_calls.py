"""UniqueCalls: send a unique task only if no other one owns its key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid

from redis_queue.admission.owners import HOLD_MS, AcquireReply, new_token
from redis_queue.admission.rules import TIME, Unique
from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import duration_ms, monotonic, to_ms
from redis_queue.celery.admission.policy import UniquePolicy
from redis_queue.celery.message.apply_async import POSITIONAL
from redis_queue.celery.message.entry import unique_header_of
from redis_queue.celery.message.headers import Attempt, UniqueHeader
from redis_queue.celery.message.producer import InterceptingProducer
from redis_queue.celery.publish.send import (
    LostKeyError,
    OwnBroker,
    Progress,
    Send,
    Sends,
    check_eta,
    is_retry_of,
    seconds_of,
)
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import DuplicateTaskError, InvalidDelayError, InvalidValueError, StoreError
from redis_queue.store.ids import check_id, is_id, retry_id

logger = logger_of(__name__)

MAX_WAIT: Final = 2 * HOLD_MS / 1000
"""Maximum seconds that a call waits while others with its key are being sent."""

FIRST_PAUSE, MAX_PAUSE = 0.002, 0.1

NOBODY: Final = "0"
"""A token that no message has."""

BEHIND: Final = ("chord", "chain", "link")
"""Options of a call that others wait for: they would wait forever if it were not sent."""

BESIDE: Final = ("group_id", "parent_id")
"""Options of a call whose id is known before it is sent: its result is waited for. Celery sends it, not a user."""


@dataclass(frozen=True, slots=True)
class UniqueCall:
    """A call of a unique task with *given* arguments. *send_as* sends it under a task id, and returns its result."""

    given: Mapping[str, Any]
    id: str
    unique: Unique
    send_as: Callable[[str], Any]
    is_retry: bool = False

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.given["name"])

    @property
    def is_awaited(self) -> bool:
        """Whether others wait for its result: a chord, the next task of a chain, or a caller of a group or a chain.

        BESIDE does not count for a retry: it always has the parent of its task, and what replaces it has the same id.
        """
        names = BEHIND if self.is_retry or self.given.get("ignore_result") else BEHIND + BESIDE
        return any(self.given.get(name) for name in names)

    @property
    def may_raise(self) -> bool:
        """Whether a duplicate raises DuplicateTaskError.

        It does not if Celery sends the call after another task: the error would make that task fail.
        """
        return self.unique.on_conflict == "raise" and not self.given.get("parent_id")


class UniqueCalls:
    """The calls of unique tasks of an app."""

    def __init__(self, stored: StoredTasks, sends: Sends, own_broker: OwnBroker) -> None:
        self._stored = stored
        self._app = stored.app
        self._sends = sends
        self._own_broker = own_broker
        self._told: set[str] = set()

    def send(self, unique: Unique, send: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call *send*, which is ``send_task``, for a task that is *unique*; return its result, or that of the owner."""
        given = {**dict(zip(POSITIONAL, args, strict=False)), **options}
        if not self._is_to_own_broker(given):
            return send(*args, **options)

        def send_as(id_: str) -> Any:
            return send(**{**given, "task_id": id_})

        id_ = str(given.get("task_id") or uuid())
        if is_retry_of(self._app, id_):
            return self._retry(UniqueCall(given, id_, unique, send_as, is_retry=True))
        return self._call(UniqueCall(given, check_id(id_, name="task_id"), unique, send_as))

    def _call(self, call: UniqueCall) -> Any:
        """Send a call, or return the result of the call that owns its key."""
        if call.is_awaited and call.unique.on_conflict == "replace":
            # A later call would replace it, and the tasks that wait for its result would wait forever.
            return call.send_as(call.id)
        self._stored.flow_sender.check()
        key = self._key(call)
        result = self._send(call, key)
        if not isinstance(result, AcquireReply):
            return result
        if call.is_awaited:
            self._tell(call.task, "task %s: others wait for it, so it is sent although its key is taken: %r", key)
            return call.send_as(call.id)
        if call.may_raise:
            raise DuplicateTaskError(
                f"{call.task}: the task {result.task_id} with the key {key!r} waits or runs", task_id=result.task_id
            )
        current = self._app.current_worker_task
        if current is not None and current.request.id == result.task_id:
            text = "task %s sends itself while it owns the key %r until its end, so nothing is sent: use until='start'"
            self._tell(call.task, text, key)
        found = (call.given.get("result_cls") or self._app.AsyncResult)(result.task_id)
        found.ignored = bool(call.given.get("ignore_result"))
        return found

    def _retry(self, call: UniqueCall) -> Any:
        """Send a retry, with the key of the running message unless another message owns that key.

        A retry is never refused, nor is a task that replaces the running one: that task has a key of its own.
        """
        request = self._app.current_task.request
        running = UniqueHeader.of(vars(request)) or UniqueHeader.of(request.headers)
        # A task that is unique for a time keeps its key anyway. A retry that others wait for must not be replaced.
        if call.unique.kind == TIME or (call.is_awaited and call.unique.on_conflict == "replace"):
            return call.send_as(call.id)
        try:
            if running is None or running.task != call.task:
                key, token = self._key(call), NOBODY
            else:
                key, token = running.key, running.token
            check_id(call.id)
        except Exception:  # noqa: BLE001 - a function that makes keys may raise anything; Celery would drop the task
            return call.send_as(call.id)
        with suppress(InvalidValueError):
            result = self._send(call, key, running=token)
            if isinstance(result, AcquireReply) and (token := self._earlier(call, result, request)):
                result = self._send(call, key, running=token)
            if not isinstance(result, AcquireReply):
                return result
        return call.send_as(call.id)

    def _earlier(self, call: UniqueCall, owner: AcquireReply, request: Any) -> str:
        """Return the token of an earlier retry of the running message that waits in the store with the key; else "".

        *call* replaces it there. The running message was delivered twice, or again after its worker was killed.
        """
        attempt = Attempt.of(vars(request), request.delivery_info)
        if attempt.mark and owner.task_id == call.id and owner.state == "delayed":
            with suppress(StoreError):
                for entry in map(self._stored.queue.get, attempt.ids(call.id)):
                    header = unique_header_of(entry)
                    if header is not None and entry is not None and attempt.is_in(entry.payload):
                        return header.token
        return ""

    def _key(self, call: UniqueCall) -> str:
        args, kwargs = call.given.get("args") or (), call.given.get("kwargs") or {}
        return UniquePolicy.of(self._app).key(call.task, call.unique, args, kwargs)

    def _is_to_own_broker(self, given: Mapping[str, Any]) -> bool:
        producer = given.get("producer")
        if isinstance(producer, InterceptingProducer):
            return False
        connection = given.get("connection") or (producer and producer.connection)
        return connection is None or bool(self._own_broker.is_that_of(connection))

    def _owned_for(self, call: UniqueCall) -> tuple[int, int]:
        """Return how long, in ms, the key is owned while the call waits, and from when; 0 stands for now.

        The key is owned no longer than the call may wait. Raises InvalidDelayError, except for a retry.
        """
        try:
            expires_ms = self._expires_ms(call)
            if eta := call.given.get("eta"):
                due = check_eta(eta, self._app)
                if expires_ms == math.inf:
                    # The clock of Redis decides when it is due, and this host's may be ahead.
                    return call.unique.ttl_ms, max(0, to_ms(due))
                delay = (due - self._app.now()).total_seconds()
            else:
                delay = seconds_of(call.given.get("countdown")) or 0.0
            ttl_ms = call.unique.ttl_ms + duration_ms(max(0.0, delay))
            return max(1, int(min(ttl_ms, expires_ms))), 0
        except InvalidDelayError:
            if not call.is_retry:
                raise
            return call.unique.ttl_ms, 0

    def _expires_ms(self, call: UniqueCall) -> float:
        """Return in how many ms a call expires; infinite if it does not expire."""
        expires = call.given.get("expires")
        if expires is None:
            expires = getattr(self._app.tasks.get(call.task), "expires", None)
        if expires is None or isinstance(expires, int | float):
            return math.inf if expires is None else expires * 1000
        due = maybe_make_aware(maybe_iso8601(expires), self._app.timezone)
        return float((due - self._app.now()).total_seconds()) * 1000

    def _send(self, call: UniqueCall, key: str, *, running: str = "") -> Any:
        """Send a call, and return its result; or the AcquireReply that names another owner of its key.

        *running*: token of the running message, if the call is its retry.
        """
        until = monotonic() + MAX_WAIT
        wait = FIRST_PAUSE
        owned_for = self._owned_for(call)
        while True:
            header = UniqueHeader(call.unique.kind, new_token(), call.unique.ttl_ms, call.task, key)
            try:
                found = self._acquire(header, call, owned_for, running)
            except StoreError as error:
                if not call.is_retry and self._stored.settings.on_store_error != "broker":
                    raise OperationalError(str(error)) from error
                return call.send_as(call.id)
            late = monotonic() >= until
            if found.owns:
                with suppress(LostKeyError):
                    return self._send_message(header, found, call)
                # The message to be replaced has started, or the sending took longer than HOLD_MS.
                if call.is_retry:
                    return call.send_as(call.id)
            elif not found.is_open or call.is_awaited or (late and call.is_retry):
                return found
            if late:
                raise OperationalError(f"{call.task}: other calls with the key {key!r} are being sent: try again")
            time.sleep(wait)
            wait = min(2 * wait, MAX_PAUSE)

    def _acquire(
        self, header: UniqueHeader, call: UniqueCall, owned_for: tuple[int, int], running: str
    ) -> AcquireReply:
        """Acquire the key of a call, also from an owner that is a dead letter; the reply names any other owner."""
        acquire = partial(
            self._stored.unique.acquire,
            header.field,
            header.token,
            task_id=call.id,
            ttl_ms=owned_for[0],
            due_ms=owned_for[1],
            replaces=call.unique.on_conflict == "replace" and not call.is_retry,
            running=running,
            awaited=call.is_awaited,
        )
        found = acquire(gone="")
        return acquire(gone=found.task_id) if not call.is_retry and self._is_dead(found) else found

    def _send_message(self, header: UniqueHeader, found: AcquireReply, call: UniqueCall) -> Any:
        """Send the message that owns a key. Raises LostKeyError if another message owns the key by then."""
        owners = self._stored.unique
        through_store = found.replaces and found.state == "delayed"
        send = Send(found.task_id, is_retry_of(self._app, found.task_id), key=header, through_store=through_store)
        try:
            with self._sends.open(send):
                result = call.send_as(found.task_id)
        except LostKeyError:
            raise
        except BaseException:
            with suppress(StoreError):
                # If the message was sent all the same, it keeps its key.
                owners.withdraw(header.field, header.token, sent=send.progress == Progress.MADE)
            raise
        if send.progress == Progress.CONFIRMED:
            return result
        try:
            if not send.carries_key:
                owners.withdraw(header.field, header.token, sent=True)
                self._tell(header.task, "task %s: its exchange chooses the queue, so it is not unique: %r", header.key)
            elif not owners.confirm(header.field, header.token, gone=send.progress == Progress.REPLACED):
                raise LostKeyError
        except StoreError as error:
            if call.is_retry:
                raise LostKeyError from error
            # Unless its key was confirmed all the same, the message will not run.
            raise OperationalError(str(error)) from error
        return result

    def _is_dead(self, owner: AcquireReply) -> bool:
        """Return whether the owner of a key, or its retry, is a dead letter: no dispatcher could send it."""
        if owner.owns or owner.is_open or owner.state != "delayed" or not is_id(owner.task_id):
            return False
        is_dead = self._stored.queue.reader.is_dead
        return is_dead(owner.task_id) or is_dead(retry_id(owner.task_id))

    def _tell(self, task: str, text: str, key: str) -> None:
        if task not in self._told:
            self._told.add(task)
            logger.warning(text, task, key, extra={"action": "not_unique"})
