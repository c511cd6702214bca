"""Policies of an app: its flows and unique tasks, which of them a call belongs to, and the keys of the call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from celery import Celery

from redis_queue.admission.flows import OF_QUEUE
from redis_queue.admission.rules import END, Flow, Unique
from redis_queue.basics.key_template import KeyTemplate, arguments, check_key, names_of
from redis_queue.basics.lazy_property import cache_key
from redis_queue.basics.logs import logger_of
from redis_queue.basics.options import MAX_NAMES, did_you_mean
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.settings import NAMESPACE, CelerySettings, part_of
from redis_queue.errors import ConfigurationError, InvalidValueError

logger = logger_of(__name__)

Option = TypeVar("Option")


class TaskOptions(Generic[Option]):
    """The option *name* of the tasks of *app*, of type *kind*: *configured* in a setting, or given at the decorator."""

    def __init__(self, app: Celery, name: str, kind: type[Option], configured: Mapping[str, Option]) -> None:
        self._app = app
        self._name = name
        self._kind = kind
        self._configured = configured
        self._keys = TaskKeys(app)
        self._contradictions: set[str] = set()
        self._exist = lru_cache(1)(lambda *_: bool(self.all()))

    @property
    def exist(self) -> bool:
        """Whether any task or queue has the option; it looks at all tasks only after their names have changed."""
        return self._exist(*cache_key(self._app.tasks))

    def of_task(self, task: str) -> Option | None:
        """Return the option of *task*; the setting has precedence. Raises ConfigurationError for another type."""
        configured = self._configured.get(task)
        own = getattr(self._app.tasks.get(task), self._name, None)
        if own is None:
            return configured
        if not isinstance(own, self._kind):
            raise ConfigurationError(f"task {task}: {self._name}={own!r}: must be a redis_queue.{self._kind.__name__}")
        if configured is not None and configured != own and task not in self._contradictions:
            self._contradictions.add(task)
            logger.warning(
                "task %s: %s%s has precedence over %s= of its decorator",
                task,
                NAMESPACE,
                self._name,
                self._name,
                extra={"action": f"{self._name}_contradiction"},
            )
        return configured or own

    def all(self) -> dict[str, Option]:
        """Return the options of all tasks that have one, and those of queues."""
        found = {name: self.of_task(name) for name in [*self._configured, *self._app.tasks]}
        return {name: option for name, option in found.items() if option is not None}


class FlowPolicy(TaskOptions[Flow]):
    """The flows of *app*: of ``redis_queue_flow``, and of its tasks."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app, "flow", Flow, CelerySettings.of(app).flows)
        self._has_queues = any(name.startswith(OF_QUEUE) for name in self._configured)

    @classmethod
    def of(cls, app: Celery) -> FlowPolicy:
        """Return the policy of *app*, created at the first call. Raises ConfigurationError for invalid settings."""
        return part_of(app, cls, "flow_policy")

    def may_apply(self, task: str) -> bool:
        """Return whether calls of *task* may belong to a flow."""
        return self._has_queues or self.of_task(task) is not None

    def check(self) -> None:
        """Raise ConfigurationError for a flow of an unknown task, or with a key that no call can have.

        The arguments of a key must be those of the task; in the flow of a queue, those of any task of the app.
        """
        tasks = own_tasks(self._app)
        for name, flow in self._configured.items():
            what = f"{NAMESPACE}flow[{name!r}]"
            if name.startswith(OF_QUEUE):
                self._keys.check_any(tasks, flow.template, what)
            else:
                check_known(f"{what}: unknown task", name, tasks)
        for name, flow in self.all().items():
            self._keys.check(name, flow.template, "flow")
            task = self._app.tasks.get(name)
            if task is not None and not task.acks_late:
                raise ConfigurationError(
                    f"task {name}: acks_late=False contradicts its flow: its place would be free as soon as it starts"
                )

    def unknown_queues(self, queues: Sequence[str]) -> list[str]:
        """Return a text for each flow of a queue that is not among *queues*; workers with ``-Q`` may consume it."""
        known = dict.fromkeys(f"{OF_QUEUE}{queue}" for queue in queues)
        names = [name for name in self._configured if name.startswith(OF_QUEUE) and name not in known]
        near, otherwise = (known, "") if len(names) <= MAX_NAMES else ({}, f"as with {len(names):,} flows")
        hints = {name: did_you_mean(name, near, otherwise=otherwise) for name in names}
        return [f"{NAMESPACE}flow[{name!r}]: no task of this app goes to this queue: {hints[name]}" for name in names]

    def early(self) -> list[str]:
        """Return the tasks that are acknowledged when they start, if there are flows of queues."""
        names = own_tasks(self._app) if self._has_queues else []
        return sorted(name for name in names if not self._app.tasks[name].acks_late)

    def header(self, task: str, queue: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FlowHeader | None:
        """Return what a call to *queue* belongs to; None if it is to no flow. Raises InvalidValueError for its key."""
        of_queue, of_task = self._configured.get(f"{OF_QUEUE}{queue}"), self.of_task(task)
        if of_queue is None and of_task is None:
            return None
        in_queue = "" if of_queue is None else self._keys.of_any(task, of_queue.template, args, kwargs)
        return FlowHeader(
            task if of_task is not None else "",
            "" if of_task is None else self._keys.of_task(task, of_task.template, args, kwargs),
            check_key(in_queue, label=f"key in queue {queue}") if in_queue else "",
        )

    def names(self, task: str, queue: str) -> list[str]:
        """Return the names of the flows of a call to *queue*."""
        if task.startswith("celery."):
            return []
        return [name for name in (task, f"{OF_QUEUE}{queue}") if name in self._configured or self.of_task(name)]

    def rules(self, task: str, queue: str) -> list[str]:
        """Return the flows of a call with their limits, as the script that sends it takes them."""
        named = {task: self.of_task(task), f"{OF_QUEUE}{queue}": self._configured.get(f"{OF_QUEUE}{queue}")}
        return [part for name, flow in named.items() if flow is not None for part in (name, flow.rules)]


def own_tasks(app: Celery) -> list[str]:
    """Return the names of the tasks of *app* without those of Celery."""
    return [name for name in app.tasks if not name.startswith("celery.")]


def check_known(what: str, name: str, known: Sequence[str]) -> None:
    """Raise ConfigurationError, which begins with *what*, unless *name* is *known*."""
    if name not in known:
        raise ConfigurationError(f"{what}: {did_you_mean(name, known)}")


class UniquePolicy(TaskOptions[Unique]):
    """The unique tasks of *app*: of ``redis_queue_unique``, and those with ``unique=`` at their decorators."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app, "unique", Unique, CelerySettings.of(app).uniques)

    @classmethod
    def of(cls, app: Celery) -> UniquePolicy:
        """Return the policy of *app*, created at the first call. Raises ConfigurationError for invalid settings."""
        return part_of(app, cls, "unique_policy")

    def check(self) -> None:
        """Raise ConfigurationError for an unknown task, or one that cannot be unique in this way."""
        tasks = own_tasks(self._app)
        for name in self._configured:
            check_known(f"{NAMESPACE}unique[{name!r}]: unknown task", name, tasks)
        for name, unique in self.all().items():
            self._keys.check(name, unique.template, "unique")
            task = self._app.tasks.get(name)
            if task is not None and not task.acks_late and unique.kind == END:
                raise ConfigurationError(
                    f"task {name}: acks_late=False contradicts unique until its end: its key would be free when it "
                    "starts; use until='start'"
                )

    def key(self, name: str, unique: Unique, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a call; "" if all calls have one. Raises InvalidValueError."""
        return self._keys.of_task(name, unique.template, args, kwargs)


class TaskKeys:
    """The keys of calls of the tasks of *app*."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._signatures: dict[str, inspect.Signature] = {}

    def check(self, name: str, template: KeyTemplate | None, what: str) -> None:
        """Raise ConfigurationError, which begins with *what*, if the task *name* cannot have such a key."""
        signature = self._signature(name)
        if template is not None and signature is not None:
            try:
                template.check(signature, f"task {name}")
            except InvalidValueError as error:
                raise ConfigurationError(f"{what} of task {name}: {error}") from None

    def check_any(self, names: Iterable[str], template: KeyTemplate | None, what: str) -> None:
        """Raise ConfigurationError, which begins with *what*, if none of the tasks *names* takes all its arguments.

        Without any tasks, as in an app that only sends them, every key is accepted.
        """
        signatures = [] if template is None else list(filter(None, map(self._signature, names)))
        if template is None or not signatures or not all(map(template.unknown, signatures)):
            return
        known = sorted({name for signature in signatures for name in names_of(signature)})
        unknown = [name for name in template.names if name not in known]
        if unknown:
            hint = did_you_mean(unknown[0], known) if known else "they take none"
            raise ConfigurationError(
                f"{what}: {template}: no task of this app takes the argument {unknown[0]!r}: {hint}"
            )
        wanted = ", ".join(map(repr, template.names))
        raise ConfigurationError(f"{what}: {template}: no task of this app takes all of the arguments {wanted}")

    def of_task(self, name: str, template: KeyTemplate | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a call of the task *name*; "" without a template. Raises InvalidValueError."""
        if template is None:
            return ""
        signature = self._signature(name)
        missing = [] if signature else [label for label in template.names if label not in kwargs]
        if missing:
            raise InvalidValueError(
                f"task {name}: {template}: the call lacks the argument {missing[0]!r}; "
                f"this app does not have the task: pass {missing[0]!r} by keyword"
            )
        try:
            key = template.of_call(signature, args, kwargs)
        except TypeError as error:
            raise InvalidValueError(f"{template}: {name}: {error}") from None
        except InvalidValueError as error:
            if signature is not None:
                # The template may be wrong rather than the call: only workers check it on startup.
                template.check(signature, f"task {name}")
            raise InvalidValueError(f"task {name}: {error}") from error.__cause__
        return check_key(key, label=f"key of {name}")

    def of_any(self, name: str, template: KeyTemplate | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a call of any task; "" for one that lacks the argument. Raises InvalidValueError."""
        if template is None:
            return ""
        signature = self._signature(name)
        try:
            if callable(template.template):
                return template.of_call(None, args, kwargs)
            values = kwargs if signature is None else arguments(signature, args, kwargs)
            if any(values.get(label) is None for label in template.names):
                return ""
            return template.of_call(None, (), values)
        except TypeError:
            return ""
        except InvalidValueError as error:
            raise InvalidValueError(f"task {name}: {error}") from error.__cause__

    def _signature(self, name: str) -> inspect.Signature | None:
        found = self._signatures.get(name)
        if found is None:
            task = self._app.tasks.get(name)
            # A task may be defined after the first call by its name.
            if task is not None:
                found = self._signatures[name] = inspect.signature(task.run)
        return found
