"""TaskKeys: keys of calls, made of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis_queue.basics.key_template import KeyTemplate, arguments, check_key, names_of
from redis_queue.basics.options import did_you_mean
from redis_queue.errors import ConfigurationError, InvalidValueError

if TYPE_CHECKING:
    from celery import Celery


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
        signatures = list(filter(None, map(self._signature, names)))
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
