"""FlowPolicy: the flows of an app, and those to which a call belongs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from redis_queue.celery.message.flow_header import FlowHeader
from redis_queue.celery.settings import NAMESPACE, CelerySettings
from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.flow.flows import OF_QUEUE
from redis_queue.flow.rules import Flow
from redis_queue.key_template import KeyTemplate, arguments, check_key
from redis_queue.logs import logger_of
from redis_queue.suggestion import did_you_mean

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

ATTRIBUTE: Final = "flow"
"""Attribute of a task with its flow."""

CACHED: Final = "redis_queue_flow_policy"


class FlowPolicy:
    """The flows of *app*: of ``redis_queue_flow``, and of its tasks."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._configured = CelerySettings.of(app).flows
        self._signatures: dict[str, inspect.Signature | None] = {}
        self._contradictions: set[str] = set()
        self._has_queues = any(name.startswith(OF_QUEUE) for name in self._configured)

    @classmethod
    def of(cls, app: Celery) -> FlowPolicy:
        """Return the policy of *app*, created at the first call. Raises ConfigurationError for invalid settings."""
        found: FlowPolicy | None = vars(app).get(CACHED)
        if found is None:
            found = vars(app)[CACHED] = cls(app)
        return found

    def may_apply(self, task: str) -> bool:
        """Tell whether calls of *task* may belong to a flow."""
        return self._has_queues or self.of_task(task) is not None

    def of_task(self, name: str) -> Flow | None:
        """Return the flow of the task *name*; that of the setting has precedence."""
        configured = self._configured.get(name)
        task = self._app.tasks.get(name)
        own = getattr(task, ATTRIBUTE, None)
        if own is None:
            return configured
        if not isinstance(own, Flow):
            raise ConfigurationError(f"task {name}: flow={own!r}: must be a redis_queue.Flow")
        if configured is not None and configured != own and name not in self._contradictions:
            self._contradictions.add(name)
            logger.warning(
                "task %s: %sflow has precedence over the flow of its decorator",
                name,
                NAMESPACE,
                extra={"action": "flow_contradiction"},
            )
        return configured or own

    def all(self) -> dict[str, Flow]:
        """Return the flows of all queues and tasks."""
        found = dict(self._configured)
        for name in list(self._app.tasks):
            flow = self.of_task(name)
            if flow is not None:
                found[name] = flow
        return found

    def check(self, queues: Sequence[str]) -> None:
        """Raise ConfigurationError for a flow of an unknown task or queue, or with a key that its task cannot have."""
        tasks = [name for name in self._app.tasks if not name.startswith("celery.")]
        for name in self._configured:
            if name.startswith(OF_QUEUE):
                _check_known(name, [f"{OF_QUEUE}{queue}" for queue in queues], "queue")
            else:
                _check_known(name, tasks, "task")
        for name, flow in self.all().items():
            template = flow.template
            task = self._app.tasks.get(name)
            signature = self._signature(name)
            if template is not None and signature is not None:
                try:
                    template.check(signature, f"task {name}")
                except InvalidValueError as error:
                    raise ConfigurationError(f"flow of task {name}: {error}") from None
            if task is not None and not task.acks_late:
                raise ConfigurationError(
                    f"task {name}: acks_late=False contradicts its flow: its place would be free as soon as it starts"
                )

    def early(self) -> list[str]:
        """Return the tasks that are acknowledged when they start, if there are flows of queues."""
        tasks = self._app.tasks.items() if self._has_queues else ()
        return sorted(name for name, task in tasks if not task.acks_late and not name.startswith("celery."))

    def header(self, task: str, queue: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FlowHeader | None:
        """Return what a call to *queue* belongs to; None if it is to no flow. Raises InvalidValueError for its key."""
        of_queue, of_task = self._configured.get(f"{OF_QUEUE}{queue}"), self.of_task(task)
        if of_queue is None and of_task is None:
            return None
        in_queue = self._key_of_queue(of_queue, task, args, kwargs)
        return FlowHeader(
            task if of_task is not None else "",
            self._key_of_task(task, of_task, args, kwargs),
            check_key(in_queue, label=f"key in queue {queue}") if in_queue else "",
        )

    def rules(self, task: str, queue: str) -> list[str]:
        """Return the flows of a call with their limits, as the script that sends it takes them."""
        named = {task: self.of_task(task), f"{OF_QUEUE}{queue}": self._configured.get(f"{OF_QUEUE}{queue}")}
        return [part for name, flow in named.items() if flow is not None for part in (name, flow.rules)]

    def _key_of_task(self, name: str, flow: Flow | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        template = None if flow is None else flow.template
        if template is None:
            return ""
        signature = self._signature(name)
        missing = [] if signature else [label for label in template.names if label not in kwargs]
        if missing:
            raise InvalidValueError(
                f"{template.label}={template.template!r}: this app does not have the task {name}: "
                f"pass {missing[0]!r} by keyword"
            )
        try:
            return check_key(template.of_call(signature, args, kwargs), label=f"key of {name}")
        except TypeError as error:
            raise InvalidValueError(f"{template.label}={template.template!r}: {name}: {error}") from None

    def _key_of_queue(self, flow: Flow | None, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        template = None if flow is None else flow.template
        if template is None:
            return ""
        try:
            return self._text(template, task, args, kwargs)
        except TypeError:
            return ""

    def _text(self, template: KeyTemplate, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a call in a queue. Its tasks that lack the argument share the key ""."""
        signature = self._signature(task)
        if callable(template.template):
            return template.of_call(None, args, kwargs)
        values = kwargs if signature is None else arguments(signature, args, kwargs)
        if any(values.get(name) is None for name in template.names):
            return ""
        return template.of_call(None, (), values)

    def _signature(self, name: str) -> inspect.Signature | None:
        if name not in self._signatures:
            task = self._app.tasks.get(name)
            self._signatures[name] = None if task is None else inspect.signature(task.run)
        return self._signatures[name]


def _check_known(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        raise ConfigurationError(f"{NAMESPACE}flow[{name!r}]: unknown {what}: {did_you_mean(name, known)}")
