"""The tree of exceptions in the documentation matches the classes, and each docstring is a useful message."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import redis_queue
from redis_queue import errors
from redis_queue.errors import Dead, Nack, QueueFullError, RedisQueueError, Verdict

LINE = re.compile(r"^(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>[A-Z]\w+)(?: +(?P<note>.*))?$")


def documented() -> dict[str, tuple[str | None, str]]:
    """Return parent and note of each class in the tree of the module's docstring."""
    found: dict[str, tuple[str | None, str]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if not match or "." in line.split("  ")[0]:
            continue
        depth = (len(match["indent"]) // 4 + 1) if "── " in line else 0
        path[depth:] = [match["name"]]
        found[match["name"]] = (path[depth - 1] if depth else None, match["note"] or "")
    return found


CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
}
STORE_ERRORS = [kind for kind in CLASSES.values() if issubclass(kind, RedisQueueError)]


def test_the_documented_tree_is_the_tree_of_classes() -> None:
    tree = documented()
    assert tree.keys() == CLASSES.keys()
    for name, (parent, note) in tree.items():
        bases = [base.__name__ for base in CLASSES[name].__bases__]
        also = re.findall(r"also (\w+)", note)
        assert bases == [parent or "Exception", *also], name


@pytest.mark.parametrize("kind", STORE_ERRORS, ids=lambda kind: kind.__name__)
def test_the_docstring_is_the_default_message(kind: type[RedisQueueError]) -> None:
    assert str(kind()) == kind.__doc__
    assert str(kind(None)) == kind.__doc__
    assert str(kind("what happened")) == "what happened"


@pytest.mark.parametrize("kind", STORE_ERRORS, ids=lambda kind: kind.__name__)
def test_the_docstring_is_one_sentence(kind: type[RedisQueueError]) -> None:
    text = kind.__doc__ or ""
    assert re.fullmatch(r"[A-Z][^\n]{10,110}\.", text)


@pytest.mark.parametrize("kind", CLASSES.values(), ids=lambda kind: kind.__name__)
def test_each_is_exported_by_the_package(kind: type[Exception]) -> None:
    if kind is not Verdict:
        assert getattr(redis_queue, kind.__name__) is kind
        assert kind.__name__ in redis_queue.__all__


def test_verdicts_are_not_errors() -> None:
    assert not issubclass(Verdict, RedisQueueError)
    assert (Nack().reason, Nack().delay, Dead().reason) == ("", 0, "")
    verdict = Nack("busy", delay=5)
    assert (str(verdict), verdict.reason, verdict.delay) == ("busy", "busy", 5)


def test_errors_and_verdicts_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(QueueFullError("orders is full")))  # noqa: S301 - our own
    assert (type(error), str(error)) == (QueueFullError, "orders is full")
    verdict = pickle.loads(pickle.dumps(Nack("busy", delay=5)))  # noqa: S301 - our own
    assert (verdict.reason, verdict.delay) == ("busy", 5)
