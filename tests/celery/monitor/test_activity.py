"""Activity counts each run once, in memory that does not depend on the runs, and prefers failed and slow ones."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from redis_queue.celery.monitor.activity import MAX_SERIES, MAX_TASKS, SLOWEST, Activity
from redis_queue.celery.monitor.step import MonitorStep
from redis_queue.celery.queues.names import QueueNames
from redis_queue.monitor.model import Outcome, Tally
from redis_queue.monitor.report import MAX_ENDED, OTHER
from redis_queue.monitor.rows import MAX_ARGUMENTS, read_run, write_run


def request(task: Any = "shop.mail", id_: Any = "id1", started: float | None = None, **changes: Any) -> Any:
    info = {"exchange": "", "routing_key": "mail"} | changes.pop("info", {})
    headers = {"task": task, "id": id_, "delivery_info": info, **changes}
    return SimpleNamespace(request_dict=headers, time_start=started, message=SimpleNamespace())


@pytest.fixture
def activity() -> Activity:
    app: Any = SimpleNamespace(amqp=SimpleNamespace(queues={}))
    return Activity("one@host", QueueNames(app).of, lambda *_: None)


def test_counts_are_taken_once(activity: Activity) -> None:
    outcomes: list[Outcome] = ["succeeded", "failed", "retried", "revoked"]
    for outcome in outcomes:
        activity.ended(request(), outcome, None)
    assert list(activity.take().values()) == [Tally(3, 1, 1, 1)]
    assert activity.take() == {}
    activity.look()
    assert (activity.executed, activity.failures, activity.last_minute) == (3, 1, (3, 1))


def test_threads_lose_no_count(activity: Activity, pool: ThreadPoolExecutor) -> None:
    taken: list[Tally] = []
    ended = threading.Event()

    def take() -> None:
        while not ended.is_set():
            taken.extend(activity.take().values())

    def run(_: int) -> None:
        for number in range(5000):
            activity.ended(request(started=1.0), "failed" if number % 2 else "succeeded", 0.1)

    reader = pool.submit(take)
    list(pool.map(run, range(4)))
    ended.set()
    reader.result()
    total = sum([*taken, *activity.take().values()], Tally())
    assert (total.executed, total.failed, total.duration.total) == (20_000, 10_000, 20_000)
    assert (activity.executed, activity.failures) == (20_000, 10_000)


def test_the_runs_of_further_series_are_counted_together(activity: Activity) -> None:
    for number in range(10_000):
        activity.ended(request(f"task{number}"), "succeeded", None)
    tallies = activity.take()
    assert len(tallies) == MAX_SERIES + 1
    assert tallies[OTHER] == Tally(10_000 - MAX_SERIES)


def test_arguments_are_not_kept_in_memory(activity: Activity) -> None:
    class Argument:
        """Something large."""

    found = []
    for _ in range(MAX_ENDED + 1):
        argument = Argument()
        found.append(weakref.ref(argument))
        activity.ended(request(args=[argument]), "succeeded", 0.1)
        del argument
    gc.collect()
    assert [reference() for reference in found] == [None] * len(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"info": {"exchange": ["x"]}},
        {"info": {"routing_key": {}}},
        {"info": {"routing_key": None}},
        {"id_": ["x"], "retries": "x", "root_id": 5, "redis_queue_eta": ["x"]},
        {"redis_queue_eta": "9999-12-31T23:59:59+00:00", "retries": 1 << 80},
        {"task": "\udcff\0", "id_": "x" * 1_000_000},
    ],
)
def test_odd_messages_are_counted_all_the_same(activity: Activity, changes: dict[str, Any]) -> None:
    activity.ended(request(started=1.0, **changes), "failed", 1.0)
    assert [tally.failed for tally in activity.take().values()] == [1]
    (run,) = activity.sample.take(0.0)
    assert max(map(len, (run.id, run.task, run.queue, run.root))) <= 255


@pytest.mark.parametrize("sent", [1 << 80, float("nan"), [1], "5", -1, None, {}])
def test_a_hostile_time_of_sending_is_ignored(activity: Activity, sent: Any) -> None:
    message = SimpleNamespace(headers={"redis_queue_sent": sent})
    MonitorStep.intake(lambda _: None)(message)
    assert message.headers == {}
    found = request(started=1e9)
    found._message = message
    activity.ended(found, "succeeded", 0.1)
    assert [tally.waiting.total for tally in activity.take().values()] == [0]
    assert activity.sample.take(0.0)[0].sent_at is None


def test_failed_and_slow_runs_are_preferred(activity: Activity) -> None:
    for number in range(1000):
        failed = number % 100 == 50
        activity.ended(request(id_=str(number)), "failed" if failed else "succeeded", (number * 7 % 1000) / 1000)
    runs = activity.sample.take(0.0)
    assert [run.id for run in runs if run.outcome == "failed"] == [str(number) for number in range(50, 1000, 100)]
    slowest = sorted(range(1000), key=lambda number: number * 7 % 1000 * (number % 100 != 50))[-SLOWEST:]
    assert {run.id for run in runs if run.outcome == "succeeded"} == {"0", *map(str, slowest)}


def test_a_slow_task_leaves_room_for_others(activity: Activity) -> None:
    for number in range(1000):
        activity.ended(request(f"task{number % 15}", id_=str(number)), "succeeded", float(number % 15 * 100))
    runs = activity.sample.take(0.0)
    assert len(runs) == MAX_ENDED
    assert {run.task for run in runs} == {f"task{number}" for number in range(15)}


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_a_bounded_number_of_runs_is_written(activity: Activity, outcome: Outcome) -> None:
    for number in range(3 * MAX_TASKS):
        activity.ended(request(f"task{number}", id_=str(number)), outcome, float(number))
    kept = MAX_TASKS if outcome == "succeeded" else 3 * MAX_TASKS
    assert [run.id for run in activity.sample.take(0.0)] == [str(kept - MAX_ENDED + number) for number in range(20)]


@pytest.mark.parametrize(
    ("args", "kept"),
    [
        ("('ORD-55555',)", "('ORD-55555',)"),
        ("{'token': 'abc', 'a': 1}", "{'token': ***, 'a': 1}"),
        ("('x" + "x" * 180 + "', 'redis://user:hunter2@host')", "('" + "x" * 181 + "', 'redis://***@h"),
        ("'" + "é" * 500, "'" + "é" * 99),
        ("{'password': '" + "x" * 5000, "{'password': ***"),
        ("a\0b\nc", "a?b\nc"),
        (["no text"], ""),
        (None, ""),
    ],
)
def test_arguments_are_cut_and_their_secrets_hidden(activity: Activity, args: Any, kept: str) -> None:
    activity.ended(request(argsrepr=args, kwargsrepr=args), "succeeded", 0.1)
    (noted,) = activity.sample.take(0.0)
    run = read_run("id1", write_run(noted).encode())
    assert run is not None
    assert (run.args, run.kwargs) == (kept, kept)
    assert len(kept.encode()) <= MAX_ARGUMENTS


def test_arguments_are_left_out_if_the_setting_says_so() -> None:
    app: Any = SimpleNamespace(amqp=SimpleNamespace(queues={}))
    activity = Activity("one@host", QueueNames(app).of, lambda *_: None, arguments=False)
    activity.ended(request(argsrepr="('x',)", kwargsrepr="{}"), "failed", 0.1)
    assert [(run.args, run.kwargs) for run in activity.sample.take(0.0)] == [("", "")]


def test_runs_are_kept_until_they_are_written(activity: Activity) -> None:
    activity.ended(request(id_="first"), "succeeded", 0.1)
    assert [run.id for run in activity.sample.take(0.0)] == ["first"]
    activity.ended(request(id_="second"), "succeeded", 0.2)
    assert [run.id for run in activity.sample.take(0.0)] == ["first", "second"]
    activity.sample.written()
    assert activity.sample.take(0.0) == []
    for number in range(3 * MAX_ENDED):
        activity.ended(request(id_=str(number)), "succeeded", 0.1)
        assert len(activity.sample.take(0.0)) <= MAX_ENDED


def test_a_run_that_cannot_be_counted_disturbs_nothing(activity: Activity, caplog: pytest.LogCaptureFixture) -> None:
    activity.ended(object(), "succeeded", 0.1)
    assert activity.take() == {}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_times_are_those_of_redis(activity: Activity) -> None:
    activity.ended(request(started=1000.0), "succeeded", 0.1)
    (run,) = activity.sample.take(90.0)
    assert run.started_at is not None
    assert run.started_at.timestamp() == 1090
