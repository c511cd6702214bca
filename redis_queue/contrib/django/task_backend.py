"""RedisQueueBackend: Celery workers run the tasks of Django's ``django.tasks``, or of its backport ``django_tasks``.

Each Django task is a Celery task with the same name, so that routes, flows, unique tasks, the dashboard and chains know
it. A worker runs only tasks that its own modules define: a name from a message is looked up, never imported.

With a result backend a task has two records there. This module writes one, at the enqueue and at each start: arguments,
times and workers. The other is Celery's own result, with the return value or the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone, tzinfo
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutine
from traceback import format_exception
from typing import Any, Final

from celery import Celery, current_task, shared_task, states
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import TaskPredicate
from celery.signals import worker_init
from celery.utils import uuid
from celery.utils.time import maybe_iso8601
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import connections, router, transaction
from django.utils import timezone as django_timezone
from django.utils.module_loading import autodiscover_modules
from kombu.transport.redis import Channel as RedisChannel

from redis_queue.basics.logs import logger_of
from redis_queue.basics.options import did_you_mean
from redis_queue.celery.async_tasks import run_to_end
from redis_queue.celery.leases.poison import exit_failure, is_own_exit
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.settings import part_of
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.contrib.django import TASK_HEADER, celery_app
from redis_queue.errors import ConfigurationError
from redis_queue.store.ids import is_id

FRAMEWORK: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"
"""Django's own module since Django 6.0, else its backport."""

_base: Any = import_module(f"{FRAMEWORK}.base")
_signals: Any = import_module(f"{FRAMEWORK}.signals")
_normalize_json: Any = import_module(
    "django.utils.json" if FRAMEWORK == "django.tasks" else "django_tasks.utils"
).normalize_json
BaseTaskBackend: Any = import_module(f"{FRAMEWORK}.backends.base").BaseTaskBackend
TaskResultDoesNotExist: Any = import_module(f"{FRAMEWORK}.exceptions").TaskResultDoesNotExist

logger = logger_of(__name__)

ON_COMMIT: Final = (False, True, "outbox")

OPTIONS: Final = ("on_commit", "using")

OUTBOX: Final = "redis_queue.contrib.django.outbox"

TIMES: Final = ("run_after", "enqueued_at", "started_at", "last_attempted_at")

_PRIORITY_STEPS: Final = (0, 3, 6, 9)
"""Those of kombu's Redis transport, unless its option ``priority_steps`` sets others; the first goes first."""

_TASKS: Final[dict[str, Any]] = {}
"""The Django tasks of imported modules, by their path, which is the name of their Celery task."""


def _register(task: Any) -> None:
    """Make the Celery task of *task* in every app of this process, also in apps that are created later."""
    path = task.module_path
    if path in _TASKS:
        return
    _TASKS[path] = task

    @wraps(task.func)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _backend_of(current_task.request).run(path, current_task.request, args, kwargs)

    if task.takes_context:
        # Flows and unique keys name the arguments of callers.
        run.__wrapped__ = partial(task.func, None)
    # Messages tell whether they need a result, which Celery before 5.7 reads only if tasks have results.
    shared_task(name=path, ignore_result=False)(run)


@worker_init.connect(weak=False)
def _register_imported(**_: Any) -> None:
    """Register the tasks of all imported modules: also those whose decorator names another backend."""
    for module in list(sys.modules.values()):
        for value in list(getattr(module, "__dict__", {}).values()):
            # Not isinstance(), which would evaluate lazy objects.
            if issubclass(type(value), _base.Task):
                _register(value)


def _task_of(path: Any) -> Any:
    """Return the task with this path of an installed app. Raises LookupError for other names."""
    if path not in _TASKS:
        autodiscover_modules("tasks")
        _register_imported()
    return _TASKS[path]


