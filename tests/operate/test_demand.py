"""The demand that an autoscaler reads: what waits, runs and falls due soon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.cli.metrics import _scale
from redis_queue.errors import ConfigurationError, InvalidNameError, InvalidValueError
from redis_queue.operate.access import AppAccess, access_to
from redis_queue.operate.forecast import demand
from redis_queue.web import dashboard
from tests.support.celery.observed_names import OK
from tests.support.celery.observing import Observed, observed_on_one_redis


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    """An app with five messages in the queue "mail", two in the default one, and delayed tasks for "mail"."""
    with observed_on_one_redis() as found:
        for _ in range(5):
            found.send(OK, queue="mail")
        for _ in range(2):
            found.send(OK)
        for countdown in (100, 200, 250, 400):
            found.send(OK, queue="mail", countdown=countdown)
        found.send(OK, countdown=100)
        yield found


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([("queue", "mail")], (5, 0, 5)),
        ([("queue", "mail"), ("due_within", "0")], (5, 0, 5)),
        ([("queue", "mail"), ("due_within", "300")], (5, 3, 8)),
        ([("queue", "mail"), ("due_within", "3600")], (5, 4, 9)),
        ([("queue", "mail"), ("queue", "celery"), ("due_within", "300")], (7, 4, 11)),
        ([("queue", "mail"), ("queue", "mail")], (5, 0, 5)),
    ],
)
def test_it_adds_up_what_waits_and_what_is_due_soon(
    observed: Observed, parameters: list[tuple[str, str]], expected: tuple[int, int, int]
) -> None:
    found = demand(AppAccess(observed.app), parameters)
    assert (found.ready, found.due, found.total) == expected


BAD: list[tuple[list[tuple[str, str]], str]] = [
    ([], r"queue: must be given 1 to 20 times, got 0"),
    ([("queue", str(number)) for number in range(21)], r"queue: must be given 1 to 20 times, got 21"),
    ([("queue", "mail"), ("x", "1")], r"'x': unknown parameter"),
    *(
        ([("queue", "mail"), ("due_within", value)], r"due_within=.*: must be given once, whole seconds from 0 to 3600")
        for value in ("-1", "3601", "1.5", "", "x" * 500, "²", "99999")
    ),
    ([("queue", "mail"), ("due_within", "1"), ("due_within", "2")], "must be given once"),
]


@pytest.mark.parametrize(("parameters", "text"), BAD)
def test_invalid_parameters_are_refused(observed: Observed, parameters: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(InvalidValueError, match=text):
        demand(AppAccess(observed.app), parameters)


def test_an_unknown_queue_is_an_error(observed: Observed) -> None:
    with pytest.raises(InvalidNameError, match=r"'mial': no such Celery queue; did you mean 'mail'"):
        demand(AppAccess(observed.app), [("queue", "mial")])


def test_it_needs_an_app(client: redis.Redis) -> None:
    with pytest.raises(ConfigurationError, match="known to a Celery app only"):
        demand(access_to(client, "redis_queue"), [("queue", "mail")])


def test_all_queues_are_counted_by_one_connection(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    connect = observed.app.connection_for_read

    def count(**options: Any) -> Any:
        opened.append(options)
        return connect(**options)

    monkeypatch.setattr(observed.app, "connection_for_read", count)
    assert demand(AppAccess(observed.app), [("queue", "mail"), ("queue", "celery")]).total == 7
    assert len(opened) == 1


def test_without_an_app_both_endpoints_are_unavailable(client: redis.Redis) -> None:
    assert dashboard(client).test_client().get("/scale?queue=mail").status_code == 503
    status, found = _scale(access_to(client, "redis_queue"), "queue=mail")
    assert status == "503 Service Unavailable"
    assert "use celery -A app redis-queue" in found["error"]


def test_the_dashboard_answers_with_json(observed: Observed) -> None:
    web = dashboard(observed.app).test_client()
    answer = web.get("/scale?queue=mail&due_within=300")
    assert answer.json is not None
    assert (answer.status_code, answer.json["total"], answer.mimetype) == (200, 8, "application/json")
    assert web.get("/scale?queue=nobody").status_code == 404
    assert web.get("/scale").status_code == 400


def test_the_endpoint_of_the_metrics_answers_with_json(observed: Observed) -> None:
    access = AppAccess(observed.app)
    status, found = _scale(access, "queue=mail&due_within=300")
    assert (status, found["total"]) == ("200 OK", 8)
    assert _scale(access, "queue=nobody")[0] == "404 Not Found"
    assert _scale(access, "queue=" + "x" * 20_000)[0] == "404 Not Found"
    assert _scale(access, "&".join(["queue=a"] * 200))[0] == "400 Bad Request"


def test_without_its_redis_it_says_so() -> None:
    app = Celery("away", broker="redis://127.0.0.1:1/0", set_as_current=False)
    status, found = _scale(AppAccess(app), "queue=celery")
    assert status == "503 Service Unavailable"
    assert "error" in found
