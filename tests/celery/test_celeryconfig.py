"""celeryconfig.py: the settings of the reference application from environment variables."""

import runpy
from typing import Any

import pytest
from celery import Celery

from redis_queue.celery import Store
from redis_queue.celery.dispatch.beat import DELAY_DISPATCH, PUTBACK
from tests.support.paths import ROOT

FILE = ROOT / "celeryconfig.py"
VARIABLES = (
    "REDIS_URL",
    "CELERY_BROKER_URL",
    "CELERY_RESULT_BACKEND",
    "CELERY_TIMEZONE",
    "REDIS_QUEUE_PREFIX",
    "CELERY_KEY_PREFIX",
)


def configured_app(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Celery:
    """Return an app with this configuration and these environment variables."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    app = Celery("tests", set_as_current=False)
    app.config_from_object(runpy.run_path(str(FILE)))
    return app


def configured(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Any:
    """Return the settings of the app with these environment variables."""
    return configured_app(monkeypatch, **environment).conf


def test_default_is_one_local_redis_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = configured(monkeypatch)

    assert conf.redis_queue_url == conf.broker_url == "redis://localhost:6379/0"
    assert conf.redis_queue_prefix == "redis_queue"
    assert conf.result_backend is None
    assert conf.timezone == "UTC"


def test_environment_sets_store_backend_time_zone_and_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = configured(
        monkeypatch,
        REDIS_URL="redis://one:1/2",
        CELERY_RESULT_BACKEND="redis://two:2/3",
        CELERY_TIMEZONE="Europe/Berlin",
        REDIS_QUEUE_PREFIX="shop",
    )

    assert conf.redis_queue_url == conf.broker_url == "redis://one:1/2"
    assert conf.result_backend == "redis://two:2/3"
    assert conf.timezone == "Europe/Berlin"
    assert conf.redis_queue_prefix == "shop"


def test_time_zone_applies_to_the_beat_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    app = configured_app(monkeypatch, CELERY_TIMEZONE="Asia/Tokyo")

    assert app.now().utcoffset().total_seconds() == 9 * 3600


def test_rabbitmq_broker_uses_publisher_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("amqp://guest:guest@rabbit//", "pyamqp://rabbit//", "amqps://rabbit//"):
        conf = configured(monkeypatch, REDIS_URL="redis://one:1/2", CELERY_BROKER_URL=url)

        assert (conf.redis_queue_url, conf.broker_url) == ("redis://one:1/2", url)
        assert conf.broker_transport_options["confirm_publish"] is True


def test_redis_on_a_unix_socket_is_broker_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = configured(monkeypatch, REDIS_URL="unix:///run/redis.sock?db=0")

    assert conf.redis_queue_url == "unix:///run/redis.sock?db=0"
    assert conf.broker_url.startswith("redis+socket:///run/redis.sock")


def test_the_app_of_the_configuration_finds_its_store(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    app = configured_app(
        monkeypatch, REDIS_URL=redis_url, CELERY_BROKER_URL="amqp://rabbit//", REDIS_QUEUE_PREFIX="shop"
    )
    store = Store.of(app)

    assert store.prefix == "shop"
    assert store.client.ping()


def test_beat_ticks_every_second_and_puts_back_every_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = configured(monkeypatch)

    entries = {entry["task"]: entry for entry in conf.beat_schedule.values()}
    assert {name: entry["schedule"] for name, entry in entries.items()} == {PUTBACK: 300, DELAY_DISPATCH: 1}
    assert (PUTBACK, DELAY_DISPATCH) == ("tasks.putback.putback", "tasks.delay_dispatch.delay_dispatch")
    for entry in entries.values():
        assert entry["options"]["queue"] == "redis_queue"
        assert entry["options"]["expires"] >= entry["schedule"]


def test_ticks_queue_is_reached_only_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    app = configured_app(monkeypatch)

    bindings = {name: (queue.exchange.name, queue.routing_key) for name, queue in app.amqp.queues.items()}
    assert set(bindings) == {"celery", "redis_queue"}
    assert bindings["celery"] != bindings["redis_queue"]
