"""Real workers keep each failure once, however it came about, and a retry of it runs the task again."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from redis_queue.basics.options import Conditions
from redis_queue.celery.message.envelope import Envelope
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions.action import Argument, Result
from redis_queue.operate.actions.failures import ARGS, KWARGS, NO_MESSAGE, is_dispatched
from tests.support.actions import act
from tests.support.celery.observed_names import AGAIN, DIE, FAIL, GATE, HUGE, IGNORE, LONG, MENDED, OK, REJECT, SEEN
from tests.support.celery.observing import PREFIX, Observed, observed_on_one_redis
from tests.support.marks import thorough
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until

pytestmark = pytest.mark.timeout(180)

UNKNOWN = "observed.unknown"


def failures_of(observed: Observed) -> Failures:
    return Failures(observed.client, PREFIX)


def wait_for_failures(observed: Observed, count: int) -> list[Failure]:
    """Wait until *count* failures are kept, and return them, the last one first."""

    def kept() -> list[Failure] | None:
        found, _ = failures_of(observed).list(limit=500)
        return list(found) if len(found) >= count else None

    return wait_until(kept, timeout=60, description=f"{count} failures")


def retried(observed: Observed, only: Conditions, **arguments: Any) -> Result:
    """Retry the failures that match *only*; return what became of them."""
    return act(AppAccess(observed.app), "failures", "retry", conditions=only, arguments=arguments)


def send_raw(observed: Observed, body: bytes, content_type: str, headers: dict[str, Any]) -> None:
    """Put a message into the queue that Celery would not send."""
    with observed.app.connection_for_write() as connection, connection.channel() as channel:
        producer = connection.Producer(channel)
        producer.publish(
            body, routing_key="celery", content_type=content_type, content_encoding="utf-8", headers=headers
        )


@pytest.mark.parametrize("pool", ["prefork", "gevent", *thorough("solo", "threads")])
def test_each_failure_is_kept_once(observed: Observed, pool: str) -> None:
    sent = {name: observed.send(name) for name in (OK, FAIL, AGAIN, REJECT, IGNORE, UNKNOWN)}
    send_raw(observed, b"not json", "application/json", {})
    send_raw(observed, b"\x80\x04N.", "application/x-python-serialize", {"lang": "py"})
    with observed.worker(pool=pool) as worker:
        found = wait_for_failures(observed, 6)
        observed.send(OK)
        observed.wait_for(OK, 2)
        worker.request_shutdown()
        assert worker.wait() == 0
    assert len(failures_of(observed).list()[0]) == 6
    kinds = Counter((failure.kind, failure.exception.rpartition(".")[2]) for failure in found)
    assert kinds == {
        ("failed", "ValueError"): 1,
        ("failed", "KeyError"): 1,
        ("failed", "Reject"): 1,
        ("unregistered", "NotRegistered"): 1,
        ("unreadable", "DecodeError"): 1,
        ("unreadable", "ContentDisallowed"): 1,
    }
    known = {failure.task: failure for failure in found}
    assert {name: known[name].id for name in (FAIL, AGAIN, REJECT, UNKNOWN)} == {
        name: sent[name] for name in (FAIL, AGAIN, REJECT, UNKNOWN)
    }
    assert {name: known[name].attempts for name in (FAIL, AGAIN, REJECT, UNKNOWN)} == {
        FAIL: 1,
        AGAIN: 3,
        REJECT: 1,
        UNKNOWN: 0,
    }
    fail = must(failures_of(observed).get(sent[FAIL]))
    assert (fail.message, fail.queue, fail.worker, fail.args, fail.kwargs) == (
        "broken",
        "celery",
        "one@test",
        "()",
        "{}",
    )
    assert "raise ValueError(text)" in fail.traceback
    assert fail.seconds is not None
    assert 0 <= fail.seconds < 30


def test_failures_that_are_read_while_connections_are_lost_stop_no_pool(observed: Observed) -> None:
    """A failure with 10 MB comes from its process in many parts."""
    for _ in range(12):
        observed.send(HUGE)
    with observed.worker(pool="prefork"):
        for count in range(1, 13):
            wait_for_failures(observed, count)
            observed.client.client_kill_filter(_type="normal", skipme=True)
        observed.send(OK)
        observed.wait_for(OK, 1)


def test_a_hard_time_limit_and_a_killed_process_are_kept(observed: Observed) -> None:
    long = observed.send(LONG)
    with observed.worker(pool="prefork"):
        wait_for_failures(observed, 1)
        die = observed.send(DIE)
        found = wait_for_failures(observed, 2)
        tallies = [observed.wait_for(name, 1) for name in (LONG, DIE)]
    assert [(tally.executed, tally.failed) for tally in tallies] == [(1, 1), (1, 1)]
    assert {failure.id: failure.exception for failure in found} == {
        long: "billiard.exceptions.TimeLimitExceeded",
        die: "billiard.exceptions.WorkerLostError",
    }


def test_retries_and_terminated_tasks_are_no_failures(observed: Observed) -> None:
    gate = observed.send(GATE, "gate")
    with observed.worker(pool="prefork"):
        wait_until(lambda: observed.workers.find_running(gate), timeout=60, description="the running task")
        observed.app.control.revoke(gate, terminate=True, signal="SIGKILL")
        tally = observed.wait_for(GATE, 1)
        assert (tally.executed, tally.failed, tally.revoked) == (0, 0, 1)
        observed.send(AGAIN)
        observed.wait_for(AGAIN, 3)
        found = wait_for_failures(observed, 1)
    assert [failure.task for failure in found] == [AGAIN]


@pytest.mark.parametrize("pool", ["prefork", *thorough("solo")])
def test_huge_exceptions_and_messages_are_cut(observed: Observed, pool: str) -> None:
    observed.send(HUGE)
    big = observed.send(FAIL, "x" * 100_000)
    with observed.worker(pool=pool):
        found = {failure.task: failure for failure in wait_for_failures(observed, 2)}
    assert len(found[HUGE].message.encode()) <= 1024
    assert "\x1b" not in found[HUGE].message
    assert must(failures_of(observed).get(big)).body is None
    result = retried(observed, Conditions(task=FAIL))
    assert result.skipped == {NO_MESSAGE: 1}
    assert failures_of(observed).count() == 2


def test_failures_beyond_a_hundred_in_a_second_are_counted(observed: Observed) -> None:
    total = 1000
    for _ in range(total):
        observed.send(FAIL)
    with observed.worker(pool="threads"):
        observed.wait_for(FAIL, total)

        def accounted() -> bool:
            kept = failures_of(observed).kept()
            return kept is not None and failures_of(observed).count() + kept.missed == total

        wait_until(accounted, description="each failure kept or counted")


def test_nothing_is_kept_if_the_setting_says_so() -> None:
    with observed_on_one_redis(redis_queue_keep_failures=False) as observed, observed.worker():
        observed.send(FAIL)
        observed.wait_for(FAIL, 1)
        observed.send(OK)
        observed.wait_for(OK, 1)
        assert failures_of(observed).kept() is None


def test_the_setting_limits_the_number() -> None:
    with observed_on_one_redis(redis_queue_keep_failures={"tasks": 3, "days": 1.5}) as observed, observed.worker():
        for _ in range(20):
            observed.send(FAIL)
        observed.wait_for(FAIL, 20)
        wait_until(lambda: failures_of(observed).count() == 3, description="three failures")
        kept = must(failures_of(observed).kept())
        assert (kept.most, kept.days) == (3, 1.5)


def test_retried_tasks_run_at_the_rate_and_leave_the_list(observed: Observed) -> None:
    sent = {observed.send(MENDED, number) for number in range(20)}
    with observed.worker("--without-dispatch", pool="solo"):
        wait_for_failures(observed, 20)
        observed.client.set("mended", 1)
        assert not is_dispatched(AppAccess(observed.app))
        result = retried(observed, Conditions(exception="ZeroDivisionError"), rate=5)
        assert (result.count, {subject.id for subject in result.subjects} <= sent) == (len(sent), True)
        assert failures_of(observed).count() == 0
        assert failures_of(observed).groups() == []
        # Nothing is dispatched: all of them wait.
        entries = AppAccess(observed.app).delay_queue().list()
        assert {entry.id for entry in entries} == sent
        due = sorted(entry.due_at.timestamp() for entry in entries)
        assert [round(later - earlier, 2) for earlier, later in itertools.pairwise(due)] == [0.2] * 19
        with observed.worker(name="two"):
            wait_until(lambda: observed.client.llen(SEEN) == 20, timeout=60, description="20 runs")
    runs = [json.loads(row) for row in observed.client.lrange(SEEN, 0, -1)]
    assert {run["id"] for run in runs} == sent
    assert {run["retries"] for run in runs} == {0}
    assert failures_of(observed).count() == 0
    # Tasks are never early: 20 of them at 5 per second take at least 3.8 s.
    assert max(run["at"] for run in runs) - due[0] >= 3.8


def test_a_retry_keeps_what_the_message_was(observed: Observed) -> None:
    id_ = observed.send(MENDED, 7, headers={"own": "1"}, priority=3, group_id="g", root_id="r", parent_id="p")
    with observed.worker(pool="solo"):
        wait_for_failures(observed, 1)
        observed.client.set("mended", 1)
        retried(observed, Conditions(task=MENDED))
        wait_until(lambda: observed.client.llen(SEEN) == 1, timeout=60, description="a run")
    (run,) = (json.loads(row) for row in observed.client.lrange(SEEN, 0, -1))
    assert {name: run[name] for name in ("id", "number", "own", "group", "root", "parent", "priority")} == {
        "id": id_,
        "number": 7,
        "own": "1",
        "group": "g",
        "root": "r",
        "parent": "p",
        "priority": 3,
    }


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
def test_other_arguments_and_any_broker(on_broker: Observed) -> None:
    id_, client = on_broker.send(MENDED, 1), on_broker.client
    with on_broker.worker(pool="solo"):
        wait_for_failures(on_broker, 1)
        client.set("mended", 1)
        assert retried(on_broker, Conditions(), args="[2]", kwargs="{}").count == 1
        wait_until(lambda: client.llen(SEEN) == 1, timeout=60, description="a run")
    run = json.loads(client.lindex(SEEN, 0))
    assert (run["id"], run["number"], run["argsrepr"]) == (id_, 2, "(2,)")


def test_an_unregistered_task_runs_once_a_worker_knows_it() -> None:
    with observed_on_one_redis() as observed:
        with observed.worker(name="old"):
            id_ = observed.send("observed.later")
            wait_for_failures(observed, 1)
        with observed.worker(name="new", environment={"LATER": "1"}):
            assert retried(observed, Conditions(exception="NotRegistered")).count == 1
            wait_until(lambda: observed.client.llen(SEEN) == 1, timeout=60, description="a run")
        assert observed.client.lrange(SEEN, 0, -1) == [id_.encode()]


@pytest.fixture(scope="module")
def of_worker() -> Iterator[tuple[Observed, Failure]]:
    """What a worker, which has ended, keeps of a failure."""
    with observed_on_one_redis() as observed:
        id_ = observed.send(MENDED, 1)
        with observed.worker(pool="solo"):
            wait_for_failures(observed, 1)
        failure = must(failures_of(observed).get(id_))
        yield observed, failure


@pytest.fixture
def kept(of_worker: tuple[Observed, Failure]) -> tuple[Observed, Failure]:
    """The store with just this failure; nothing is dispatched."""
    observed, failure = of_worker
    observed.client.flushall()
    failures_of(observed).keep([failure], 1000, 7)
    return observed, failure


def test_a_second_retry_has_no_effect_while_the_first_one_waits(kept: tuple[Observed, Failure]) -> None:
    observed, failure = kept
    retried(observed, Conditions())
    # As if the first one had died before it removed the failure.
    failures_of(observed).keep([failure], 1000, 7)
    assert retried(observed, Conditions()).count == 1
    assert len(AppAccess(observed.app).delay_queue().list()) == 1
    assert failures_of(observed).count() == 0


def test_another_call_that_waits_under_the_id_is_kept(kept: tuple[Observed, Failure]) -> None:
    observed, failure = kept
    observed.app.send_task(OK, task_id=failure.id, countdown=3600)
    retried(observed, Conditions())
    queue = AppAccess(observed.app).delay_queue()
    tasks = {Envelope.unpack(entry.payload, entry.id, entry.headers).task for entry in queue.list()}
    assert tasks == {OK, MENDED}


def test_failures_that_cannot_be_rebuilt_are_named_and_stay(kept: tuple[Observed, Failure]) -> None:
    observed, failure = kept
    store = failures_of(observed)
    broken = {b"\x01{": "cannot be read", b"\x02later": "expected", b"junk": "expected"}
    for number, body in enumerate(broken):
        store.keep([replace(failure, id=f"broken{number}", body=body)], 1000, 7)
    result = retried(observed, Conditions())
    assert [subject.id for subject in result.subjects] == [failure.id]
    assert result.skipped.total() == 3
    assert all(any(part in reason for reason in result.skipped) for part in broken.values())
    assert {found.id for found in store.list()[0]} == {f"broken{number}" for number in range(3)}
    # They are not claimed any more.
    assert len(store.claim(store.full(["broken0", "broken1", "broken2"]), "token")) == 3


def test_an_outage_of_the_store_disturbs_nothing(redis_server: RedisServer, client: Any) -> None:
    with RedisServer() as store, store.client() as of_store:
        observed = Observed(store, of_store, f"redis+socket://{redis_server.socket}")
        with observed.worker() as worker:
            observed.send(OK)
            observed.wait_for(OK, 1)
            store.pause()
            for name in (OK, OK, OK, FAIL):
                observed.send(name)
            worker.wait_for_output("cannot write reports")
            store.resume()
            (failure,) = wait_for_failures(observed, 1)
            assert failure.task == FAIL
            assert observed.wait_for(OK, 4).executed == 4
            assert worker.output.count("cannot write reports") == 1
            of_store.config_set("maxmemory", 1)
            observed.send(FAIL)
            worker.wait_for_output("cannot keep failed tasks")
            of_store.config_set("maxmemory", 0)
            wait_for_failures(observed, 2)
            assert worker.output.count("cannot keep failed tasks") == 1
        observed.app.close()


@pytest.mark.parametrize(
    ("argument", "text"), [(ARGS, "{}"), (KWARGS, "[]"), (ARGS, "["), (ARGS, "1"), (KWARGS, "NaN")]
)
def test_bad_arguments_are_refused(argument: Argument, text: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{argument.name}=.*: must be"):
        argument.read(text)


def test_good_arguments_stay_as_they_were_typed() -> None:
    assert (ARGS.read("[1]"), KWARGS.read('{"a":2}')) == ("[1]", '{"a":2}')
