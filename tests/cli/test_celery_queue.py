"""Celery's queues on the command line: the list, and the messages of one queue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue.celery import DurableTasks
from redis_queue.cli import celery as celery_cli
from redis_queue.operate.access import AppAccess
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import FlowKeys
from tests.support.celery.flows import QUEUE, flow_app
from tests.support.cli.commands import Run, answer, runner
from tests.support.servers import RedisServer
from tests.support.wait import must


@pytest.fixture
def mail(app: Celery, client: redis.Redis) -> redis.Redis:
    """The queues "mail" with five messages, and "slow"."""
    app.conf.task_queues = [Queue("mail"), Queue("slow")]
    DurableTasks(app, leases=False)
    for number in range(5):
        task = "shop.remind" if number % 2 else "shop.mail"
        app.send_task(task, [number, "secret"], queue="mail", task_id=f"task-{number}", priority=3 * (number == 4))
    return client


@pytest.fixture
def limited(app: Celery) -> None:
    app.conf.redis_queue_flow = {"queue:slow": {"limit": 1}}


def ids(client: redis.Redis, key: str) -> list[str]:
    return [json.loads(element)["headers"]["id"] for element in reversed(client.lrange(key, 0, -1))]


class TestQueues:
    def test_the_list_begins_with_those_of_celery(self, run_in_app: Run, mail: redis.Redis) -> None:
        rows = answer(run_in_app("queues", "--json"))["queues"]
        assert [(row["kind"], row["name"]) for row in rows] == [("celery", name) for name in ("celery", "mail", "slow")]
        row = {name: value for name, value in rows[1].items() if name != "oldest_age"}
        assert row == {
            "kind": "celery",
            "name": "mail",
            "ready": 5,
            "in_flight": 0,
            "consumers": 0,
            "executed_per_minute": None,
            "put_per_minute": None,
            "growth_per_minute": None,
            "error": "",
            "waiting_for_place": 0,
        }
        assert isinstance(rows[1]["oldest_age"], float)
        table = run_in_app("queues").stdout.splitlines()
        assert " ".join(table[0].split()) == "Celery queue ready in flight workers per min, 5 min oldest"
        assert table[2].split()[:4] == ["mail", "5", "0", "0"]
        assert table[2].endswith("no worker")
        assert max(map(len, table[:4])) <= 80

    def test_without_a_broker_the_other_queues_are_listed(
        self, run_in_app: Run, mail: redis.Redis, app: Celery, redis_url: str
    ) -> None:
        app.conf.update(broker_url="redis://user:secret@127.0.0.1:1/0", redis_queue_url=redis_url)
        done = run_in_app("queues")
        assert done.exit_code == 0
        assert "error: mail: the broker cannot be read" in done.stderr
        assert "secret" not in done.output

    def test_without_an_app_they_are_unknown(self, run: Run, mail: redis.Redis) -> None:
        assert answer(run("queues", "--json"))["queues"] == []
        done = run("celery-queue", "mail", "peek")
        assert (done.exit_code, "need an app" in done.stderr) == (2, True)


class TestPeek:
    def test_next_messages_first_arguments_on_request(self, run_in_app: Run, mail: redis.Redis) -> None:
        found = answer(run_in_app("celery-queue", "mail", "peek", "--limit", "2", "--json"))
        assert [row["id"] for row in found["messages"]] == ["task-0", "task-1"]
        assert found["more"]
        assert set(found["messages"][0]) == {"id", "task", "since", "bytes", "priority", "retries", "waits_for"}
        shown = answer(run_in_app("celery-queue", "mail", "peek", "--body", "--task", "remind", "--json"))
        assert [(row["id"], row["args"]) for row in shown["messages"]] == [
            ("task-1", "[1, 'secret']"),
            ("task-3", "[3, 'secret']"),
        ]
        table = run_in_app("celery-queue", "mail", "peek").stdout
        assert "task-4" in table
        assert "secret" not in table

    def test_no_match_has_a_suggestion(self, run_in_app: Run, mail: redis.Redis) -> None:
        text = run_in_app("celery-queue", "mail", "peek", "--task", "shop.remin_").stdout
        assert text.startswith("no match among 5 messages")
        assert "did you mean 'shop.remind'" in text

    def test_an_unknown_queue_is_an_error(self, run_in_app: Run, mail: redis.Redis) -> None:
        done = run_in_app("celery-queue", "mial", "peek")
        assert (done.exit_code, "did you mean 'mail'?" in done.stderr) == (2, True)


class TestAct:
    def test_move_by_task(self, run_in_app: Run, mail: redis.Redis) -> None:
        line = ("celery-queue", "mail", "move", "--task", "shop.remind", "--to", "slow")
        dry = answer(run_in_app(*line, "--dry-run", "--json"))
        assert (dry["to_be_moved"], [row["id"] for row in dry["first"]]) == (2, ["task-1", "task-3"])
        assert mail.llen("slow") == 0
        assert run_in_app(*line).exit_code == 2
        assert run_in_app(*line, "--yes").stdout.splitlines()[-1] == "2 moved"
        assert (ids(mail, "slow"), ids(mail, "mail")) == (["task-1", "task-3"], ["task-0", "task-2"])

    def test_delete_by_id(self, run_in_app: Run, mail: redis.Redis) -> None:
        done = run_in_app("celery-queue", "mail", "delete", "task-0", "task-4", "nobody", "--yes", "--json")
        assert answer(done) == {"deleted": 2}
        assert ids(mail, "mail") == ["task-1", "task-2", "task-3"]
        [action] = Audit(mail, "redis_queue").last()
        assert (action.verb, [found.id for found in action.subjects]) == ("delete", ["task-0", "task-4"])
        gone = run_in_app("celery-queue", "mail", "delete", "task-0", "--yes")
        assert (gone.exit_code, "no message: 'task-0'" in gone.stderr) == (1, True)

    def test_move_all_and_purge(self, run_in_app: Run, mail: redis.Redis) -> None:
        assert answer(run_in_app("celery-queue", "mail", "move", "--all", "--to", "slow", "--yes", "--json")) == {
            "moved": 5
        }
        assert answer(run_in_app("celery-queue", "slow", "purge", "--dry-run", "--json")) == {"to_be_deleted": 5}
        assert mail.llen("slow") == 4
        assert answer(run_in_app("celery-queue", "slow", "purge", "--yes", "--json")) == {"deleted": 5}
        assert (mail.exists("slow"), mail.exists("slow\x06\x163")) == (0, 0)
        actions = [(found.verb, found.queue, found.count, found.detail) for found in Audit(mail, "redis_queue").last()]
        assert actions == [("purge", "slow", 5, ""), ("move", "mail", 5, "slow")]

    def test_a_purge_deletes_what_waits_for_a_place(
        self, run_in_app: Run, limited: None, mail: redis.Redis, app: Celery
    ) -> None:
        for _ in range(3):
            app.send_task("shop.mail", queue="slow")
        mail.lpush("slow", *["of a stock producer"] * 2)
        table = run_in_app("queues").stdout
        assert [line.split()[:2] for line in table.splitlines() if line.startswith("slow")] == [["slow", "5"]]
        assert re.search(r"for a place: +3\n", table)
        dry = run_in_app("celery-queue", "slow", "purge", "--dry-run")
        assert (dry.stdout, dry.stderr) == ("5 to be deleted\n", "")
        assert mail.hget(FlowKeys("redis_queue").backlog.decode(), "queue:slow") == b"3"
        assert "Delete 5 messages of slow?" in run_in_app("celery-queue", "slow", "purge", input="n\n").output
        done = run_in_app("celery-queue", "slow", "purge", "--yes")
        assert (done.exit_code, done.stdout, done.stderr) == (0, "5 deleted\n", "")
        assert not mail.exists("slow", FlowKeys("redis_queue").backlog, FlowKeys("redis_queue").oldest)
        [action] = Audit(mail, "redis_queue").last()
        assert (action.verb, action.queue, action.count) == ("purge", "slow", 5)
        assert answer(run_in_app("celery-queue", "slow", "purge", "--yes", "--json")) == {"deleted": 0}

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("delete",), "give ids, or conditions like --task"),
            (("delete", "task-1", "--task", "x"), "give ids, or conditions like --task"),
            (("move", "--all"), "--to"),
            (("move", "--all", "--to", "slwo"), "did you mean 'slow'?"),
            (("move", "--all", "--to", "mail"), "must be another queue"),
            (("delete", "a\nb"), "id"),
        ],
    )
    def test_invalid_arguments(self, run_in_app: Run, mail: redis.Redis, arguments: tuple[str, ...], text: str) -> None:
        done = run_in_app("celery-queue", "mail", *arguments)
        assert (done.exit_code, text in done.stderr) == (2, True), done.output

    def test_without_a_broker(self, run_in_app: Run, mail: redis.Redis, app: Celery, redis_url: str) -> None:
        app.conf.update(broker_url="redis://user:secret@127.0.0.1:1/0", redis_queue_url=redis_url)
        for command in ("peek", "purge"):
            done = run_in_app("celery-queue", "mail", command)
            assert (done.exit_code, "the broker cannot be read" in done.stderr) == (1, True)
            assert "secret" not in done.output


def test_the_access_of_an_app_knows_its_queues(app: Celery) -> None:
    assert must(AppAccess(app).celery_queues).row("mail").name == "mail"


class TestCounts:
    """`stats` and `top` of an app count Celery's queues, also what waits for a place in a flow."""

    @pytest.fixture
    def flowing(self, redis_server: RedisServer, client: redis.Redis) -> Iterator[Celery]:
        with flow_app(redis_server, {f"queue:{QUEUE}": {"limit": 1}}) as app:
            for number in range(3):
                app.tasks["work"].delay("a", number)
            app.send_task("plain", queue="plain")
            yield app

    def test_stats(self, flowing: Celery) -> None:
        done = runner().invoke(celery_cli.group, ["stats", "--json"], obj=SimpleNamespace(app=flowing))
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["ready"] == 4

    def test_top(self, flowing: Celery) -> None:
        done = runner().invoke(celery_cli.group, ["top", "--json"], obj=SimpleNamespace(app=flowing))
        assert done.exit_code == 0, done.output
        rows = {(row["kind"], row["name"]): row["ready"] for row in json.loads(done.stdout)["queues"]}
        assert rows["celery", QUEUE] == 3
        assert rows["celery", "plain"] == 1
        shown = runner().invoke(celery_cli.group, ["top"], obj=SimpleNamespace(app=flowing))
        assert re.search(rf"{QUEUE} +celery +3", shown.stdout)

    def test_without_an_app_it_says_what_is_missing(self, run: Run) -> None:
        assert "not counted: Celery's queues, which need -A APP" in run("stats").stdout


