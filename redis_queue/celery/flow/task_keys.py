"""TaskKeys: keys of calls, made of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.key_template import KeyTemplate, arguments, check_key

if TYPE_CHECKING:
    from celery import Celery


class TaskKeys:
    """The keys of calls of the tasks of *app*."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._signatures: dict[str, inspect.Signature | None] = {}

    def check(self, name: str, template: KeyTemplate | None, what: str) -> None:
        """Raise ConfigurationError, which begins with *what*, if the task *name* cannot have such a key."""
        signature = self._signature(name)
        if template is not None and signature is not None:
            try:
                template.check(signature, f"task {name}")
            except InvalidValueError as error:
                raise ConfigurationError(f"{what} of task {name}: {error}") from None

    def of_task(self, name: str, template: KeyTemplate | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a call of the task *name*; "" without a template. Raises InvalidValueError."""
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

    def _signature(self, name: str) -> inspect.Signature | None:
        if name not in self._signatures:
            task = self._app.tasks.get(name)
            self._signatures[name] = None if task is None else inspect.signature(task.run)
        return self._signatures[name]
