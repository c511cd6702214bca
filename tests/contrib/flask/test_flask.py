"""redis_queue in a Flask application: settings, tasks with a custom class, and the dashboard with its users."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from flask import Flask, request, session

from examples.notifications import create_app
from redis_queue.celery import DurableTasks
from redis_queue.contrib.flask import FlaskDurableTasks
from redis_queue.errors import ConfigurationError
from redis_queue.operate.actions.registry import PERMISSIONS
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until
from tests.support.web.browser import hidden, token


def broker(url: str) -> str:
    """Return a Redis URL in the form of kombu."""
    return url.replace("unix://", "redis+socket://").partition("?")[0]


@pytest.fixture
def app(redis_url: str, client: redis.Redis, tmp_path: Path) -> Flask:
    del client
    celery = {"broker_url": broker(redis_url), "redis_queue_url": redis_url, "task_ignore_result": True}
    return create_app(CELERY=celery, OUTBOX=str(tmp_path / "outbox.txt"))


def login(browser: Any, name: str) -> None:
    with browser.session_transaction() as session:
        session["user"] = name


def test_a_notification_is_scheduled_and_withdrawn(app: Flask) -> None:
    browser = app.test_client()
    id_ = browser.post("/notifications", data={"to": "ann", "text": "hello", "in": "60"}).json["id"]
    delayed: DurableTasks = app.extensions["redis_queue"]
    assert [(entry.id, entry.task) for entry in delayed.list()] == [(id_, "notifications.send_mail")]
    assert browser.delete(f"/notifications/{id_}").json == {"withdrawn": id_}
    assert browser.delete(f"/notifications/{id_}").status_code == 404
    assert delayed.count() == 0


def test_a_worker_runs_it_in_the_context_of_the_application(tmp_path: Path) -> None:
    with RedisServer() as server:
        variables = {"REDIS_URL": broker(server.url), "OUTBOX": str(tmp_path / "outbox.txt")}
        app = create_app(CELERY={"broker_url": variables["REDIS_URL"], "task_ignore_result": True})
        app.test_client().post("/notifications", data={"to": "ann", "text": "hello", "in": "0.5"})
        with CeleryProcess(
            *("-A", "examples.notifications.worker", "worker", "--pool", "solo", "--loglevel", "INFO"),
            environment=variables,
            beat=False,
        ):
            outbox = Path(variables["OUTBOX"])
            wait_until(lambda: outbox.exists() and outbox.read_text() == "ann: hello\n", description="the mail")


def test_the_dashboard_uses_the_users_of_the_application(app: Flask) -> None:
    browser = app.test_client()
    assert browser.get("/queues/").status_code == 403
    login(browser, "ann")
    page = browser.get("/queues/scheduled")
    assert page.status_code == 200
    assert "read-only" in page.text
    links = re.findall(r'(?:href|src|action)="([^"]+)"', page.text)
    assert [link for link in links if not link.startswith(("/queues/", "#"))] == []
    assert browser.post("/queues/actions/scheduled", data={"verb": "cancel"}).status_code == 403
    assert browser.post("/notifications", data={"to": "ann", "text": "hello"}).status_code == 201


def test_users_with_write_permission_can_cancel(app: Flask) -> None:
    browser = app.test_client()
    login(browser, "admin")
    id_ = browser.post("/notifications", data={"to": "ann", "text": "hello"}).json["id"]
    form = {"verb": "cancel", "row": f"delay:scheduled:{id_}", "token": token(browser.get("/queues/scheduled").text)}
    preview = browser.post("/queues/actions/scheduled/preview", data=form)
    done = browser.post("/queues/actions/scheduled", data=hidden(preview.text))
    assert (done.status_code, done.headers["Location"]) == (303, "/queues/scheduled")
    assert app.extensions["redis_queue"].count() == 0
    # The session of the application is unchanged.
    with browser.session_transaction() as session:
        assert session["user"] == "admin"


def dashboard(redis_url: str, **options: Any) -> Flask:
    app = Flask("other")
    app.config.update(SECRET_KEY="dev", REDIS_QUEUE_URL=redis_url)
    celery = Celery("other", broker="redis://localhost", set_as_current=False)
    FlaskDurableTasks(app, celery=celery, dashboard="/queues", **options)
    return app


def test_the_secret_key_of_the_application_may_be_short(redis_url: str) -> None:
    app = dashboard(redis_url, user=lambda: "ann")
    assert app.test_client().get("/queues/").status_code == 200


@pytest.mark.parametrize("nobody", [None, False, ""])
def test_anonymous_users_are_refused(redis_url: str, nobody: Any) -> None:
    assert dashboard(redis_url, user=lambda: nobody).test_client().get("/queues/").status_code == 403


def test_the_user_function_does_not_consume_the_form(redis_url: str) -> None:
    roots: list[str] = []

    def user() -> str:
        roots.append(request.script_root)
        return request.values.get("key", "ann")

    app = dashboard(redis_url, user=user, may_write=lambda: True)
    browser = app.test_client()
    id_ = app.extensions["redis_queue"].app.send_task("shop.remind", countdown=60).id
    # Like a proxy that serves the application under a path.
    under = {"environ_overrides": {"SCRIPT_NAME": "/shop"}}
    form = {
        "verb": "cancel",
        "row": f"delay:scheduled:{id_}",
        "token": token(browser.get("/queues/scheduled", **under).text),
    }
    assert "Cancel 1 waiting entry?" in browser.post("/queues/actions/scheduled/preview", data=form, **under).text
    assert set(roots) == {"/shop"}


def test_may_decides_for_each_user_and_verb(redis_url: str) -> None:
    contexts: list[object] = []

    def may(verb: str) -> bool:
        contexts.append(request._get_current_object())  # type: ignore[attr-defined]
        return verb in session.get("verbs", ())

    app = dashboard(redis_url, user=lambda: "ann", may=may)
    browser = app.test_client()
    id_ = app.extensions["redis_queue"].app.send_task("shop.remind", countdown=60).id
    page = browser.get("/queues/scheduled").text
    assert 'class="mode">read-only' in page
    assert re.findall('name="verb"', page) == []
    # One look at the session, not one for each verb.
    assert len(contexts) == len(PERMISSIONS)
    assert len(set(map(id, contexts))) == 1

    with browser.session_transaction() as data:
        data["verbs"] = ["run-now"]
    page = browser.get("/queues/scheduled").text
    assert re.findall('name="verb" value="([^"]+)"', page) == ["run-now"]
    form = {"row": f"delay:scheduled:{id_}", "token": token(page)}
    refused = browser.post("/queues/actions/scheduled/preview", data={**form, "verb": "cancel"})
    assert (refused.status_code, "cancel is not permitted to ann" in refused.text) == (403, True)
    preview = browser.post("/queues/actions/scheduled/preview", data={**form, "verb": "run-now"})
    assert browser.post("/queues/actions/scheduled", data=hidden(preview.text)).status_code == 303
    assert "1 made due." in browser.get("/queues/scheduled").text


@pytest.mark.parametrize("leases", [True, False])
def test_leases_are_turned_on_for_its_celery_app(redis_url: str, leases: bool) -> None:
    app = Flask("leased")
    app.extensions["celery"] = celery = Celery("leased", broker=redis_url, set_as_current=False)
    FlaskDurableTasks(app, leases=leases)
    assert bool(celery.conf.task_acks_late) == leases


def test_settings_of_the_application_reach_celery(redis_url: str) -> None:
    app = Flask("other")
    app.config.update(REDIS_QUEUE_URL=redis_url, REDIS_QUEUE_MIN_DELAY=5)
    celery = Celery("other", broker="amqp://localhost", set_as_current=False)
    celery.conf.update(redis_queue_min_delay=2)
    extension = FlaskDurableTasks(celery=celery)
    extension.init_app(app)
    delayed: DurableTasks = app.extensions["redis_queue"]
    assert delayed.app is celery
    assert delayed.settings.min_delay == 2
    assert celery.conf.redis_queue_url == redis_url


def test_a_setting_in_celerys_namespace_has_precedence(redis_url: str) -> None:
    app = Flask("other")
    app.config.update(REDIS_QUEUE_URL=redis_url, REDIS_QUEUE_MIN_DELAY=5, CELERY_REDIS_QUEUE_MIN_DELAY=2)
    celery = Celery("other", broker="amqp://localhost", set_as_current=False)
    celery.config_from_object(app.config, namespace="CELERY")
    FlaskDurableTasks(app, celery=celery)
    delayed: DurableTasks = app.extensions["redis_queue"]
    assert delayed.settings.min_delay == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dashboard": "/queues"}, "needs user="),
        ({"dashboard": "queues", "user": lambda: "ann"}, "must be a path"),
        ({"dashboard": "/", "user": lambda: "ann"}, "must be a path"),
        ({"may": lambda _: True, "may_write": lambda: True}, "may and may_write: must not be given together"),
        ({}, "no Celery app: set"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        FlaskDurableTasks(Flask("other"), **options)
