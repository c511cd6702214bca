"""TaskKeys: keys of calls of tasks that the app has, and of others."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from redis_queue.basics.key_template import KeyTemplate
from redis_queue.celery.flow.task_keys import TaskKeys
from redis_queue.errors import InvalidValueError

KEY = KeyTemplate("account:{account_id}")


@pytest.fixture
def app() -> Celery:
    """An app with one task; it connects to nothing."""
    app = Celery("keys", broker="memory://", set_as_current=False)
    define(app, "shop.charge")
    return app


def define(app: Celery, name: str) -> None:
    @app.task(name=name, shared=False)  # type: ignore[untyped-decorator]
    def charge(account_id: int, **options: Any) -> None:
        """Do nothing."""


def refused(app: Celery, template: KeyTemplate, name: str, *args: Any, **kwargs: Any) -> str:
    """Return the message that a call is refused with."""
    with pytest.raises(InvalidValueError) as raised:
        TaskKeys(app).of_task(name, template, args, kwargs)
    return str(raised.value)


def test_a_value_without_a_stable_text_is_named(app: Celery) -> None:
    message = refused(app, KEY, "shop.charge", [1, 2])
    assert message == (
        "task shop.charge: key='account:{account_id}': account_id=[1, 2]: must be text, a number or another hashable "
        "value, got list; pass one, or give a function as key"
    )
    assert len(refused(app, KEY, "shop.charge", [1] * 10_000)) < 300
    # The key of its queue.
    with pytest.raises(InvalidValueError) as raised:
        TaskKeys(app).of_any("shop.charge", KEY, [[1, 2]], {})
    assert str(raised.value) == message


def test_a_call_without_the_argument_is_told_so(app: Celery) -> None:
    assert refused(app, KeyTemplate("{shop}"), "shop.charge", 7) == (
        "task shop.charge: key='{shop}': the call lacks the argument 'shop'; pass it by keyword"
    )
    assert refused(app, KeyTemplate("{shop}"), "shop.elsewhere", 7) == (
        "task shop.elsewhere: key='{shop}': the call lacks the argument 'shop'; this app does not have the task: "
        "pass 'shop' by keyword"
    )


def test_an_argument_that_the_task_does_not_take_is_unknown(app: Celery) -> None:
    @app.task(name="shop.refund", shared=False)  # type: ignore[untyped-decorator]
    def refund(account_id: int) -> None:
        """Do nothing."""

    assert refused(app, KeyTemplate("{shop}"), "shop.refund", 7) == (
        "key='{shop}': unknown argument 'shop': task shop.refund takes account_id"
    )


def test_a_task_may_be_defined_after_its_first_call(app: Celery) -> None:
    keys = TaskKeys(app)
    assert keys.of_task("shop.later", KEY, (), {"account_id": 7}) == "account:7"
    assert keys.of_any("shop.later", KEY, (7,), {}) == ""
    define(app, "shop.later")
    assert keys.of_task("shop.later", KEY, (8,), {}) == "account:8"
    assert keys.of_any("shop.later", KEY, (8,), {}) == "account:8"