class TestText:
    """Delayed tasks are chosen by a part of their arguments, or by stamps."""

    def test_by_arguments_and_stamps(self, app: Celery, mail: redis.Redis) -> None:
        for number in range(3):
            stamps: dict[str, Any] = {"stamped_headers": ["tenant"], "tenant": f"t{number}"}
            app.send_task("shop.remind", (f"order-{number}",), countdown=600, task_id=f"id{number}", **stamps)

        def run(*arguments: str) -> Any:
            done = runner().invoke(celery_cli.group, [*arguments, "--json"], obj=SimpleNamespace(app=app))
            assert done.exit_code == 0, done.output
            return json.loads(done.stdout)

        def ids(*arguments: str) -> list[str]:
            return [entry["id"] for entry in run("scheduled", "list", *arguments)["entries"]]

        assert ids("--text", "order-1") == ["id1"]
        assert ids("--stamp", "tenant=t0", "--stamp", "tenant=t2") == ["id0", "id2"]
        assert ids("--stamp", "tenant=t0", "--text", "order-2") == []
        assert run("scheduled", "cancel", "--text", "order-2", "--yes")["cancelled"] == 1
        assert ids() == ["id0", "id1"]
        done = runner().invoke(celery_cli.group, ["scheduled", "list", "--stamp", "t0"], obj=SimpleNamespace(app=app))
        assert done.exit_code == 2
        assert "'t0': must be NAME=VALUE" in done.output


