"""KeyTemplate: the key of a call."""

import inspect
import re
import uuid
from typing import Any

import pytest

from redis_queue.basics.key_template import KeyTemplate, check_key
from redis_queue.errors import InvalidValueError


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
        ("{shop_id}", [5], "key='{shop_id}': shop_id=[5]: must be text, a number or another hashable value, got list"),
        ("{shop_id}", {"a": 1}, "shop_id={'a': 1}: must be text, a number or another hashable value, got dict"),
        ("{shop_id[0]}", [[5]], "shop_id[0]=[5]: must be text"),
        ("{shop_id}", ["x" * 500], f"shop_id=['{'x' * 78}...: must be text"),
        ("{shop_id.name}", 5, "AttributeError"),
        ("{shop_id:d}", "x", "ValueError"),
        ("{shop_id}", 10**5000, "ValueError"),
        (lambda shop_id: shop_id, 5, "its function returned int: must be text"),
    ],
    ids=["list", "dict", "item", "long", "attribute", "format", "huge", "function"],
)
def test_values_without_a_stable_text_are_refused(template: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        KeyTemplate(template).of_call(SIGNATURE, (value,), {})


def test_wrong_arguments_of_the_call_are_a_type_error() -> None:
    with pytest.raises(TypeError):
        KeyTemplate("{shop_id}").of_call(SIGNATURE, (), {})


@pytest.mark.parametrize("signature", [SIGNATURE, None])
def test_a_call_without_the_argument_is_refused(signature: inspect.Signature | None) -> None:
    with pytest.raises(InvalidValueError) as raised:
        KeyTemplate("{region}").of_call(signature, (), {"shop_id": 5})
    assert str(raised.value) == "key='{region}': the call lacks the argument 'region'; pass it by keyword"


@pytest.mark.parametrize("template", ["{shop", "}", "{shop.}", "{shop[0]x}", 5, None])
def test_a_malformed_template_is_refused(template: Any) -> None:
    with pytest.raises(InvalidValueError, match="key="):
        KeyTemplate(template)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "fair='': must not be empty"),
        ("{}", "fair='{}': unknown argument ''"),
        ("{0}", "fair='{0}': unknown argument '0'"),
        ("{shop_id}{1.name}", "unknown argument '1'"),
        ("{[0]}", "unknown argument ''"),
        ("{ shop_id}", "unknown argument ' shop_id'"),
        ("{shop_id!z}", "fair='{shop_id!z}': unknown conversion '!z' of 'shop_id': must be !r, !s or !a"),
        ("{shop_id:{nope}}", "fair='{shop_id:{nope}}': the format '{nope}' of 'shop_id' must not have arguments"),
        ("{shop_id:>{}}", "the format '>{}' of 'shop_id' must not have arguments"),
        ("x" * 300, f"fair='{'x' * 60}...': its text has 300 bytes: must be at most 255"),
        ("é" * 100 + "{shop_id}" + "é" * 28, "its text has 256 bytes"),
        ("a\n{shop_id}", r"fair='a\n{shop_id}': must not have control characters"),
        ("{shop_id:\0>5}", "must not have control characters"),
        ("\ud800", "must not have control characters"),
    ],
)
def test_a_template_without_a_valid_key_for_any_call_is_refused(template: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        KeyTemplate(template, label="fair")


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("x" * 255, "x" * 255),
        ("{{}}{shop_id}", "{}7"),
        ("{shop_id!r:>3}", "  7"),
        ("{shop_id!a}{shop_id!s}", "77"),
        ("{shop_id.real.imag:03d}", "000"),
        ("{shop_id.__class__.__name__}", "int"),
        ("{page[a b].__doc__[0]}", "s"),
    ],
)
def test_good_templates(template: str, key: str) -> None:
    assert KeyTemplate(template).of_call(SIGNATURE, (7, {"a b": "text"}), {}) == key


def test_unknown_names_are_found_before_a_call() -> None:
    def plain(a: int) -> None:
        """A task without other arguments."""

    KeyTemplate("{shop_id}{anything}").check(SIGNATURE, "sync")
    with pytest.raises(InvalidValueError, match=re.escape("key='{b}': unknown argument 'b': plain takes a")):
        KeyTemplate("{b}").check(inspect.signature(plain), "plain")


@pytest.mark.parametrize("key", ["a", "é" * 127, "x" * 255, "with space", "日本"])
def test_good_keys(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "x" * 256, "é" * 128, "a\0b", "a\nb", "\x7f", "\x85", "\ud800"])
def test_bad_keys(key: str) -> None:
    with pytest.raises(InvalidValueError, match="key="):
        check_key(key)


@pytest.mark.parametrize(("key", "kind"), [(7, "int"), (b"a", "bytes"), (None, "NoneType"), (["a"], "list")])
def test_a_key_is_text(key: Any, kind: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        check_key(key)
    assert str(raised.value) == f"key={key!r}: must be text, got {kind}"
