"""Applications with their own classes of tasks and requests, and several workers in one process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from redis_queue.celery import DurableTasks
from redis_queue.celery.monitor.requests import RequestNotes, noted_requests
from tests.support.celery.observed_names import FAIL, OK
from tests.support.celery.observing import Observed
from tests.support.celery.own_tasks import CALLS, OwnRequest
from tests.support.marks import thorough
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize(
    ("pool", "name"),
    [("prefork", "OwnTask"), ("threads", "NamedTask"), *thorough(("prefork", "NamedTask"), ("threads", "OwnTask"))],
)
def test_requests_and_strategies_of_an_application_are_used(observed: Observed, name: str, pool: str) -> None:
    for task in (OK, OK, FAIL):
        observed.send(task)
    environment = {"TASK_CLASS": f"tests.support.celery.own_tasks:{name}"}
    with observed.worker(pool=pool, environment=environment):
        ok, fail = observed.wait_for(OK, 2), observed.wait_for(FAIL, 1)
    assert (ok.executed, ok.failed, fail.executed, fail.failed) == (2, 0, 1, 1)
    calls = {key: int(value) for key, value in observed.client.hgetall(CALLS).items()}
    assert calls == {b"accepted": 3, b"message": 3, b"failure": 1}


def test_the_request_class_of_a_task_is_extended_within_the_block_only() -> None:
    tasks: list[Any] = [SimpleNamespace(Request=OwnRequest), SimpleNamespace(Request="celery.worker.request:Request")]
    activity: Any = SimpleNamespace()
    with noted_requests(tasks, activity):
        assert issubclass(tasks[0].Request, RequestNotes)
        assert issubclass(tasks[0].Request, OwnRequest)
        assert tasks[1].Request.activity_of_worker is activity
    assert [task.Request for task in tasks] == [OwnRequest, "celery.worker.request:Request"]


def test_a_worker_that_starts_meanwhile_extends_the_class_of_the_application() -> None:
    tasks: list[Any] = [SimpleNamespace(Request=OwnRequest)]
    entered = threading.Event()

    def start() -> list[str]:
        with noted_requests(tasks, SimpleNamespace()):  # type: ignore[arg-type]
            entered.set()
            return [of.__name__ for of in tasks[0].Request.__mro__]

    with ThreadPoolExecutor(1) as threads:
        with noted_requests(tasks, SimpleNamespace()):  # type: ignore[arg-type]
            other = threads.submit(start)
            assert not entered.wait(0.2)
        assert other.result(timeout=30).count("NotedRequest") == 1
    assert tasks[0].Request is OwnRequest


def test_one_worker_after_the_other_in_a_process_reports_its_own_runs(observed: Observed) -> None:
    with Celery("inside", broker=observed.broker_url, set_as_current=False) as app:
        app.conf.update(redis_queue_url=observed.store.url, redis_queue_task_lease=20)
        DurableTasks(app, leases=False)

        @app.task(name="inside", shared=False)  # type: ignore[untyped-decorator]
        def inside() -> None:
            """Do nothing."""

        for number in (1, 2):
            with start_worker(app, hostname="a@test", pool="threads", perform_ping_check=False, shutdown_timeout=60):
                inside.delay()
                observed.wait_for("inside", number)
                row = wait_until(
                    lambda: next((row for row in observed.workers.rows() if row.executed), None), description="its row"
                )
                assert (row.name, row.executed) == ("a@test", 1)
            assert observed.workers.rows() == []
            assert "redis-queue-monitor" not in [thread.name for thread in threading.enumerate()]
    assert observed.tally("inside").executed == 2
