"""TaskOptions: options of tasks that stand in a setting, or at their decorators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from redis_queue.basics.logs import logger_of
from redis_queue.celery.settings import NAMESPACE
from redis_queue.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

Option = TypeVar("Option")


class TaskOptions(Generic[Option]):
    """The option *name* of the tasks of *app*, of type *kind*: *configured* in a setting, or given at the decorator."""

    def __init__(self, app: Celery, name: str, kind: type[Option], configured: Mapping[str, Option]) -> None:
        self._app = app
        self._name = name
        self._kind = kind
        self._configured = configured
        self._contradictions: set[str] = set()

    def of(self, task: str) -> Option | None:
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
        """Return the options of all tasks that have one."""
        found = {name: self.of(name) for name in [*self._configured, *self._app.tasks]}
        return {name: option for name, option in found.items() if option is not None}
