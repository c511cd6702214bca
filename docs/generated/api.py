"""The public classes and functions, from their docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

PLACES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "api-core": ("redis_queue", ()),
    "api-celery": ("redis_queue.celery", ()),
    "api-inspector": ("redis_queue.inspector", ("Inspector", "QueueRow", "Overview")),
    "api-metrics": ("redis_queue.metrics", ("Collector",)),
    "api-doctor": ("redis_queue.doctor", ()),
    "api-web": ("redis_queue.web", ()),
    "api-testing": ("redis_queue.testing", ()),
    "api-flask": ("redis_queue.contrib.flask", ("RedisQueue",)),
}

FOREIGN: Final = "AMQP, Exception, tuple"
"""Classes of others: what is inherited from them is not ours to tell of."""


def names(place: str) -> list[str]:
    """Return what of a module is public; errors have a page of their own."""
    module, chosen = PLACES[place]
    found = importlib.import_module(module)
    return [name for name in chosen or found.__all__ if not _is_error(getattr(found, name))]


def page(place: str) -> str:
    """Return what makes Sphinx read the docstrings."""
    module, _ = PLACES[place]
    found = importlib.import_module(module)
    return "\n".join(_entry(module, name, getattr(found, name)) for name in names(place))


def _entry(module: str, name: str, thing: Any) -> str:
    if inspect.isclass(thing):
        directive = f"autoclass:: {module}.{name}\n   :members:\n   :inherited-members: {FOREIGN}\n"
    elif inspect.isfunction(thing):
        directive = f"autofunction:: {module}.{name}\n"
    else:
        # A value has no docstring of its own: what stands behind it in the source is for it.
        directive = f"py:data:: {module}.{name}\n\n   {_said_of(module, name)}\n"
    return f"### {name}\n\n```{{eval-rst}}\n.. {directive}```\n"


def _said_of(module: str, name: str) -> str:
    values = get_args(getattr(importlib.import_module(module), name))
    if values:
        return f"One of {', '.join(f'``{value!r}``' for value in values)}."
    for path in sorted(Path(str(files(module))).rglob("*.py")):
        statements = ast.parse(path.read_text("utf-8")).body
        for value, text in pairwise(statements):
            target = value.target if isinstance(value, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == name and isinstance(text, ast.Expr):
                return " ".join(str(ast.literal_eval(text.value)).split())
    raise LookupError(f"{module}.{name} says nothing of itself: put a string behind it")


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException) and thing.__module__ == "redis_queue.errors"


MAKERS: Final[dict[str, Callable[[], str]]] = {place: partial(page, place) for place in PLACES}