def _facts(found: Any) -> dict[str, Any]:
    """Return a header or record with its times; {} for one that this module did not write."""
    try:
        times = {name: _moment(found[name]) for name in TIMES if name in found}
        return {**found, **times, "worker_ids": [str(worker) for worker in found.get("worker_ids", ())]}
    except Exception:  # noqa: BLE001 - bytes from a server may hold anything
        return {}


def _varied(task: Any, facts: Mapping[str, Any]) -> Any:
    """Return *task* as it was enqueued; *task* itself if this process does not accept that, such as its queue."""
    with suppress(Exception):
        return task.using(**{name: facts.get(name) for name in ("backend", "priority", "queue_name", "run_after")})
    return task


def _backend_of(request: Any) -> RedisQueueBackend:
    """Return the backend with which a task was enqueued, or another one of this class, if its alias is gone."""
    backends = import_module(FRAMEWORK).task_backends
    for alias in (_facts(request.get(TASK_HEADER)).get("backend"), *backends):
        # Other backends of TASKS may be broken.
        with suppress(Exception):
            if isinstance(found := backends[alias], RedisQueueBackend):
                return found
    raise ConfigurationError("TASKS: must have a backend of redis_queue, since a worker got a task for it")


def _now() -> Any:
    return _moment(datetime.now(timezone.utc))


def _moment(value: Any, zone: tzinfo = timezone.utc) -> Any:
    """Return a time as Django has it: aware if USE_TZ is set. *value* is a datetime, ISO text or None."""
    moment = maybe_iso8601(value)
    if moment is None:
        return None
    moment = moment.replace(tzinfo=zone) if moment.tzinfo is None else moment
    return moment if settings.USE_TZ else django_timezone.make_naive(moment)


def _aware(moment: datetime | None) -> datetime | None:
    return django_timezone.make_aware(moment) if moment is not None and moment.tzinfo is None else moment


def _text(moment: datetime | None) -> str | None:
    aware = _aware(moment)
    return None if aware is None else aware.isoformat()


def _error(error: Any, traceback: str) -> Any:
    kind = type(error)
    return _base.TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=traceback)


def _record_id(result_id: str) -> str:
    return f"django-task-{result_id}"


