"""Revoke and inspect stored tasks, without a running worker and after a restart of all workers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chord
from celery.exceptions import ChordError
from celery.result import GroupResult

from redis_queue import InvalidDelayError, InvalidValueError
from redis_queue.celery import DurableTasks
from redis_queue.celery.control import panel as control
from redis_queue.celery.dispatch.loop import lists_stored_tasks
from tests.support.celery.delaying_names import NOTE
from tests.support.celery.fleet import Fleet, send
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until


def stamped(delayed: DurableTasks, **stamps: Any) -> Any:
    signature = delayed.app.signature(NOTE)
    signature.stamp(**stamps)
    return signature.apply_async(countdown=60)


class TestRevokeWithNoWorkerAlive:
    @pytest.mark.parametrize(
        "revoke",
        [
            lambda _, result: result.revoke(),
            lambda delayed, result: delayed.app.control.revoke(result.id),
            lambda delayed, result: delayed.app.control.revoke([result.id, "unknown"], terminate=True),
            lambda delayed, result: delayed.app.control.terminate(result.id),
            lambda delayed, result: GroupResult("g", [result], app=delayed.app).revoke(),
            lambda delayed, result: delayed.cancel(result.id),
        ],
        ids=["result", "control", "several", "terminate", "group", "cancel"],
    )
    def test_cancels_and_sets_the_state(
        self, delayed: DurableTasks, revoke: Callable[[DurableTasks, Any], Any]
    ) -> None:
        kept, result = send(delayed, 60), send(delayed, 60)
        assert result.state == "PENDING"
        revoke(delayed, result)
        assert result.state == "REVOKED"
        assert [entry.id for entry in delayed.list()] == [kept.id]
        assert kept.state == "PENDING"

    def test_by_stamped_headers(self, delayed: DurableTasks) -> None:
        gone = [stamped(delayed, tenant="acme"), stamped(delayed, tenant=["acme", "other"])]
        kept = [stamped(delayed, tenant="else"), send(delayed, 60)]
        delayed.app.control.revoke_by_stamped_headers({"tenant": ["acme", "nobody"]})
        assert {entry.id for entry in delayed.list()} == {result.id for result in kept}
        assert [result.state for result in gone] == ["REVOKED", "REVOKED"]

    def test_a_task_revoked_before_it_starts_never_runs_after_a_restart(
        self, fleet: Fleet, delayed: DurableTasks
    ) -> None:
        gone, kept = send(delayed, 0.3), send(delayed, 0.3)
        gone.revoke()
        with fleet.worker() as worker:
            worker.wait_for_output("ready.")
            assert kept.get(timeout=60) == kept.id
            assert [row["id"] for row in fleet.ran] == [kept.id]
        assert gone.state == "REVOKED"

    def test_unavailable_store_is_an_error_of_revoke(self) -> None:
        with RedisServer(tcp=True) as store, store.client() as client, RedisServer() as broker:
            fleet = Fleet(store, client, f"redis+socket://{broker.socket}", "delaying")
            delayed = fleet.delayed()
            result = send(delayed, 60)
            store.kill()
            with broker.client() as listener, listener.pubsub() as heard:
                heard.psubscribe("*pidbox*")
                assert heard.get_message(timeout=5)
                with pytest.raises(ConnectionError, match="Redis"):
                    result.revoke(terminate=True)
                wait_until(lambda: heard.get_message(timeout=0.1), description="the broadcast")
            fleet.close()


class TestUnusualRequests:
    @pytest.mark.parametrize("odd", ["a\nb", "x" * 300, "\x00", "", 5, None])
    def test_id_that_cannot_be_stored_is_broadcast_to_workers(
        self, fleet: Fleet, delayed: DurableTasks, odd: Any
    ) -> None:
        result = send(delayed, 60)
        with fleet.client.pubsub() as heard:
            heard.psubscribe("*pidbox*")
            assert heard.get_message(timeout=5)
            delayed.app.control.revoke([odd, result.id])
            wait_until(lambda: heard.get_message(timeout=0.1), description="the broadcast")
        assert delayed.count() == 0
        assert result.state == "REVOKED"

    @pytest.mark.parametrize(
        ("command", "arguments"),
        [
            ("revoke", {"task_id": ["a\nb", 5, None]}),
            ("revoke", {"task_id": {"a": 1}}),
            ("terminate", {"task_id": "a\nb", "signal": "TERM"}),
            ("revoke_by_stamped_headers", {"headers": ["no equals sign"]}),
            ("revoke_by_stamped_headers", {"headers": "text"}),
            ("revoke_by_stamped_headers", {"headers": {"a": {"b": 1}}}),
            ("scheduled", {"limit": "many"}),
            ("scheduled", {"limit": -5}),
            ("scheduled", {"limit": math.inf}),
            ("scheduled", {"after": "garbage"}),
            ("scheduled", {"after": 5}),
            ("query_task", {"ids": ["a\nb", 5, None]}),
            ("query_task", {"ids": 5}),
        ],
        ids=str,
    )
    def test_of_a_foreign_client_keep_the_own_answer_of_the_worker(
        self, delayed: DurableTasks, monkeypatch: pytest.MonkeyPatch, command: str, arguments: dict[str, Any]
    ) -> None:
        own: Any = {"query_task": {}, "scheduled": []}.get(command, "own")
        wrapped = control._COMMANDS[command](lambda *_, **__: own)
        kept = send(delayed, 60)

        answer = wrapped(SimpleNamespace(app=delayed.app), **arguments)

        assert type(answer) is type(own)
        assert delayed.get(kept.id)

    def test_do_not_block_a_worker_on_its_store(self, delayed: DurableTasks, monkeypatch: pytest.MonkeyPatch) -> None:
        answered, asked = Event(), list[list[str]]()

        def revoke_many(ids: list[str]) -> None:
            assert answered.wait(30)
            asked.append(ids)

        monkeypatch.setattr(delayed, "revoke_many", revoke_many)
        wrapped = control._COMMANDS["revoke"](lambda *_, **__: "own")
        for id_ in ("a", "b"):
            assert wrapped(SimpleNamespace(app=delayed.app), task_id=id_) == "own"
        assert asked == []
        answered.set()
        wait_until(lambda: asked == [["a"], ["b"]], description="both tasks to be cancelled")

    @pytest.mark.parametrize(("store", "kept"), [("redis_queue:scheduled", 1), ("redis_queue:other", 0)])
    def test_of_a_client_that_has_cancelled_are_not_executed_twice(
        self, delayed: DurableTasks, store: str, kept: int
    ) -> None:
        state = SimpleNamespace(app=delayed.app)
        stamped(delayed, tenant="acme")
        wrapped = control._COMMANDS["revoke_by_stamped_headers"](lambda *_, **__: "own")
        wrapped(state, headers={"tenant": "acme"}, stored_cancelled=store)
        # Calls run in order.
        gone = send(delayed, 60)
        control._COMMANDS["revoke"](lambda *_, **__: "own")(state, task_id=gone.id)
        wait_until(lambda: delayed.get(gone.id) is None, description="the last call")
        assert delayed.count() == kept


class TestInspectReplyForTheStore:
    @pytest.mark.parametrize(("leader", "each"), [(None, True), ("host:1:abc", True), ("worker@host:1:abc", False)])
    def test_comes_from_the_leader_or_from_each_worker_without_a_leader(
        self, delayed: DurableTasks, leader: str | None, *, each: bool
    ) -> None:
        if leader:
            delayed.queue.moves.lead(leader, 60)
        assert lists_stored_tasks(delayed.app, delayed.queue) is each

    def test_is_asked_without_another_look_at_the_registry(self, delayed: DurableTasks) -> None:
        wrapped = control._COMMANDS["scheduled"](lambda *_, **__: [])
        state = SimpleNamespace(app=delayed.app)
        send(delayed, 60)
        with delayed.store.client.monitor() as monitor:
            assert len(wrapped(state)) == 1
            delayed.store.client.echo("end")
            commands = []
            while not commands or "ECHO" not in commands[-1]:
                commands.append(monitor.next_command()["command"])
        assert not [command for command in commands if "registry" in command]


class TestWithAWorker:
    def test_foreign_clients_revoke_stored_tasks(self, fleet: Fleet, delayed: DurableTasks) -> None:
        with fleet.worker() as worker:
            worker.wait_for_output("ready.")
            fleet.wait_for_control()
            # Like Flower, which is started with the URL of the broker only.
            result = send(delayed, 60)
            fleet.app().control.revoke(result.id)
            wait_until(lambda: result.state == "REVOKED", description="the state REVOKED")
            wait_until(lambda: delayed.count() == 0, description="the store to be empty")
            # The command line.
            result = stamped(delayed, tenant="acme")
            app = ("-A", "tests.support.celery.delaying_app")
            command = (sys.executable, "-m", "celery", *app, "control", "revoke", result.id)
            done = subprocess.run(command, cwd=ROOT, env={**os.environ, **fleet.environment()}, timeout=60)
            assert done.returncode == 0
            assert delayed.count() == 0

    def test_inspect_shows_stored_tasks_in_pages(self, fleet: Fleet, delayed: DurableTasks) -> None:
        results = [send(delayed, 60 + number) for number in range(5)]
        with fleet.worker(name="one") as one, fleet.worker(name="two") as two:
            one.wait_for_output("ready.")
            two.wait_for_output("ready.")
            fleet.wait_for_control(2)
            inspect = fleet.app().control.inspect(timeout=30, limit=2)

            def listed(**arguments: Any) -> list[str]:
                replies = inspect._request("scheduled", **arguments) or {}
                return [row["request"]["id"] for rows in replies.values() for row in rows]

            assert (delayed.queue.moves.leader() or "worker@").startswith("worker@")
            # The leader of the two workers answers for the store.
            wait_until(lambda: len(listed()) == 5, description="each entry once")
            assert listed(limit=2) == [result.id for result in results[:2]]
            after = delayed.queue.cursor(delayed.queue.list(limit=2)[-1])
            assert listed(limit=2, after=after) == [result.id for result in results[2:4]]
            found = inspect.query_task(results[0].id, "unknown")
            assert all(set(reply) == {results[0].id} for reply in found.values())
            state, info = next(iter(found.values()))[results[0].id]
            assert (state, info["name"], info["stored"]) == ("scheduled", NOTE, True)


class TestReading:
    def test_get_returns_all_fields(self, delayed: DurableTasks) -> None:
        result = delayed.app.send_task(NOTE, (1,), {"due": 2.0}, countdown=60, priority=3, queue="mail", expires=120)
        entry = must(delayed.get(result.id))
        assert (entry.id, entry.task, entry.queue, entry.priority) == (result.id, NOTE, "mail", 3)
        assert (entry.args, entry.kwargs, entry.retries) == ("(1,)", "{'due': 2.0}", 0)
        now = datetime.now(timezone.utc)
        assert abs(entry.due_at - now - timedelta(seconds=60)) < timedelta(seconds=5)
        assert entry.expires_at is not None
        assert delayed.get("unknown") is None

    def test_scan_takes_conditions_and_reads_page_after_page(
        self, delayed: DurableTasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redis_queue.celery.stored_tasks.CHUNK", 2)
        names = [f"order-{number}" for number in range(5)]
        for number, name in enumerate(names):
            delayed.app.send_task(f"shop.t{number % 2}", countdown=60 + number, task_id=name, queue=f"q{number % 3}")
        assert [entry.id for entry in delayed.scan()] == names
        assert [entry.id for entry in delayed.scan(task="shop.t1")] == ["order-1", "order-3"]
        assert [entry.id for entry in delayed.scan(queue="q0", id_prefix="order-")] == ["order-0", "order-3"]
        middle = datetime.now(timezone.utc) + timedelta(seconds=61.5)
        assert [entry.id for entry in delayed.scan(due_before=middle)] == names[:2]
        assert delayed.count() == 5
        assert delayed.count(due_before=middle) == 2
        assert sum(count for _, count in delayed.forecast(hours=1, buckets=6)) == 5

    def test_list_is_a_page_for_tasks_and_for_entries(self, delayed: DurableTasks) -> None:
        names = [f"order-{number}" for number in range(5)]
        for number, name in enumerate(names):
            delayed.app.send_task(f"shop.t{number % 2}", countdown=60 + number, task_id=name)
        for place in (delayed, delayed.queue):
            page = place.list(limit=2)
            assert isinstance(page, list)
            assert [entry.id for entry in page] == names[:2]
            after = place.cursor(page[-1])
            assert [entry.id for entry in place.list(after=after)] == names[2:]
            assert [entry.id for entry in place.scan(after=after)] == names[2:]
            for limit in (0, 501):
                with pytest.raises(InvalidValueError, match=f"limit={limit}"):
                    place.list(limit=limit)
        (first,) = delayed.list(task="shop.t1", limit=1)
        (second,) = delayed.list(task="shop.t1", limit=1, after=delayed.cursor(first))
        assert (first.id, second.id) == ("order-1", "order-3")
        with pytest.raises(TypeError, match="tsk"):
            delayed.list(tsk="shop.t1")

    def test_reschedule_and_run_now(self, delayed: DurableTasks) -> None:
        result = send(delayed, 60)
        assert delayed.reschedule(result.id, countdown=600)
        assert delayed.count(due_before=datetime.now(timezone.utc) + timedelta(seconds=100)) == 0
        assert delayed.reschedule(result.id, eta=datetime.now(timezone.utc) + timedelta(seconds=5))
        assert delayed.run_now(result.id)
        assert delayed.queue.stats().due == 1
        assert not delayed.run_now("unknown")
        with pytest.raises(InvalidDelayError, match="countdown= or eta="):
            delayed.reschedule(result.id)

    def test_cancel_matching_counts_first_and_refuses_to_cancel_everything(self, delayed: DurableTasks) -> None:
        results = [send(delayed, 60, queue=f"q{number % 2}") for number in range(6)]
        assert delayed.cancel_matching(queue="q1", dry_run=True) == 3
        assert delayed.count() == 6
        assert delayed.cancel_matching(queue="q1") == 3
        assert [result.state for result in results] == ["PENDING", "REVOKED"] * 3
        with pytest.raises(InvalidValueError, match="condition"):
            delayed.cancel_matching()


def test_an_app_without_the_extension_is_untouched(fleet: Fleet) -> None:
    app: Celery = fleet.app()
    assert "durable_tasks" not in vars(app)
    assert "send_task_message" not in vars(app.amqp)


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # from Celery itself
def test_chord_fails_after_its_parts_were_cancelled(fleet: Fleet, redis_server: RedisServer) -> None:
    # On the shared server: Celery's results unsubscribe long after this test has ended.
    app = fleet.app(result_backend=f"redis+socket://{redis_server.socket}")
    delayed = DurableTasks(app, leases=False)
    parts = [app.signature(NOTE, options={"countdown": 60}) for _ in range(2)]
    result = chord(parts, app=app)(app.signature(NOTE))
    assert delayed.cancel_matching(task=NOTE) == 2
    assert [part.state for part in result.parent.results] == ["REVOKED", "REVOKED"]
    assert result.state == "FAILURE"
    assert isinstance(result.result, ChordError)


def test_task_is_cancelled_without_a_result_backend(
    delayed: DurableTasks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = send(delayed, 60)

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(delayed.app.backend, "mark_as_revoked", away)
    assert delayed.cancel(result.id)
    assert delayed.count() == 0
    assert "cannot mark" in caplog.text
