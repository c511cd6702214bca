"""UniquePolicy: the unique tasks of an app, and the keys of their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from redis_queue.celery.flow.policy import check_known, own_tasks
from redis_queue.celery.flow.task_keys import TaskKeys
from redis_queue.celery.flow.task_options import TaskOptions
from redis_queue.celery.settings import NAMESPACE, CelerySettings
from redis_queue.errors import ConfigurationError
from redis_queue.unique.rules import END, Unique

if TYPE_CHECKING:
    from celery import Celery

CACHED: Final = "redis_queue_unique_policy"


class UniquePolicy:
    """The unique tasks of *app*: of ``redis_queue_unique``, and those with ``unique=`` at their decorators."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._configured = CelerySettings.of(app).uniques
        self._options = TaskOptions(app, "unique", Unique, self._configured)
        self._keys = TaskKeys(app)

    @classmethod
    def of(cls, app: Celery) -> UniquePolicy:
        """Return the policy of *app*, created at the first call. Raises ConfigurationError for invalid settings."""
        found: UniquePolicy | None = vars(app).get(CACHED)
        if found is None:
            found = vars(app)[CACHED] = cls(app)
        return found

    def of_task(self, name: str) -> Unique | None:
        """Return how the task *name* is unique; None if it is not."""
        return self._options.of(name)

    def all(self) -> dict[str, Unique]:
        """Return all unique tasks."""
        return self._options.all()

    def check(self) -> None:
        """Raise ConfigurationError for an unknown task, or one that cannot be unique in this way."""
        for name in self._configured:
            check_known(f"{NAMESPACE}unique[{name!r}]: unknown task", name, own_tasks(self._app))
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
