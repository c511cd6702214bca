"""Reference of settings: names, defaults and meanings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from docs.generated.tables import code, prose, table
from redis_queue.celery.settings import NAMESPACE, CelerySettings
from redis_queue.store.settings import Settings
from redis_queue.web.settings import WebSettings

COMMENT: Final = re.compile(r"((?: *#: .*\n)+) +(\w+):")
SENTENCE: Final = re.compile(r"(?:^|(?<=\. ))\*(\w+)\*(?=[: ])")


def meanings(settings: type[Any]) -> dict[str, str]:
    """Return the meaning of each setting: the comment above it, or its part of the docstring."""
    found = COMMENT.findall(inspect.getsource(settings))
    if found:
        return {name: prose(re.sub(r"^ *#: ", "", text, flags=re.MULTILINE)) for text, name in found}
    text = " ".join((settings.__doc__ or "").split())
    _, *parts = SENTENCE.split(text)
    return {name: prose(meaning.removeprefix(": ")) for name, meaning in zip(parts[::2], parts[1::2], strict=True)}


def page(settings: type[Any], namespace: str = "") -> str:
    """Return the table of *settings*."""
    meant = meanings(settings)
    rows = [
        (code(namespace + each.name), code(_default(each)), meant[each.name]) for each in dataclasses.fields(settings)
    ]
    return table(("setting", "default", "meaning"), rows)


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return value.__name__ if inspect.isroutine(value) else "JSON" if field.name == "serializer" else repr(value)


MAKERS: Final[dict[str, Callable[[], str]]] = {
    "settings-celery": partial(page, CelerySettings, NAMESPACE),
    "settings-queue": partial(page, Settings),
    "settings-web": partial(page, WebSettings),
}
