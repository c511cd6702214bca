"""KeyTemplate: the key of a call."""

from __future__ import annotations

import inspect
import re
import uuid
from typing import Any

import pytest

from redis_queue.errors import InvalidValueError
from redis_queue.key_template import KeyTemplate, check_key


def sync(shop_id: Any, page: int = 1, **options: Any) -> None:
    """A task."""


SIGNATURE = inspect.signature(sync)
UUID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "key"),
    [
        ("shop:{shop_id}", (5,), {}, "shop:5"),
        ("{shop_id}/{page}", (), {"shop_id": "é"}, "é/1"),
        ("{shop_id}:{region}", (5,), {"region": "eu"}, "5:eu"),
        ("{shop_id}", (UUID,), {}, str(UUID)),
        ("{shop_id[0]}", ((3, 4),), {}, "3"),
        ("all", (5,), {}, "all"),
        (lambda shop_id, **_: f"s{shop_id}", (5,), {"page": 2}, "s5"),
    ],
)
def test_key_of_a_call(template: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> None:
    assert KeyTemplate(template).of_call(SIGNATURE, args, kwargs) == key


@pytest.mark.parametrize(
    ("template", "value", "message"),
    [
        ("{shop_id}", [5], "TypeError: unhashable type: 'list'"),
        ("{shop_id}", {"a": 1}, "TypeError: unhashable type: 'dict'"),
        ("{shop_id.name}", 5, "AttributeError"),
        ("{shop_id:d}", "x", "ValueError"),
        ("{shop_id}", 10**5000, "ValueError"),
        (lambda shop_id: shop_id, 5, "its function returned int: must be text"),
    ],
    ids=["list", "dict", "attribute", "format", "huge", "function"],
)
def test_values_without_a_stable_text_are_refused(template: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        KeyTemplate(template).of_call(SIGNATURE, (value,), {})


def test_wrong_arguments_of_the_call_are_a_type_error() -> None:
    with pytest.raises(TypeError):
        KeyTemplate("{shop_id}").of_call(SIGNATURE, (), {})


@pytest.mark.parametrize("template", ["{shop", "}", 5, None])
def test_a_malformed_template_is_refused(template: Any) -> None:
    with pytest.raises(InvalidValueError, match="key="):
        KeyTemplate(template)


def test_unknown_names_are_found_before_a_call() -> None:
    def plain(a: int) -> None:
        """A task without other arguments."""

    KeyTemplate("{shop_id}{anything}").check(SIGNATURE, "sync")
    with pytest.raises(InvalidValueError, match=re.escape("key='{b}': unknown argument 'b': plain takes a")):
        KeyTemplate("{b}").check(inspect.signature(plain), "plain")
    with pytest.raises(InvalidValueError, match="unknown argument '0'"):
        KeyTemplate("{0}").check(SIGNATURE, "sync")


@pytest.mark.parametrize("key", ["a", "é" * 127, "x" * 255, "with space", "日本"])
def test_good_keys(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "x" * 256, "é" * 128, "a\0b", "a\nb", "\x7f", "\x85", "\ud800"])
def test_bad_keys(key: str) -> None:
    with pytest.raises(InvalidValueError, match="key="):
        check_key(key)