def test_the_messages_of_a_key(run: Run, redis_server: RedisServer, client: redis.Redis) -> None:
    with flow_app(redis_server, {f"queue:{QUEUE}": {"fair": "{key}"}}) as app:
        app.conf.task_queues = [Queue(QUEUE), Queue("slow")]
        sent = [app.tasks["work"].delay(key, number).id for number, key in enumerate("abaab")]

        def flow(*line: str) -> Any:
            command = ["flow", line[0], f"queue:{QUEUE}", *line[1:], "--json"]
            return answer(runner().invoke(celery_cli.group, command, obj=SimpleNamespace(app=app)))

        rows = flow("peek", "a", "--body")["messages"]
        assert [(row["id"], row["queue"], row["args"]) for row in rows] == [
            (sent[number], QUEUE, f"('a', {number})") for number in (0, 2, 3)
        ]
        assert flow("peek", "a", "--text", "2")["messages"][0]["id"] == sent[2]
        assert flow("delete", "a", "--all", "--dry-run")["to_be_deleted"] == 3
        assert flow("move", "a", sent[0], "--to", "slow")["moved"] == 1
        assert flow("delete", "a", "--all", "--yes")["deleted"] == 2
        left = [(row["key"], row["waiting"]) for row in flow("keys")["keys"]]
        assert left == [("b", 2)]
        written = [(line.verb, line.queue, line.count, line.detail) for line in Audit(client, "redis_queue").last()[:2]]
        assert written == [("delete", f"queue:{QUEUE}", 2, "key a"), ("move", f"queue:{QUEUE}", 1, "key a, slow")]
        # Without an app, what waits in the store can be read and deleted as well.
        assert answer(run("flow", "delete", f"queue:{QUEUE}", "b", "--all", "--yes", "--json"))["deleted"] == 2
