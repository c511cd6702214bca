"""Startup: a worker logs the state of the extension, and an app with leases gets the settings that leases need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from redis_queue.celery import DurableTasks
from redis_queue.celery.kombu.internals import lacking
from redis_queue.celery.leases.connections import SAFE, low_visibility_timeout
from redis_queue.celery.store import Store
from redis_queue.celery.worker import StartupStep, describe
from redis_queue.operate.diagnosis import _lease_settings
from tests.support.celery.fleet import fleet_on_one_redis
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

SETTINGS: dict[str, dict[str, Any]] = {
    "new names": {"task_acks_late": False, "task_reject_on_worker_lost": False},
    "old names": {"CELERY_ACKS_LATE": False, "CELERY_REJECT_ON_WORKER_LOST": False},
}


def nothing() -> None:
    """Do nothing."""


def namespaced(app: Celery) -> None:
    """Configure the app with a namespace, like Django projects."""
    source = {f"CELERY_{name.upper()}": False for name in SAFE}
    app.config_from_object(SimpleNamespace(**source), namespace="CELERY")


def first_read(app: Celery) -> None:
    """Change settings after they were read."""
    assert app.conf.task_serializer
    app.conf.update(SETTINGS["new names"])


WAYS: dict[str, Callable[[Celery], Any]] = {
    "object": lambda app: app.config_from_object(SimpleNamespace(**SETTINGS["new names"])),
    "dict": lambda app: app.config_from_object(SETTINGS["new names"]),
    "namespace": namespaced,
    "update": lambda app: app.conf.update(SETTINGS["new names"]),
    "defaults": lambda app: app.add_defaults(SETTINGS["new names"]),
    "update later": first_read,
}


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app without settings that affect leases."""
    with closing(Celery("startup", broker="redis://localhost:1", set_as_current=False)) as app:
        yield app


class TestSafeSettings:
    def test_are_on_by_default(self, app: Celery) -> None:
        DurableTasks(app)
        app.conf.task_serializer = "json"
        task = app.task(nothing, name="tests.nothing", shared=False)
        own = app.task(nothing, name="tests.own", shared=False, acks_late=False)
        assert (task.acks_late, task.reject_on_worker_lost) == (True, True)
        assert (own.acks_late, own.reject_on_worker_lost) == (False, True)

    @pytest.mark.parametrize("order", ["before", "after"])
    @pytest.mark.parametrize("way", WAYS)
    def test_do_not_override_those_of_the_app(self, app: Celery, way: str, order: str) -> None:
        steps = [DurableTasks, WAYS[way]]
        for step in steps if order == "before" else reversed(steps):
            step(app)
        assert [app.conf[name] for name in SAFE] == [False, False]
        assert [finding.found.split()[0] for finding in _lease_settings(app)] == list(SAFE)

    def test_do_not_override_old_names(self, app: Celery) -> None:
        DurableTasks(app, delays=False)
        app.config_from_object(SETTINGS["old names"])
        assert [app.conf[name] for name in SAFE] == [False, False]

    def test_are_on_by_default_in_an_app_with_old_names(self, app: Celery) -> None:
        DurableTasks(app, delays=False)
        app.config_from_object({"CELERY_TASK_SERIALIZER": "json"})
        assert [app.conf[name] for name in SAFE] == [True, True]

    def test_of_an_app_without_leases_are_those_of_celery(self, app: Celery) -> None:
        DurableTasks(Celery("other", broker="redis://localhost:1", set_as_current=False), delays=False)
        DurableTasks(app, leases=False)
        assert [app.conf[name] for name in SAFE] == [False, None]
        assert list(_lease_settings(app)) == []

    @pytest.mark.parametrize(("timeout", "low"), [(None, 0), (60, 1), (3599.5, 1), (3600, 0), (7200, 0)])
    def test_do_not_touch_the_visibility_timeout_and_report_a_low_one(
        self, app: Celery, timeout: float | None, low: int
    ) -> None:
        given = {} if timeout is None else {"visibility_timeout": timeout}
        app.conf.broker_transport_options = given
        assert low_visibility_timeout(app) is None
        DurableTasks(app, delays=False)
        assert app.conf.broker_transport_options == given
        found = [f"{finding.found}: {finding.advice}" for finding in _lease_settings(app)]
        assert len(found) == low
        assert all("visibility_timeout" in text and "remove it, in any order" in text for text in found)


class TestLogLine:
    def test_lists_the_active_features(self, app: Celery) -> None:
        app.conf.broker_url = "redis://:secret@localhost:1"
        DurableTasks(app)
        app.conf.task_acks_late = False
        assert describe(app, dispatches=False) == (
            "redis_queue: store redis://***@localhost:1, delays on, delay queue scheduled, dispatching off, "
            "reports on, leases on, "
            "task_reject_on_worker_lost on by default, task_acks_late off: a killed worker loses its tasks, "
            f"task_lease 60 s, atomic fetch {'off' if lacking() else 'on'}"
        )

    def test_is_short_without_leases_or_delays(self, app: Celery) -> None:
        DurableTasks(app, leases=False)
        assert describe(app, dispatches=True).endswith(
            "delays on, delay queue scheduled, dispatching on, reports on, leases off"
        )
        other = Celery("other", broker="redis://localhost:1", set_as_current=False)
        DurableTasks(other, delays=False)
        other.conf.redis_queue_monitor = False
        assert ", delays off, reports off, leases on" in describe(other, dispatches=True)

    def test_is_logged_once_by_a_worker(self) -> None:
        with fleet_on_one_redis() as fleet:
            fleet.client.config_set("maxmemory-policy", "allkeys-lru")
            fleet.client.config_set("maxmemory", "1gb")
            with fleet.worker("--without-dispatch") as worker:
                worker.wait_for_output("maxmemory-policy=allkeys-lru: must be noeviction")
                worker.wait_for_output("ready.")
                assert worker.output.count("redis_queue: store ") == 1
                assert "delay queue scheduled, dispatching off, reports on, leases off" in worker.output


@pytest.mark.parametrize(
    ("policy", "said"), [("allkeys-lru", "Redis may evict queues"), ("volatile-ttl", "Redis may evict held locks")]
)
def test_eviction_policy_of_the_store_is_a_warning(policy: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server, server.client() as client:
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", "1gb")
        with closing(Celery("startup", broker=f"redis+socket://{server.socket}", set_as_current=False)) as app:
            DurableTasks(app, leases=False)
            StartupStep(SimpleNamespace(app=app)).start(SimpleNamespace(app=app, hub=None))
            wait_until(lambda: said in caplog.text, description="the warning")
            assert [record.levelno for record in caplog.records if said in record.message] == [logging.WARNING]


def test_worker_starts_without_the_store(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with closing(Celery("startup", broker="redis://localhost:1", set_as_current=False)) as app:
        DurableTasks(app, leases=False)
        StartupStep(SimpleNamespace(app=app)).start(SimpleNamespace(app=app, hub=None))
        wait_until(lambda: "the store cannot be checked" in caplog.text, description="the answer")
        assert Store.of(app).url in caplog.text