@contextmanager
def _without_backend(request: Any) -> Iterator[None]:
    """Let a task run even if the result backend is away."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each backend has its own errors
        text = "%s[%s] runs without a record of its start: %s"
        logger.warning(text, request.task, request.id, error, extra={"action": "task_unrecorded"})


def _called(result: Any) -> Any:
    context = [_base.TaskContext(task_result=result)] if result.task.takes_context else []
    try:
        found = result.task.func(*context, *result.args, **result.kwargs)
        return run_to_end(current_task._get_current_object(), found) if iscoroutine(found) else found
    except SystemExit as error:
        if not is_own_exit(error):
            raise
        # It would end the process of the pool, and the task would start again.
        raise exit_failure(error) from error


def _load_record(app: Celery, task_id: str) -> dict[str, Any]:
    return _facts(app.backend.get_task_meta(_record_id(task_id), cache=False)["result"])


def _save_record(app: Celery, task_id: str, call: TaskCall, record: Mapping[str, Any], status: str) -> None:
    backend: Any = app.backend
    record = {**record, "task": call.task, "args": call.args, "kwargs": call.kwargs}
    backend.store_result(_record_id(task_id), record, status)
    run_after = _aware(_moment(record.get("run_after")))
    if backend.expires and run_after is not None and not record["worker_ids"]:
        wait = max(0.0, (run_after - datetime.now(timezone.utc)).total_seconds())
        # Backends that are no key-value stores remove old results themselves.
        with suppress(AttributeError, NotImplementedError):
            backend.expire(backend.get_key_for_task(_record_id(task_id)), int(backend.expires + wait))


def record_waiting(app: Celery, calls: Mapping[str, TaskCall]) -> None:
    """Write the records of Django tasks that are not sent yet: *calls* of an outbox, by task id; known ones stay.

    Raises what the result backend of *app* raises; without calls, too, if it does not answer.
    """
    _load_record(app, "")
    for task_id, call in calls.items():
        header = call.options["headers"][TASK_HEADER]
        if _facts(header) and not _load_record(app, task_id):
            record = {**header, "started_at": None, "last_attempted_at": None, "worker_ids": []}
            _save_record(app, task_id, call, record, str(_base.TaskResultStatus.READY))


class RedisQueueBackend(BaseTaskBackend):
    """Backend of ``TASKS``. Its flags depend on the Celery app of the project, and are those of its settings.

    *OPTIONS*: ``on_commit``: False sends a task at once, True after the commit of the open transaction, and "outbox"
    writes it into the outbox, as part of the transaction. ``using``: the database of that transaction, by default
    "default" with True, and with "outbox" the one that the routers choose for the outbox. Raises ConfigurationError
    for invalid options.
    """

    supports_async_task = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        name = f"TASKS[{alias!r}]['OPTIONS']"
        if not isinstance(self.options, Mapping):
            raise ConfigurationError(f"{name}={self.options!r}: must be a dict")
        for key in self.options:
            if key not in OPTIONS:
                raise ConfigurationError(f"{name}[{key!r}]: unknown option: {did_you_mean(str(key), list(OPTIONS))}")
        self._on_commit, self._using = self.options.get("on_commit", False), self.options.get("using")
        if self._on_commit not in ON_COMMIT:
            raise ConfigurationError(f"{name}['on_commit']={self._on_commit!r}: must be True, False or 'outbox'")
        if self._using is not None and self._using not in [*connections]:
            known = ", ".join(connections)
            raise ConfigurationError(f"{name}['using']={self._using!r}: must be a database of DATABASES: {known}")
        if self._using is not None and not self._on_commit:
            raise ConfigurationError(f"{name}['using']: needs 'on_commit', True or 'outbox'")

    @property
    def supports_defer(self) -> bool:
        """Whether ``run_after`` is durable: the app has DurableTasks with delays, or tasks go through the outbox."""
        return self._on_commit == "outbox" or delayed_of(celery_app()) is not None

    @property
    def supports_get_result(self) -> bool:
        """Whether the app has a result backend that other processes can read."""
        app = celery_app()
        if app.conf.task_always_eager and not app.conf.task_store_eager_result:
            return False
        return not isinstance(app.backend, DisabledBackend | RPCBackend)

    @property
    def supports_priority(self) -> bool:
        """Whether the broker orders waiting messages: Redis does; RabbitMQ if all queues have ``x-max-priority``."""
        return len(self._levels()) > 1

    def _levels(self) -> Sequence[int]:
        """Return the priorities of the broker, the least urgent first."""
        app = celery_app()
        transport = part_of(app, lambda app: app.connection_for_write().get_transport_cls(), "django_transport")
        if issubclass(getattr(transport, "Channel", object), RedisChannel):
            steps = (app.conf.broker_transport_options or {}).get("priority_steps") or _PRIORITY_STEPS
            return sorted(steps, reverse=True)
        if transport.driver_type != "amqp":
            return ()
        queues = app.amqp.queues
        names = self.queues or queues
        # Not queues[name], which would make a worker consume the queue.
        found = [queues.get(app.conf.task_default_queue if name == "default" else name) for name in names]
        limits = [
            app.conf.task_queue_max_priority
            if queue is None
            else queue.max_priority or (queue.queue_arguments or {}).get("x-max-priority")
            for queue in found
        ]
        return range(min(limit or 0 for limit in limits) + 1)

    def check(self, **_: Any) -> Iterator[checks.CheckMessage]:
        """Check that the outbox is installed, with its table, if the options name it."""
        if self._on_commit != "outbox":
            return
        if not apps.is_installed(OUTBOX):
            text = f"TASKS[{self.alias!r}] uses the outbox, which is not installed."
            yield checks.Error(text, hint=f"Add {OUTBOX!r} to INSTALLED_APPS and migrate.", id="redis_queue.E004")
        elif not router.allow_migrate_model(using := self._outbox_database(), self._calls()):
            text = f"TASKS[{self.alias!r}] uses the outbox in the database {using!r}, where a router forbids its table."
            hint = (
                "Let allow_migrate() of the router permit the app redis_queue_outbox there, or name another database."
            )
            yield checks.Error(text, hint=hint, id="redis_queue.E005")

    def validate_task(self, task: Any) -> None:
        """Check *task* as Django does, and register it with Celery."""
        super().validate_task(task)
        _register(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Send *task*, or store it until its ``run_after``; return its result, which is READY.

        Raises what ``apply_async`` raises if it cannot be sent, and TypeError for arguments other than JSON.
        """
        self.validate_task(task)
        result = self._result(task, uuid(), args, kwargs)
        if self._on_commit == "outbox":
            self._write(result)
        elif self._on_commit:
            transaction.on_commit(partial(self._send, result), self._using)
        else:
            self._send(result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of the task with this id, as the result backend has it.

        Raises TaskResultDoesNotExist for an unknown id, and for a result that the backend does not keep any more.
        """
        if not self.supports_get_result:
            return super().get_result(result_id)
        if not is_id(result_id):
            raise TaskResultDoesNotExist(result_id)
        # The end first: a task whose end is known has a record of its start.
        meta = celery_app().backend.get_task_meta(result_id, cache=False)
        record = self._load(result_id)
        try:
            return self._restored(result_id, record, meta)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def _result(self, task: Any, id: str, args: Any, kwargs: Any, **fields: Any) -> Any:
        defaults = {
            "status": _base.TaskResultStatus.READY,
            **dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at")),
            "errors": [],
            "worker_ids": [],
        }
        return _base.TaskResult(
            task=task, id=id, args=args, kwargs=kwargs, backend=self.alias, **{**defaults, **fields}
        )

    def _options(self, result: Any) -> dict[str, Any]:
        task = result.task
        options: dict[str, Any] = {
            "task_id": result.id,
            "ignore_result": not self.supports_get_result,
            "headers": {TASK_HEADER: self._header(result)},
        }
        if task.run_after is not None:
            options["eta"] = _aware(task.run_after)
        if task.queue_name != _base.DEFAULT_TASK_QUEUE_NAME:
            options["queue"] = task.queue_name
        if levels := self._levels():
            position = (task.priority - _base.TASK_MIN_PRIORITY) / (_base.TASK_MAX_PRIORITY - _base.TASK_MIN_PRIORITY)
            options["priority"] = levels[round(position * (len(levels) - 1))]
        return options

    def _header(self, result: Any) -> dict[str, Any]:
        return {
            "backend": self.alias,
            "queue_name": result.task.queue_name,
            "priority": result.task.priority,
            "run_after": _text(result.task.run_after),
            "enqueued_at": _text(result.enqueued_at),
        }

    def _send(self, result: Any) -> None:
        object.__setattr__(result, "enqueued_at", _now())
        options = self._options(result)
        if self.supports_get_result:
            # Before the message, so that it cannot replace the record of a worker that is faster.
            self._save(result)
        sent = celery_app().tasks[result.task.module_path].apply_async(result.args, result.kwargs, **options)
        # A unique task that waits already has another id.
        object.__setattr__(result, "id", sent.id)
        _signals.task_enqueued.send(type(self), task_result=result)

    @staticmethod
    def _calls() -> Any:
        # Its table may not be installed.
        from redis_queue.contrib.django.outbox.models import Call  # noqa: PLC0415

        return Call

    def _outbox_database(self) -> str:
        return self._using or str(router.db_for_write(self._calls()))

    def _write(self, result: Any) -> None:
        from redis_queue.contrib.django.outbox import schedule  # noqa: PLC0415

        object.__setattr__(result, "enqueued_at", _now())
        using = self._outbox_database()
        task, options = celery_app().tasks[result.task.module_path], self._options(result)

        def announce() -> None:
            _signals.task_enqueued.send(type(self), task_result=result)

        with transaction.atomic(using):
            schedule(task, result.args, result.kwargs, using=using, **options)
            # After the relay of the outbox; Django logs the errors of receivers.
            transaction.on_commit(announce, using, robust=True)

    def _save(self, result: Any) -> None:
        record = {
            **self._header(result),
            "started_at": _text(result.started_at),
            "last_attempted_at": _text(result.last_attempted_at),
            "worker_ids": result.worker_ids,
        }
        call = TaskCall(result.task.module_path, result.args, result.kwargs)
        _save_record(celery_app(), result.id, call, record, str(result.status))

    def _load(self, result_id: str) -> dict[str, Any]:
        return _load_record(celery_app(), result_id)

    def _restored(self, result_id: str, record: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
        statuses, state = _base.TaskResultStatus, meta["status"]
        # A database keeps the time of the app without its zone.
        attempted_at, finished_at = record["last_attempted_at"], _moment(meta.get("date_done"), celery_app().timezone)
        status, errors = statuses.READY if attempted_at is None else statuses.RUNNING, []
        if state in states.EXCEPTION_STATES:
            errors.append(_error(meta["result"], str(meta.get("traceback") or "")))
        if state == states.RETRY:
            status = statuses.READY
        elif state == states.SUCCESS:
            status = statuses.SUCCESSFUL
        # A task that failed may run again, under the same id.
        elif errors and (attempted_at is None or finished_at is None or finished_at >= attempted_at):
            status = statuses.FAILED
        done = status in {statuses.FAILED, statuses.SUCCESSFUL}
        result = self._result(
            _varied(_task_of(record["task"]), {**record, "backend": self.alias}),
            result_id,
            record["args"],
            record["kwargs"],
            status=status,
            finished_at=finished_at if done else None,
            errors=errors,
            **{name: record[name] for name in ("enqueued_at", "started_at", "last_attempted_at", "worker_ids")},
        )
        if status == statuses.SUCCESSFUL:
            object.__setattr__(result, "_return_value", meta["result"])
        return result

    def run(self, path: str, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a task in a worker; return its value. Raises what the task raises, for Celery to record."""
        result = self._attempt(path, request, args, kwargs)
        _signals.task_started.send(type(self), task_result=result)
        try:
            value = _normalize_json(_called(result))
        except TaskPredicate:
            # Celery's retry() and the like: the task has not finished.
            raise
        except Exception as error:
            result.errors.append(_error(error, "".join(format_exception(error))))
            self._finish(result, _base.TaskResultStatus.FAILED)
            raise
        object.__setattr__(result, "_return_value", value)
        self._finish(result, _base.TaskResultStatus.SUCCESSFUL)
        return value

    def _attempt(self, path: str, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a task that starts now, after the attempts that its record tells; save it."""
        keeps = not request.ignore_result and self.supports_get_result
        earlier: Mapping[str, Any] = {}
        with _without_backend(request):
            earlier = self._load(request.id) if keeps else {}
        header, now = _facts(request.get(TASK_HEADER)), _now()
        result = self._result(
            _varied(_TASKS[path], {**header, "backend": self.alias}),
            request.id,
            args,
            kwargs,
            status=_base.TaskResultStatus.RUNNING,
            enqueued_at=header.get("enqueued_at"),
            started_at=earlier.get("started_at") or now,
            last_attempted_at=now,
            worker_ids=[*(earlier.get("worker_ids") or [request.hostname] * request.retries), request.hostname],
        )
        with _without_backend(request):
            if keeps:
                self._save(result)
        return result

    def _finish(self, result: Any, status: Any) -> None:
        object.__setattr__(result, "finished_at", _now())
        object.__setattr__(result, "status", status)
        _signals.task_finished.send(type(self), task_result=result)
