"""Call the ``apply_async`` of a task, and take the call that it sends: the caller stores it, or makes its message."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from celery import Celery, Task
from celery.app.task import extract_exec_options
from celery.result import EagerResult

from redis_queue.celery.kombu.internals import method_of
from redis_queue.celery.settings import part_of
from redis_queue.errors import RedisQueueError

POSITIONAL: Final = tuple(inspect.signature(Celery.send_task).parameters)[1:]
"""Names of the arguments of ``send_task``, in order."""


class SentCall(NamedTuple):
    """What an ``apply_async`` did: the arguments of its ``send_task``, None if it sent nothing, and its result."""

    arguments: dict[str, Any] | None
    result: Any


class _Slot(threading.local):
    """What the ``apply_async`` that runs in this thread is to send, and what it sent."""

    id: str = ""
    task: str = ""
    found: dict[str, Any] | None = None


class ApplyAsync:
    """Takes the call that the ``apply_async`` of a task of *app* makes of ``app.send_task``. Other calls are sent.

    It calls the code of the application: never under a lock, nor within a batch.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._slot = _Slot()
        self._plain = method_of(app, "send_task")
        cast("Any", app).send_task = self._send_task

    @classmethod
    def of(cls, app: Celery) -> ApplyAsync:
        """Return that of *app*, always the same."""
        return part_of(app, cls, "apply_async")

    def call(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], id_: str, options: Mapping[str, Any]
    ) -> SentCall:
        """Return the call that *task* makes under the id *id_*; as it was given if the app does not have the task.

        It may be called again for one id, if what it returned was lost. An ``apply_async`` that then returns the result
        of *id_*, because it knows that call, is passed over. Raises what ``apply_async`` raises.
        """
        found = self._app.tasks.get(task)
        if found is None or self._app.conf.task_always_eager:
            own = task_options(self._app, task)
            return SentCall({"name": task, "args": args, "kwargs": kwargs, "task_id": id_, **own, **options}, None)
        given: Any = {"args": list(args), "kwargs": dict(kwargs), "task_id": id_, **options}
        sent = self._taken(task, id_, partial(found.apply_async, **given))
        if sent.arguments is None and not isinstance(sent.result, EagerResult) and _id_of(sent.result) == id_:
            return self._taken(task, id_, partial(Task.apply_async, found, **given))
        return sent

    def tried(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], id_: str, options: Mapping[str, Any]
    ) -> SentCall:
        """Return what :meth:`call` returns. Raises RedisQueueError: an error of the task is none of broker or store."""
        try:
            return self.call(task, args, kwargs, id_, options)
        except Exception as error:
            raise RedisQueueError(f"{task}: its apply_async raised {type(error).__name__}: {error}") from error

    def _taken(self, task: str, id_: str, apply: Callable[[], Any]) -> SentCall:
        slot = self._slot
        before = slot.id, slot.task, slot.found
        slot.id, slot.task, slot.found = id_, task, None
        try:
            result = apply()
            return SentCall(slot.found, result)
        finally:
            slot.id, slot.task, slot.found = before

    def _send_task(self, *args: Any, **options: Any) -> Any:
        slot = self._slot
        if not slot.id or slot.found is not None:
            return self._plain()(*args, **options)
        given = {**dict(zip(POSITIONAL, args, strict=False)), **options}
        if given.get("task_id") != slot.id and given["name"] != slot.task:
            return self._plain()(*args, **options)
        # Under another id it would be sent again if this process dies.
        slot.found = {**given, "task_id": slot.id}
        return (given.get("result_cls") or self._app.AsyncResult)(slot.id)


def task_options(app: Celery, name: str) -> dict[str, Any]:
    """Return what a task of *app* was declared with: Celery before 5.7 leaves it out where a name is sent."""
    task = app.tasks.get(name)
    options = extract_exec_options(task) if task is not None else {}
    return {option: value for option, value in options.items() if value is not None}


def _id_of(result: Any) -> str:
    return str(getattr(result, "id", ""))
