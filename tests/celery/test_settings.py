"""CelerySettings: names, values, and refused settings."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import ConfigurationError, InvalidNameError
from redis_queue.celery import CelerySettings, DurableTasks

DEFAULTS = {
    "url": None,
    "prefix": "redis_queue",
    "delay_queue": "scheduled",
    "shards": 1,
    "min_delay": 0.0,
    "dispatch": True,
    "dispatch_interval": 5.0,
    "dispatch_batch": 500,
    "dispatch_lease": 60.0,
    "overdue": "run",
    "max_deliveries": 5,
    "schedules": False,
    "atomic_fetch": True,
    "monitor": True,
    "release": None,
    "keep_failures": True,
    "keep_arguments": True,
    "management_url": None,
    "flow": {},
    "unique": {},
    "task_lease": 60.0,
    "allowed_queues": None,
    "on_store_error": None,
}

FORMS = ["plain", "namespaced", "object", "namespaced object", "argument"]


def app_with(form: str, **settings: Any) -> Celery:
    """Return an app configured with `redis_queue_*` settings in one of FORMS."""
    names = {f"redis_queue_{name}": value for name, value in settings.items()}
    if form == "argument":
        return Celery("tests", set_as_current=False, **names)
    app = Celery("tests", set_as_current=False)
    spelled = {f"CELERY_{name.upper()}": value for name, value in names.items()}
    if form == "plain":
        app.conf.update(names)
    elif form == "namespaced":
        app.config_from_object({}, namespace="CELERY")
        app.conf.update(spelled)
    elif form == "object":
        app.config_from_object(SimpleNamespace(**names))
    else:
        app.config_from_object(SimpleNamespace(**spelled), namespace="CELERY")
    return app


def test_defaults() -> None:
    settings = CelerySettings.of(app_with("plain"))

    assert asdict(settings) == DEFAULTS
    assert (settings.overdue_policy.policy, settings.min_delay_seconds, settings.dispatch_interval_seconds) == (
        "run",
        0,
        5,
    )


@pytest.mark.parametrize("form", FORMS)
class TestEveryFormOfConfiguration:
    def test_is_read(self, form: str) -> None:
        given = {
            "url": "redis://127.0.0.1:6379/1",
            "prefix": "shop",
            "delay_queue": "later",
            "shards": 4,
            "min_delay": timedelta(seconds=2),
            "dispatch": False,
            "dispatch_interval": 0.5,
            "dispatch_batch": 100,
            "dispatch_lease": timedelta(seconds=20),
            "overdue": "spread:20",
            "max_deliveries": 3,
            "schedules": True,
            "atomic_fetch": False,
            "monitor": False,
            "release": "2026.11-rc1 ä",
            "keep_failures": {"tasks": 5, "days": 0.5},
            "keep_arguments": False,
            "management_url": "http://user:password@host:15672",
            "flow": {"queue:mail": {"limit": 3}},
            "unique": {"shop.sync": {"key": "{shop_id}"}},
            "task_lease": timedelta(seconds=30),
            "allowed_queues": ["mail", "shop-*"],
            "on_store_error": "broker",
        }

        assert asdict(CelerySettings.of(app_with(form, **given))) == given

    def test_empty_values_mean_the_default(self, form: str) -> None:
        assert asdict(CelerySettings.of(app_with(form, url="", prefix=None))) == DEFAULTS

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [("min_dely", "min_delay"), ("on_store_eror", "on_store_error"), ("dispatch_bach", "dispatch_batch")],
    )
    def test_suggests_the_nearest_name_for_an_unknown_setting(self, form: str, wrong: str, right: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"redis_queue_{wrong}: did you mean redis_queue_{right}\?"):
            CelerySettings.of(app_with(form, **{wrong: 1}))

    def test_lists_all_names_if_none_is_similar(self, form: str) -> None:
        with pytest.raises(ConfigurationError, match="redis_queue_zzz: known are redis_queue_url, redis_queue_prefix"):
            CelerySettings.of(app_with(form, zzz=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("dispatch_batch", value) for value in (0, -1, 501, 2.5, True, "10")),
        *(("shards", value) for value in (0, -1, 1.5, True, 10**6)),
        *(("max_deliveries", value) for value in (0, -1, 2.5, True, 1001)),
        *(
            (name, value)
            for name in ("schedules", "atomic_fetch", "monitor", "keep_arguments")
            for value in (1, "yes", 0)
        ),
        *(("release", value) for value in ("x" * 65, "a\x07b", "a\nb", 7, b"abc", True)),
        *(("keep_failures", value) for value in (1, 0, "yes", 1000, [], {"task": 5}, {"days": 91}, {"days": 0})),
        *(("keep_failures", {"tasks": value}) for value in (0, 100_001, 1.5, True, "5", None)),
        *(("keep_failures", {"days": value}) for value in (-1, math.nan, math.inf, "7", True, None)),
        *(("min_delay", value) for value in (-1, 86401, math.nan, math.inf, "5", True, timedelta(days=2))),
        *(("dispatch_lease", value) for value in (0, 1.9, 3601, math.inf, "60")),
        *(("dispatch_interval", value) for value in (0, 0.09, 61, math.nan, "5", timedelta(minutes=2))),
        *(("dispatch", value) for value in (0, 1, "no")),
        *(("on_store_error", value) for value in ("ignore", True, "Raise")),
        *(("allowed_queues", value) for value in ("mail", ["mail", ""], [5], {"mail": 1}, True)),
        *(
            ("overdue", value)
            for value in ("", "run:1", "spread", "spread:0", "spread:x", "spread:nan", "spread:1e7", "skip", "skip:0")
            if value
        ),
        *(("overdue", value) for value in ("skip:-1", "skip:inf", "later", "spread:1:2", 5)),
        *((name, value) for name in ("prefix", "delay_queue") for value in (5, True, b"shop", ["shop"])),
    ],
)
def test_invalid_values_are_refused_with_the_name_of_the_setting(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"redis_queue_{name}"):
        CelerySettings.of(app_with("plain", **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("dispatch_batch", value) for value in (1, 500)),
        *(("min_delay", value) for value in (0, 86400, timedelta(days=1))),
        *(("dispatch_lease", value) for value in (2, 3600, timedelta(hours=1))),
        *(("dispatch_interval", value) for value in (0.1, 60, timedelta(minutes=1))),
        *(("overdue", value) for value in ("run", "spread:0.001", "spread:1e6", "skip:0.5")),
        *(("on_store_error", value) for value in ("raise", "broker")),
        *(("allowed_queues", value) for value in ([], ["*"], ("mail", "shop-?"))),
    ],
)
def test_ranges_include_their_limits(name: str, value: Any) -> None:
    assert getattr(CelerySettings.of(app_with("plain", **{name: value})), name) == value


@pytest.mark.parametrize("form", ["plain", "namespaced", "argument"])
def test_unknown_time_zone_is_reported(form: str) -> None:
    app = app_with(form)
    app.conf.timezone = "Europe/Berln"

    with pytest.raises(ConfigurationError, match="timezone='Europe/Berln'"):
        CelerySettings.of(app)
    DurableTasks(app, leases=False)
    with pytest.raises(ConfigurationError, match="timezone='Europe/Berln'"):
        app.send_task("shop.remind", countdown=60)


@pytest.mark.parametrize("value", [5, True, b"redis://localhost", {"url": 1}, ["redis://a", 5]], ids=repr)
def test_url_of_another_type_is_refused_and_not_shown(value: Any) -> None:
    app = app_with("plain", url=value)
    DurableTasks(app, leases=False)

    with pytest.raises(ConfigurationError, match="redis_queue_url of type") as caught:
        app.send_task("shop.remind", countdown=60)
    assert "localhost" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefix", "x" * 101),
        ("prefix", "a\nb"),
        ("prefix", "\ud800"),
        ("delay_queue", "a\nb"),
        ("delay_queue", "x" * 201),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_name_that_is_invalid_in_a_key_is_refused(name: str, value: str, redis_url: str, client: redis.Redis) -> None:
    app = app_with("plain", **{name: value, "url": redis_url})
    DurableTasks(app, leases=False)

    with pytest.raises((ConfigurationError, InvalidNameError), match="printable characters"):
        app.send_task("shop.remind", countdown=60)
    assert client.keys() == []


@pytest.mark.parametrize("value", ["{shop}", "a:b", "*", "a b", "ä", "shop}:{x"])
def test_a_prefix_with_any_printable_characters_works(value: str, redis_url: str, client: redis.Redis) -> None:
    app = app_with("plain", prefix=value, delay_queue=value, url=redis_url)
    app.conf.broker_url = "memory://"
    delayed = DurableTasks(app, leases=False)
    app.send_task("shop.remind", countdown=60, task_id="order-42")

    assert [entry.id for entry in delayed.list()] == ["order-42"]
    keys: list[Any] = client.keys()
    assert all(key.count(b"{") == key.count(b"}") <= 1 for key in keys)


def test_the_overdue_policy_is_read() -> None:
    spread, skip = CelerySettings(overdue="spread:2.5"), CelerySettings(overdue="skip:60")

    assert (spread.overdue_policy.policy, spread.overdue_policy.amount) == ("spread", 2.5)
    assert (skip.overdue_policy.policy, skip.overdue_policy.amount) == ("skip", 60)


def test_settings_of_other_packages_are_ignored() -> None:
    app = Celery("tests", set_as_current=False)
    app.conf.update(redis_max_connections=5, redis_queue="a name of theirs", CELERY_REDIS_QUEUE_X=1)

    assert asdict(CelerySettings.of(app)) == DEFAULTS
