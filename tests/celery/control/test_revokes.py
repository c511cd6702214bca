"""Reuse of a revoked task id: the new call runs, without the state of the old call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils.collections import LimitedSet
from celery.worker import state
from redis.client import PubSub

from redis_queue.celery import Dispatcher, DurableTasks
from redis_queue.celery.control import panel as control
from redis_queue.celery.control import revokes
from redis_queue.celery.control.revokes import RevokeStep, discard_tasks
from redis_queue.celery.entries import push_task
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import CALL
from tests.support.celery.delaying_names import NOTE
from tests.support.celery.fleet import Fleet
from tests.support.wait import wait_until

ORDER = "order-42"


@pytest.fixture
def broadcasts(fleet: Fleet) -> Iterator[PubSub]:
    """The broadcasts to the workers."""
    with fleet.client.pubsub() as pubsub:
        pubsub.psubscribe("*pidbox*")
        assert pubsub.get_message(timeout=5)
        yield pubsub


@pytest.fixture(autouse=True)
def revoked_ids() -> Iterator[None]:
    """The set of revoked ids of a worker in this process."""
    yield
    state.revoked.clear()


def send(delayed: DurableTasks, countdown: float = 600) -> Any:
    """Store a call with the shared id and return its result."""
    return delayed.app.send_task(NOTE, task_id=ORDER, countdown=countdown)


def message(delayed: DurableTasks) -> Any:
    """Return the message of the stored call as a worker receives it."""
    (entry,) = delayed.queue.list()
    envelope = Envelope.unpack(entry.payload, entry.id, entry.headers)
    return SimpleNamespace(headers=dict(envelope.headers), properties=dict(envelope.properties))


def handled(delayed: DurableTasks, found: Any) -> bool:
    """Let a worker with the revoked id receive *found*; return whether the id is still revoked afterwards."""
    state.revoked.add(ORDER)
    RevokeStep(SimpleNamespace(app=delayed.app, steps=[], pool=None)).intake(lambda _: None)(found)
    return ORDER in state.revoked


class TestCallThatNeverLeftTheStore:
    @pytest.mark.parametrize(
        "revoke",
        [
            lambda _, result: result.revoke(),
            lambda delayed, result: delayed.app.control.revoke([result.id]),
            lambda delayed, result: delayed.cancel(result.id),
        ],
        ids=["result", "control", "cancel"],
    )
    def test_is_not_broadcast_and_a_new_call_is_pending(
        self, delayed: DurableTasks, broadcasts: PubSub, revoke: Callable[[DurableTasks, Any], Any]
    ) -> None:
        result = send(delayed)
        revoke(delayed, result)
        assert result.state == "REVOKED"
        # A result never changes its final state.
        assert send(delayed).state == "PENDING"
        delayed.app.control.revoke("another")
        # The last broadcast sent is received first.
        data = wait_until(lambda: broadcasts.get_message(timeout=0.1), description="the broadcast")["data"]
        assert ORDER.encode() not in data

    def test_is_broadcast_if_a_worker_must_terminate_it_or_reply(
        self, delayed: DurableTasks, broadcasts: PubSub
    ) -> None:
        send(delayed)
        delayed.app.control.revoke(ORDER, terminate=True)
        wait_until(lambda: broadcasts.get_message(timeout=0.1), description="the broadcast")
        send(delayed)
        assert delayed.app.control.revoke(ORDER, reply=True, timeout=0.1) == []
        wait_until(lambda: broadcasts.get_message(timeout=0.1), description="the broadcast")

    @pytest.mark.parametrize("before", ["a retry", "a delivery"])
    def test_a_call_that_may_be_in_a_worker_is_broadcast(
        self, delayed: DurableTasks, broadcasts: PubSub, before: str
    ) -> None:
        if before == "a retry":
            delayed.app.send_task(NOTE, task_id=ORDER, countdown=600, retries=1)
        else:
            send(delayed, 0.001)
            (entry,) = wait_until(delayed.queue.claim, description="the entry to be due")
            delayed.queue.nack(entry)
        delayed.app.control.revoke(ORDER)
        data = wait_until(lambda: broadcasts.get_message(timeout=0.1), description="the broadcast")["data"]
        assert data


class TestNewerCall:
    def test_is_not_discarded_by_a_worker_with_the_revoked_id(self, delayed: DurableTasks) -> None:
        delayed.app.control.revoke(ORDER)
        send(delayed)
        assert not handled(delayed, message(delayed))

    @pytest.mark.parametrize("on_conflict", ["replace", "keep", "error"])
    def test_is_not_discarded_after_its_dispatch(self, delayed: DurableTasks, fleet: Fleet, on_conflict: Any) -> None:
        delayed.app.control.revoke(ORDER)
        push_task(delayed.queue, NOTE, id=ORDER, on_conflict=on_conflict)
        assert Dispatcher(delayed.app, delayed.queue).run().sent == 1
        (element,) = fleet.client.lrange(delayed.app.conf.task_default_queue, 0, -1)
        assert not handled(delayed, SimpleNamespace(**json.loads(element)))

    def test_leaves_the_older_call_revoked(self, delayed: DurableTasks) -> None:
        send(delayed)
        older = message(delayed)
        delayed.app.control.revoke(ORDER, terminate=True)
        send(delayed)
        assert handled(delayed, older)
        assert not handled(delayed, message(delayed))

    def test_can_be_revoked(self, delayed: DurableTasks) -> None:
        delayed.app.control.revoke(ORDER)
        send(delayed)
        newer = message(delayed)
        wait_until(lambda: delayed.app.control.revoke(ORDER) or handled(delayed, newer), description="a later ms")

    @pytest.mark.parametrize("headers", [None, {}, {CALL: 5}, {CALL: "x"}, {CALL: "unknown-call"}, {"id": [ORDER]}])
    def test_is_not_mistaken_for_a_message_without_its_name(self, delayed: DurableTasks, headers: Any) -> None:
        delayed.app.control.revoke(ORDER)
        send(delayed)
        found = message(delayed)
        found.headers = headers
        assert handled(delayed, found)

    def test_is_revoked_if_the_store_is_unavailable(
        self, delayed: DurableTasks, fleet: Fleet, caplog: pytest.LogCaptureFixture
    ) -> None:
        delayed.app.control.revoke(ORDER)
        send(delayed)
        found = message(delayed)
        fleet.store.kill()
        assert handled(delayed, found)
        assert "newer than its revoke" in caplog.text

    def test_in_a_worker_is_not_revoked_by_a_late_broadcast(self, delayed: DurableTasks) -> None:
        delayed.app.control.revoke(ORDER)
        send(delayed)
        state.requests[ORDER] = SimpleNamespace(request_dict=message(delayed).headers)
        delayed.app.backend.mark_as_revoked(ORDER)
        seen: list[Any] = []
        wrapped = control._COMMANDS["revoke"](lambda _, **arguments: seen.append(arguments["task_id"]))
        try:
            wrapped(
                SimpleNamespace(app=delayed.app), task_id=[ORDER, "other"], stored_cancelled="redis_queue:scheduled"
            )
        finally:
            del state.requests[ORDER]
        assert seen == [["other"]]
        result = delayed.app.AsyncResult
        wait_until(lambda: result(ORDER).state == "PENDING", description="the state to be cleared")

    def test_runs_on_workers_started_before_and_after(self, fleet: Fleet, delayed: DurableTasks) -> None:
        with fleet.worker(name="one", mingle=True) as one:
            one.wait_for_output("ready.")
            fleet.wait_for_control()
            # Without a delay the message is in the broker, so a revoke must be broadcast to the workers.
            delayed.app.control.revoke(ORDER)
            one.wait_for_output(f"Tasks flagged as revoked: {ORDER}")
            with fleet.worker(name="two", mingle=True) as two:
                two.wait_for_output("sync complete")
                two.wait_for_output("ready.")
                assert one.finish() == 0
                send(delayed, 0.1)
                assert fleet.wait_for(1)[0]["id"] == ORDER


class TestWaitingCall:
    """A task that waits in the broker, revoked before a worker takes it."""

    def test_is_discarded_by_workers_that_start_later(self, fleet: Fleet, delayed: DurableTasks) -> None:
        delayed.app.send_task(NOTE, task_id=ORDER)
        delayed.app.control.revoke(ORDER)
        delayed.app.send_task(NOTE, task_id="next")
        with fleet.worker() as worker:
            worker.wait_for_output(f"Discarding revoked task: {NOTE}[{ORDER}]")
            assert [task["id"] for task in fleet.wait_for(1)] == ["next"]

    def test_is_discarded_if_a_process_without_redis_queue_revokes_it(
        self, fleet: Fleet, delayed: DurableTasks
    ) -> None:
        with fleet.worker() as one:
            one.wait_for_output("ready.")
            fleet.wait_for_control()
            delayed.app.control.cancel_consumer(fleet.queue, reply=True)
            fleet.app().control.revoke(ORDER)
            one.wait_for_output(f"Tasks flagged as revoked: {ORDER}")
            wait_until(lambda: ORDER in delayed.queue.revokes.revoked_ids(), description="the revoke in the store")
        delayed.app.send_task(NOTE, task_id=ORDER)
        with fleet.worker(name="two") as two:
            two.wait_for_output(f"Discarding revoked task: {NOTE}[{ORDER}]")

    def test_is_discarded_if_the_ids_of_the_worker_are_pushed_out(self, delayed: DurableTasks) -> None:
        later = time.monotonic() + 1e6
        state.revoked.update({f"id-{number}": later for number in range(state.revoked.maxlen)})
        command = control._COMMANDS["revoke"](lambda _, task_id, **__: state.revoked.update(task_id))
        command(SimpleNamespace(app=delayed.app), task_id=[ORDER], stored_cancelled="redis_queue:scheduled")
        assert ORDER in state.revoked
        handled(delayed, SimpleNamespace(headers={"id": ORDER}, properties={}))
        assert ORDER in state.revoked

    def test_is_known_to_a_worker_without_redis_queue_that_reads_the_state(self) -> None:
        discard_tasks([ORDER])
        assert state.revoked.__reduce__()[0] is LimitedSet

    def test_is_remembered_for_a_day_and_the_oldest_make_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(revokes, "MAX_REVOKED", 3)
        discard_tasks(f"id-{number}" for number in range(5))
        assert [f"id-{number}" in state.revoked for number in range(5)] == [False, False, True, True, True]
        now = time.monotonic()
        monkeypatch.setattr(revokes, "monotonic", lambda: now + 86_401)
        discard_tasks(["later"])
        assert "id-4" not in state.revoked
        assert "later" in state.revoked

    def test_is_discarded_once_a_store_that_was_away_answers(self, fleet: Fleet, delayed: DurableTasks) -> None:
        calls: list[Any] = []
        timer = SimpleNamespace(call_after=lambda *call: calls.append(call))
        consumer = SimpleNamespace(app=delayed.app, timer=timer, pool=None)
        step = RevokeStep(consumer)
        fleet.store.kill()
        step.start(consumer)
        assert ORDER not in state.revoked
        fleet.store.restart()
        delayed.queue.revokes.note_sent([ORDER])
        ((_, again, arguments),) = calls
        again(*arguments)
        assert ORDER in state.revoked


def test_records_of_revoked_ids_expire_after_a_day(delayed: DurableTasks, fleet: Fleet) -> None:
    queue = delayed.queue
    queue.revokes.note_revoked(f"id-{number}" for number in range(600))
    key = queue._shards[0].keys.revoked
    fleet.client.zadd(key, {f"id-{number}": 1 for number in range(300)}, xx=True)
    queue.revokes.note_revoked(["new"])
    queue.revokes.note_revoked(["newer"])
    assert fleet.client.zcard(key) == 302


@pytest.mark.parametrize("backend", ["disabled://", "rpc://"])
def test_result_backend_without_forget_is_ignored(fleet: Fleet, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    delayed = fleet.delayed(result_backend=backend)
    send(delayed)
    assert delayed.cancel(ORDER)
    caplog.clear()
    send(delayed)
    assert caplog.records == []
    assert Dispatcher(delayed.app, delayed.queue).run().sent == 0
