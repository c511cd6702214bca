"""Actions on running tasks and on workers, with real workers."""

import os
import signal
from functools import partial

import pytest

from redis_queue.basics.times import to_ms
from redis_queue.celery.monitor import remote
from redis_queue.errors import InvalidNameError, InvalidValueError, WorkerRefusedError
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.operate.access import Access, AppAccess
from redis_queue.operate.actions.workers import SIZE, worker_of
from redis_queue.operate.liveness import state_of
from tests.support.actions import act, resize, shut_down, stop
from tests.support.celery.observed_names import GATE, OK, PATIENT, SEEN
from tests.support.celery.observing import Observed
from tests.support.marks import thorough
from tests.support.wait import must, wait_until

RESULTS = True

pytestmark = pytest.mark.timeout(180)

NAME = "one@test"


def running(observed: Observed, id_: str) -> RunningTask:
    """Wait until a worker reports a task."""
    return wait_until(lambda: observed.workers.find_running(id_), description="the report")


def ready(observed: Observed) -> WorkerRow:
    """Wait until the worker reports and listens to control messages."""
    wait_until(lambda: observed.app.control.ping([NAME], timeout=0.5), timeout=60, description="an answer")
    return row_of(observed)


def row_of(observed: Observed) -> WorkerRow:
    return wait_until(lambda: observed.workers.row(NAME), timeout=60, description="the report")


@pytest.mark.parametrize(
    ("pool", "late"), [("prefork", True), ("prefork", False), ("gevent", False), *thorough(("gevent", True))]
)
def test_a_terminated_task_ends_and_is_not_run_again(pool: str, late: bool, observed: Observed, access: Access) -> None:
    observed.settings["task_acks_late"] = late
    with observed.worker(pool=pool):
        task = running(observed, observed.send(GATE, "gate"))
        assert stop(access, task).count == 1
        tally = observed.wait_for(GATE, 1)
        assert (tally.executed, tally.revoked) == (0, 1)
        assert must(access.result_records).tasks([task.id])[task.id].state == "REVOKED"
        # The worker runs other tasks, and this one no more, although its gate is open.
        observed.client.rpush("gate", "open")
        observed.send(OK)
        observed.wait_for(OK, 1)
        wait_until(lambda: not observed.workers.find_running(task.id), description="the report without the task")
    assert observed.client.lrange(SEEN, 0, -1) == [b"gate"]
    assert observed.client.zcard("unacked_index") == observed.client.llen("celery") == 0


def test_a_task_that_is_stopped_softly_cleans_up(observed: Observed, access: Access) -> None:
    with observed.worker(pool="prefork"):
        task = running(observed, observed.send(PATIENT))
        assert stop(access, task, soft=True).count == 1
        assert observed.wait_for(PATIENT, 1).executed == 1
        # A run is told by a later report than its count, before the end of this block kills the worker.
        (run,) = wait_until(lambda: observed.runs.get(task.id), description="the run to be reported")
        assert run.outcome == "succeeded"
    assert observed.client.lrange(SEEN, 0, -1) == [b"waits", b"cleaned up"]


def test_another_run_of_the_task_is_left_alone(observed: Observed, access: Access) -> None:
    with observed.worker(pool="prefork"):
        task = running(observed, observed.send(GATE, "gate"))
        began = to_ms(task.since)
        assert remote.stop(access.app, NAME, [(task.id, began - 5000)], soft=False) == frozenset()
        assert remote.stop(access.app, NAME, [("other", began)], soft=False) == frozenset()
        observed.client.rpush("gate", "open")
        assert observed.wait_for(GATE, 1).executed == 1
        # It has ended.
        assert stop(access, task).count == 0


@pytest.mark.parametrize(
    ("pool", "soft"), [("threads", True), ("solo", False), *thorough(("threads", False), ("gevent", True))]
)
def test_a_pool_that_cannot_stop_tasks_is_named(pool: str, soft: bool, observed: Observed, access: Access) -> None:
    with observed.worker(pool=pool):
        row = ready(observed)
        found = stop(access, RunningTask("id", GATE, "celery", NAME, row.seen_at), soft=soft)
    assert found.reasons[0].startswith(f"1 skipped: {NAME}: its {'thread' if pool == 'threads' else pool} pool cannot")


def test_a_worker_that_shuts_down_says_so_and_why_it_takes_no_commands(observed: Observed, access: Access) -> None:
    with observed.worker(pool="prefork") as worker:
        task = running(observed, observed.send(GATE, "gate"))
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: row_of(observed).stopping, description="a report that it shuts down")
        row = row_of(observed)
        assert state_of(row, 0.0) == ("stopping", "it shuts down; it runs 1 task")
        found = stop(access, task)
        assert found.count == 0
        assert "it shuts down and takes no commands" in found.reasons[0]
        for refused in (partial(shut_down, access, NAME), partial(resize, access, NAME, 3)):
            with pytest.raises(WorkerRefusedError, match="shuts down and takes no commands"):
                refused()
        observed.client.rpush("gate", "open")
        assert worker.wait() == 0


def test_a_worker_shuts_down_after_its_tasks(observed: Observed, access: Access) -> None:
    with observed.worker(pool="prefork") as worker:
        task = running(observed, observed.send(GATE, "gate"))
        row = worker_of(access, NAME)
        with pytest.raises(WorkerRefusedError, match="another process runs under this name now"):
            remote.shut_down(access.app, NAME, row.pid + 1)
        shut_down(access, NAME)
        observed.client.rpush("gate", "open")
        assert worker.wait(timeout=60) == 0
    assert observed.runs.get(task.id)[0].outcome == "succeeded"
    with pytest.raises(InvalidNameError, match=r"worker='one@test': did not report within the last minute; no worker"):
        worker_of(access, NAME)


def is_busy(observed: Observed, size: int) -> bool:
    row = row_of(observed)
    return row.concurrency == row.busy == size


@pytest.mark.parametrize("pool", ["prefork", *thorough("gevent")])
def test_a_pool_grows_and_shrinks(pool: str, observed: Observed, access: Access) -> None:
    with observed.worker(pool=pool):
        row = ready(observed)
        assert row.concurrency == 2
        for size in (4, 1):
            resize(access, NAME, size)
            gates = [observed.send(GATE, f"gate-{size}") for _ in range(6)]
            wait_until(partial(is_busy, observed, size), description="as many running tasks")
            observed.client.rpush(f"gate-{size}", *gates)
            wait_until(lambda: not observed.workers.running() and not row_of(observed).busy, description="their ends")


def test_a_pool_with_autoscale_and_busy_processes_are_refused(observed: Observed, access: Access) -> None:
    with observed.worker("--autoscale", "2,1", pool="prefork"):
        ready(observed)
        with pytest.raises(WorkerRefusedError, match=r"one@test: its size is chosen by --autoscale"):
            resize(access, NAME, 3)
        for size in ("0", "1001", "True", "\u0663"):
            with pytest.raises(InvalidValueError, match=r"size='\w+': must be a whole number from 1 to 1,000"):
                SIZE.read(size)


def test_a_worker_that_does_not_answer_is_an_error_in_time(observed: Observed, access: Access) -> None:
    with observed.worker(pool="solo"):
        ready(observed)
        running(observed, observed.send(GATE, "gate"))
        with pytest.raises(WorkerRefusedError, match=r"one@test: no answer within 2 s"):
            shut_down(access, NAME)
        observed.client.rpush("gate", "open")
        # It acts once it is free.
        wait_until(lambda: observed.workers.row(NAME) is None, timeout=60, description="its end")


def test_an_unknown_task(observed: Observed, access: Access) -> None:
    with pytest.raises(InvalidNameError, match="id='gone': no worker reports that it runs"):
        act(access, "running", "terminate", ids=["gone"])


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_on_rabbitmq(on_broker: Observed) -> None:
    access = AppAccess(on_broker.app)
    with on_broker.worker(pool="prefork") as worker:
        task = running(on_broker, on_broker.send(GATE, "gate"))
        ready(on_broker)
        assert stop(access, task).count == 1
        assert on_broker.wait_for(GATE, 1).revoked == 1
        shut_down(access, NAME)
        assert worker.wait(timeout=60) == 0
