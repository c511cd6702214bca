"""Commands that change data: their effects, confirmations and interruptions."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redis_queue import DelayQueue, RedisQueue
from redis_queue.celery.entries import EntryRemoval, Removal
from redis_queue.cli import transfer
from redis_queue.delay.model import Push
from redis_queue.model import PutBack
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import Keys
from tests.support.celery.commands import run_command
from tests.support.cli.commands import DUE, NOW, Run, answer
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.store.stage import differences, snapshot
from tests.support.wait import must

TASK = "00000000-0000-4000-8000-000000000001"


def ids(queue: DelayQueue) -> list[str]:
    return [entry.id for entry in queue]


def last_line(done: Result) -> str:
    return done.stdout.splitlines()[-1]


class TestQueue:
    def test_pause_and_resume(self, run: Run, orders: RedisQueue) -> None:
        assert run("queue", "orders", "pause").stdout == "orders paused\n"
        assert orders.stats().paused

        assert answer(run("queue", "orders", "resume", "--json")) == {"resumed": "orders"}
        assert not orders.stats().paused

    @pytest.mark.parametrize(
        ("places", "gone"), [((), 3), (("ready",), 2), (("delayed",), 1), (("dead", "quarantine"), 2)]
    )
    def test_purge_deletes_as_many_as_the_dry_run_says(
        self, places: Sequence[str], gone: int, run: Run, orders: RedisQueue
    ) -> None:
        said = answer(run("queue", "orders", "purge", *places, "--dry-run", "--json"))
        done = answer(run("queue", "orders", "purge", *places, "--yes", "--json"))

        assert (said, done) == ({"to_be_deleted": gone}, {"deleted": gone})
        assert orders.stats().in_flight == 1

    @pytest.mark.parametrize("line", ["queue orders putback", "putback", "putback --name orders"])
    def test_put_back_returns_messages_with_expired_leases(
        self, line: str, run: Run, orders: RedisQueue, clock: Clock
    ) -> None:
        clock.now += 61_000

        assert run(*line.split(), "--dry-run").stdout == "1 expired\n"
        assert answer(run(*line.split(), "--json")) == {"returned": 1, "dead": 0}
        assert run(*line.split()).stdout == "0 returned, 0 dead\n"
        assert orders.stats().ready == 3


class TestPutback:
    def test_continues_after_a_broken_queue(
        self, run: Run, orders: RedisQueue, client: redis.Redis, clock: Clock
    ) -> None:
        DelayQueue("broken", client).push("x")
        client.delete("{redis_queue:delay:broken:0}:waiting")
        client.set("{redis_queue:delay:broken:0}:in_flight", "x")
        clock.now += 61_000

        done = run("putback", "--json")

        assert done.exit_code == 1
        assert json.loads(done.stdout)["returned"] == 1
        assert "broken: " in json.loads(done.stdout)["error"]

    def test_shows_some_of_many_errors(self, run: Run, orders: RedisQueue, client: redis.Redis, clock: Clock) -> None:
        for number in range(9):
            client.hset("redis_queue:registry", f"delay:broken-{number}", b'{"max_deliveries": 1, "shards": 0}')
        clock.now += 61_000

        done = run("putback", "--json")

        told = json.loads(done.stdout)
        assert (done.exit_code, told["returned"]) == (1, 1)
        assert (told["error"].count("shards=0"), told["error"].endswith("; 4 more errors")) == (5, True)

    def test_an_interruption_shows_the_count(
        self, run: Run, orders: RedisQueue, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock.now += 61_000
        put_back: Callable[..., PutBack] = RedisQueue.put_back
        calls: list[int] = []

        def interrupted(self: RedisQueue, limit: int) -> PutBack:
            calls.append(limit)
            if len(calls) > 1:
                raise KeyboardInterrupt
            return put_back(self, limit)

        monkeypatch.setattr(RedisQueue, "put_back", interrupted)

        done = run("putback", "--json")

        assert done.exit_code == 1
        assert json.loads(done.stdout) == {"returned": 1, "dead": 0, "error": "interrupted: run it again to go on"}


FILTERS: list[tuple[str, list[str]]] = [
    ("--task shop.remind", [TASK]),
    ("--queue slow", ["task-2"]),
    ("--queue celery", [TASK]),
    ("--id-prefix 0000", [TASK]),
    ("--id-prefix task", ["task-2"]),
    ("--due-before 1m", ["data"]),
    ("--due-before 2h", ["data"]),
    ("--due-before 2h1s", ["data", TASK]),
    ("--due-before -1s", []),
    ("--due-after 2h", [TASK, "task-2"]),
    ("--due-after 2030-01-01T03:00Z", ["task-2"]),
    ("--due-after 2030-01-01T03:30+00:30", ["task-2"]),
    ("--due-after 31s --due-before 1d --task shop.cancel --queue slow --id-prefix t", ["task-2"]),
]


@pytest.mark.parametrize(("options", "expected"), FILTERS)
def test_filters_select_the_listed_and_the_cancelled_entries(
    options: str, expected: list[str], run: Run, run_in_app: Run, tasks: DelayQueue
) -> None:
    before = ids(tasks)

    for command in (run, run_in_app):
        found = answer(command("scheduled", "list", *options.split(), "--json"))
        assert [entry["id"] for entry in found["entries"]] == expected

    assert answer(run("scheduled", "cancel", *options.split(), "--yes", "--json")) == {"cancelled": len(expected)}
    assert ids(tasks) == [id_ for id_ in before if id_ not in expected]


class TestParts:
    """Listing accepts a part of a task's name; actions need the complete name."""

    @pytest.mark.parametrize(("part", "expected"), [("shop", [TASK, "task-2"]), ("remi", [TASK]), ("nobody", [])])
    def test_a_part_finds(self, part: str, expected: list[str], run: Run, tasks: DelayQueue) -> None:
        found = answer(run("scheduled", "list", "--task", part, "--json"))

        assert [entry["id"] for entry in found["entries"]] == expected

    def test_a_part_changes_nothing_and_the_name_is_suggested(self, run: Run, tasks: DelayQueue) -> None:
        done = run("scheduled", "cancel", "--task", "remi", "--yes")

        assert (done.exit_code, done.stdout) == (0, "0 cancelled\n")
        assert done.stderr == "no match among 3 entries; did you mean 'shop.remind'?\n"
        assert len(tasks) == 3

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("scheduled list --task remidn", "no match among 3 entries in {url}; did you mean 'shop.remind'?"),
            ("scheduled list --task xyz", "no match among 3 entries in {url}"),
            ("scheduled list --due-after 9d", "no match among 0 entries in {url}"),
            ("dead list --task remind", "no match among 1 dead letter in {url}"),
            ("dead list --name scheduled", "no dead letters in {url}"),
        ],
    )
    @pytest.mark.usefixtures("orders", "tasks")
    def test_an_empty_list_shows_the_number_of_searched_entries(
        self, line: str, words: str, run: Run, redis_url: str
    ) -> None:
        assert run(*line.split()).stdout == words.format(url=redis_url.partition("?")[0]) + "\n"


class TestScheduled:
    def test_cancel_takes_ids(self, run: Run, tasks: DelayQueue) -> None:
        assert run("scheduled", "cancel", "data", "nobody", "task-2", "--yes").stdout == "2 cancelled\n"
        assert ids(tasks) == [TASK]

    def test_cancel_shows_how_many_may_have_been_sent(self, run: Run, tasks: DelayQueue) -> None:
        assert tasks.run_now("data")
        assert tasks.nack_many(tasks.claim(), reason="refused")
        done = run("scheduled", "cancel", "data", "task-2", "--yes")
        assert done.stdout == "2 cancelled\n"
        assert done.stderr == "1 of them were claimed before and may have been sent: revoke them as well\n"

    @pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's own
    def test_cancel_in_an_app_marks_tasks_as_revoked(self, run_in_app: Run, app: Celery, tasks: DelayQueue) -> None:
        assert run_in_app("scheduled", "cancel", "task-2", "--yes").stdout == "1 cancelled\n"
        assert app.AsyncResult("task-2").state == "REVOKED"
        assert "task-2" not in ids(tasks)

    @pytest.mark.parametrize(
        ("to", "due"),
        [("4h", datetime(2030, 1, 1, 4, tzinfo=timezone.utc)), ("2031-01-01T00:00Z", DUE.replace(2031, hour=0))],
    )
    def test_reschedule_changes_when_entries_are_due(self, to: str, due: datetime, run: Run, tasks: DelayQueue) -> None:
        assert run("scheduled", "reschedule", "data", "--to", to).stdout == "1 rescheduled\n"

        assert must(tasks.get("data")).due_at == due

    def test_run_now_makes_entries_due(self, run: Run, tasks: DelayQueue) -> None:
        assert answer(run("scheduled", "run-now", "--id-prefix", "task", "--yes", "--json")) == {"made_due": 1}
        assert [entry.id for entry in tasks.claim(9)] == ["task-2"]

    def test_another_delay_queue_can_be_chosen(
        self, run: Run, run_in_app: Run, client: redis.Redis, clock: Clock
    ) -> None:
        for command in (run, run_in_app):
            DelayQueue("mails", client, clock=clock).push("x", id="mail", delay=5)
            done = command("scheduled", "cancel", "mail", "--delay-queue", "mails", "--yes")
            assert done.stdout == "1 cancelled\n"

    def test_an_app_without_delayed_tasks_has_an_empty_queue(self, run_in_app: Run, client: redis.Redis) -> None:
        assert answer(run_in_app("scheduled", "list", "--json")) == {"entries": [], "more": False}

    def test_entries_with_invalid_ids_stay(self, run: Run, tasks: DelayQueue, client: redis.Redis) -> None:
        keys = "{redis_queue:delay:scheduled:0}"
        client.hset(f"{keys}:records", "a\nb", client.hget(f"{keys}:records", "data"))
        client.zadd(f"{keys}:waiting", {"a\nb": NOW})

        assert run("scheduled", "cancel", "--all", "--yes").stdout == "3 cancelled\n"
        assert ids(tasks) == ["a\nb"]


class TestTransfer:
    def test_an_import_restores_an_export(
        self, run: Run, tasks: DelayQueue, client: redis.Redis, tmp_path: Path
    ) -> None:
        tasks.push(b"\x00\xff", id="bytes", delay=60, headers={"x": [1]}, destination="somewhere")
        before = list(tasks)
        file = str(tmp_path / "waiting.jsonl")

        exported = run("scheduled", "export", file)
        assert (exported.stdout, exported.stderr) == ("", "4 exported\n")
        assert Path(file).stat().st_mode & 0o777 == 0o600
        assert run("scheduled", "cancel", "--all", "--yes").exit_code == 0
        assert run("scheduled", "import", file, "--dry-run").stdout == "4 to be imported\n"
        assert ids(tasks) == []
        assert answer(run("scheduled", "import", file, "--json")) == {"imported": 4}
        assert list(tasks) == before
        assert run("scheduled", "import", file).stdout == "0 imported\n"

    def test_an_interrupted_export_keeps_the_existing_file(
        self, run: Run, tasks: DelayQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "waiting.jsonl"
        file.write_text("complete\n")
        file.chmod(0o600)
        whole, calls = transfer.to_json, []

        def breaks(entry: Any) -> Any:
            calls.append(entry)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return whole(entry)

        monkeypatch.setattr(transfer, "to_json", breaks)
        assert run("scheduled", "export", str(file)).exit_code == 130
        assert (file.read_text(), [path.name for path in tmp_path.iterdir()]) == ("complete\n", ["waiting.jsonl"])

        assert run("scheduled", "export", str(file)).exit_code == 0
        assert (file.read_text().count("\n"), file.stat().st_mode & 0o777) == (3, 0o600)

    def test_an_export_without_entries_is_an_empty_file(self, run: Run, tasks: DelayQueue, tmp_path: Path) -> None:
        file = tmp_path / "waiting.jsonl"
        file.write_text("of yesterday\n")
        assert run("scheduled", "export", "--task", "shop.nosuch", str(file)).stderr == "0 exported\n"
        assert file.read_text() == ""

    def test_an_export_to_an_unwritable_path_is_a_one_line_error(
        self, run: Run, tasks: DelayQueue, tmp_path: Path
    ) -> None:
        done = run("scheduled", "export", str(tmp_path / "nowhere" / "waiting.jsonl"))
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert "No such file or directory" in done.stderr

    def test_an_import_with_another_encoding_is_a_one_line_error(
        self, run: Run, tasks: DelayQueue, tmp_path: Path
    ) -> None:
        file = tmp_path / "latin-1.jsonl"
        file.write_bytes(b'\n{"id": "caf\xe9"}\n')
        done = run("scheduled", "import", str(file))
        assert (done.exit_code, done.stderr) == (2, "error: not UTF-8 at or after line 1; nothing was stored\n")

    def test_export_and_import_work_with_pipes_and_filters(self, run: Run, tasks: DelayQueue) -> None:
        text = run("scheduled", "export", "--task", "shop.remind").stdout
        assert [json.loads(line)["id"] for line in text.splitlines()] == [TASK]
        tasks.cancel(TASK)

        assert run("scheduled", "import", input=text + "\n").stdout == "1 imported\n"

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (
                {"destination": "{redis_queue:queue:orders}:ready"},
                "list '{redis_queue:queue:orders}:ready' is reserved: use",
            ),
            ({"destination": "celery-task-meta-1"}, "list 'celery-task-meta-1' is reserved: use another name"),
            ({"destination": "elsewhere"}, ""),
        ],
        ids=["a list of redis_queue", "a result", "any list"],
    )
    def test_import_refuses_reserved_keys(self, run: Run, tasks: DelayQueue, line: dict[str, Any], reason: str) -> None:
        before = len(tasks)
        good = {"id": "good", "due_at": "2030-01-01T00:00:00+00:00", "payload": 1}
        text = f"{json.dumps(good)}\n{json.dumps({**good, 'id': 'bad', **line})}\n"

        done = run("scheduled", "import", input=text)

        assert (done.exit_code, len(tasks)) == ((2, before) if reason else (0, before + 2))
        assert reason in done.stderr
        assert ("line 2: " in done.stderr) == bool(reason)

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"destination": "elsewhere"}, "queue 'elsewhere' is not in the app's configuration"),
            ({"payload": {"task": "x", "options": {"queue": "elsewhere"}}}, "queue 'elsewhere' is not in"),
            ({"payload": {"task": "x", "options": {"exchange": "celery.pidbox", "routing_key": "y"}}}, "is reserved"),
            ({"destination": "celery\x06\x169", "payload": {"task": "x", "options": {"queue": "celery"}}}, ""),
        ],
        ids=["by its list", "by its queue", "by its exchange", "its own"],
    )
    def test_import_refuses_entries_that_the_dispatcher_would_refuse(
        self, *, run_in_app: Run, app: Celery, tasks: DelayQueue, options: dict[str, Any], reason: str
    ) -> None:
        app.conf.redis_queue_allowed_queues = []
        before = len(tasks)
        line = {"id": "new", "due_at": "2030-01-01T00:00:00+00:00", "payload": {"task": "x"}, **options}

        done = run_in_app("scheduled", "import", input=json.dumps(line))

        assert (done.exit_code, len(tasks)) == ((2, before) if reason else (0, before + 1)), done.stderr
        assert reason in done.stderr

    def test_import_replaces_or_refuses_existing_entries(self, run: Run, tasks: DelayQueue) -> None:
        line = json.dumps({"id": "data", "due_at": DUE.isoformat(), "payload": "new"})

        refused = run("scheduled", "import", "--on-conflict", "error", "--json", input=line)
        assert refused.exit_code == 1
        assert json.loads(refused.stdout)["imported"] == 0
        assert run("scheduled", "import", "--on-conflict", "replace", input=line).stdout == "1 imported\n"
        assert must(tasks.get("data")).payload == "new"

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("nonsense", "line 2: "),
            ("[]", "line 2: expected a JSON object, got list"),
            ('{"id": "x", "due_at": "2030-01-01T00:00:00+00:00"}', "line 2: 'payload' is missing"),
            ('{"id": "x", "due_at": "soon", "payload": 1}', "line 2: "),
            ('{"id": "x", "due_at": "2030-01-01T00:00:00", "payload": 1}', "must have a time zone"),
            ('{"id": "a\\nb", "due_at": "2030-01-01T00:00:00+00:00", "payload": 1}', "printable"),
            ('{"id": "x", "due_at": "2030-01-01T00:00:00+00:00", "base64": "?"}', "line 2: "),
            ('{"id": "x", "due_at": 7, "payload": 1}', "line 2: "),
        ],
    )
    def test_a_file_with_a_bad_line_is_refused_as_a_whole(
        self, line: str, words: str, run: Run, tasks: DelayQueue, client: redis.Redis
    ) -> None:
        good = json.dumps({"id": "new", "due_at": DUE.isoformat(), "payload": 1})
        before = snapshot(client)

        done = run("scheduled", "import", input=f"{good}\n{line}\n")

        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr
        assert differences(before, snapshot(client)) == []


class TestDead:
    @pytest.fixture(autouse=True)
    def letters(self, orders: RedisQueue, tasks: DelayQueue, clock: Clock) -> None:
        """Dead letters in queues of both kinds, one of them a task."""
        clock.now += 3 * 3_600_000
        for entry in tasks.claim(9):
            tasks.nack(entry, dead=True, reason=f"no route for {entry.id}")

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ("", [TASK, "data", "task-2", "dead"]),
            ("--name orders", ["dead"]),
            ("--reason Timeout", ["dead"]),
            ("--reason route --id-prefix 0", [TASK]),
            ("--task shop.cancel", ["task-2"]),
            ("--task remi", [TASK]),
            ("--limit 2", [TASK, "data"]),
        ],
    )
    def test_list_takes_conditions(self, options: str, expected: list[str], run: Run) -> None:
        found = answer(run("dead", "list", *options.split(), "--json"))

        assert [letter["id"] for letter in found["dead"]] == expected
        assert found["more"] is ("limit" in options)

    @pytest.mark.parametrize(
        ("arguments", "number"),
        [
            ("--all --yes", 4),
            ("--reason route --yes", 3),
            ("--task shop.remind --yes", 1),
            ("dead nobody data", 2),
            ("--name orders --all --yes", 1),
            ("--reason route --rate 0.5 --yes", 3),
        ],
    )
    def test_redrive_moves_as_many_as_the_dry_run_says(
        self, arguments: str, number: int, run: Run, orders: RedisQueue, tasks: DelayQueue
    ) -> None:
        assert last_line(run("dead", "redrive", *arguments.split(), "--dry-run")) == f"{number} to be redriven"
        assert answer(run("dead", "redrive", *arguments.split(), "--json")) == {"redriven": number}
        assert orders.stats().dead + tasks.stats().dead == 4 - number

    def test_redrive_with_a_rate_spreads_over_time(self, run: Run, tasks: DelayQueue) -> None:
        run("dead", "redrive", "--reason", "route", "--rate", "0.5", "--yes")

        due = [entry.due_at for entry in tasks]
        assert [at - due[0] for at in due] == [timedelta(seconds=2 * number) for number in range(3)]

    @pytest.mark.parametrize(
        ("arguments", "number"),
        [("--reason route", 3), ("--task shop.remind", 1), ("dead nobody data", 2), ("--name orders --id-prefix d", 1)],
    )
    def test_delete_deletes_as_many_as_the_dry_run_says(
        self, arguments: str, number: int, run: Run, orders: RedisQueue, tasks: DelayQueue
    ) -> None:
        assert last_line(run("dead", "delete", *arguments.split(), "--dry-run")) == f"{number} to be deleted"
        assert answer(run("dead", "delete", *arguments.split(), "--yes", "--json")) == {"deleted": number}
        assert orders.stats().dead + tasks.stats().dead == 4 - number

    def test_deleting_an_unknown_id_is_an_error(self, run: Run) -> None:
        done = run("dead", "delete", "nobody", "--yes")

        assert (done.exit_code, done.stdout) == (1, "0 deleted\n")
        assert "no dead letter: 'nobody'" in done.stderr

    def test_delete_keeps_newer_dead_letters(
        self, run: Run, orders: RedisQueue, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        delete: Callable[..., int] = RedisQueue.delete_dead

        def after_another_death(self: RedisQueue, ids: list[str], *, until: datetime) -> int:
            clock.now += 1
            orders.redrive(["dead"])
            found = [message for message in orders.get_many(9) if message.id == "dead"]
            orders.nack(found[0], dead=True, reason="again")
            return delete(self, ids, until=until)

        monkeypatch.setattr(RedisQueue, "delete_dead", after_another_death)

        assert run("dead", "delete", "dead", "--name", "orders", "--yes").exit_code == 1
        assert [letter.reason for letter in orders.dead_letters()] == ["again"]

    def test_purge_deletes_them(self, run: Run, orders: RedisQueue, tasks: DelayQueue) -> None:
        assert run("dead", "purge", "--name", "orders", "--yes").stdout == "1 deleted\n"
        assert run("dead", "purge", "--yes").stdout == "3 deleted\n"
        assert orders.stats().dead == tasks.stats().dead == 0


def test_quarantine_purge_deletes_the_records(run: Run, orders: RedisQueue) -> None:
    assert run("quarantine", "purge", "--name", "orders", "--yes").stdout == "1 deleted\n"
    assert orders.stats().quarantined == 0


MANY = 10_000


@pytest.fixture
def many(tasks: DelayQueue) -> DelayQueue:
    """Add ten thousand entries."""
    tasks.push_many(Push("x", id=f"many-{number:05}", delay=7200) for number in range(MANY))
    return tasks


def before_each_batch(monkeypatch: pytest.MonkeyPatch, act: Callable[[list[str]], object]) -> None:
    cancel = EntryRemoval.cancel_many

    def acting(self: EntryRemoval, ids: list[str]) -> list[Removal]:
        act(ids)
        return cancel(self, ids)

    monkeypatch.setattr(EntryRemoval, "cancel_many", acting)


class TestMany:
    def test_thousands_are_listed_exported_and_cancelled(self, run: Run, many: DelayQueue) -> None:
        found = answer(run("scheduled", "list", "--id-prefix", "many", "--limit", "10000", "--json"))
        assert len(found["entries"]) == MANY
        assert found["more"] is False
        assert run("scheduled", "export", "--id-prefix", "many").stdout.count("\n") == MANY
        assert last_line(run("scheduled", "cancel", "--id-prefix", "many", "--dry-run")) == "10,000 to be cancelled"
        assert run("scheduled", "cancel", "--id-prefix", "many", "--yes").stdout == "10,000 cancelled\n"
        assert len(many) == 3

    @pytest.mark.parametrize(("signals", "cancelled"), [(1, 1000), (2, 500)])
    def test_an_interruption_ends_the_cancel_after_a_batch_and_a_second_one_at_once(
        self, run: Run, many: DelayQueue, monkeypatch: pytest.MonkeyPatch, signals: int, cancelled: int
    ) -> None:
        def interrupt(ids: list[str]) -> None:
            for _ in range(signals if ids[0] == "many-00500" else 0):
                signal.raise_signal(signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        before_each_batch(monkeypatch, interrupt)

        done = run("scheduled", "cancel", "--id-prefix", "many", "--yes", "--json")

        assert done.exit_code == 1
        assert json.loads(done.stdout) == {"cancelled": cancelled, "error": "interrupted: run it again to go on"}
        assert len(many) == MANY + 3 - cancelled
        assert signal.getsignal(signal.SIGINT) is before

    def test_an_interruption_in_the_last_batch_is_ignored(
        self, run: Run, tasks: DelayQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before_each_batch(monkeypatch, lambda _: signal.raise_signal(signal.SIGINT))

        assert answer(run("scheduled", "cancel", "--all", "--yes", "--json")) == {"cancelled": 3}

    def test_an_interrupted_purge_shows_the_count(
        self, run: Run, client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        RedisQueue("orders", client, clock=clock).put_many(range(1200))

        purge: Callable[..., int] = RedisQueue.purge

        def interrupted(self: RedisQueue, *places: str, limit: int) -> int:
            signal.raise_signal(signal.SIGINT)
            return purge(self, *places, limit=limit)

        monkeypatch.setattr(RedisQueue, "purge", interrupted)

        done = run("queue", "orders", "purge", "--yes", "--json")

        assert done.exit_code == 1
        assert json.loads(done.stdout) == {"deleted": 500, "error": "interrupted: run it again to go on"}
        assert RedisQueue("orders", client).stats().ready == 700

    @pytest.mark.parametrize("done", [0, 500])
    def test_an_error_shows_the_count(
        self, run: Run, many: DelayQueue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, done: int
    ) -> None:
        waiting, first = "{redis_queue:delay:scheduled:0}:waiting", f"many-{done:05}"
        before_each_batch(monkeypatch, lambda ids: ids[0] == first and client.set(waiting, "x"))

        answered = run("scheduled", "cancel", "--id-prefix", "many", "--yes", "--json")

        assert answered.exit_code == 1
        assert json.loads(answered.stdout)["cancelled"] == done
        assert "waiting is a string" in json.loads(answered.stdout)["error"]
        (line,) = Audit(client, "redis_queue").last()
        assert (line.count, [subject.id for subject in line.subjects]) == (done, [f"many-{n:05}" for n in range(10)])


def on_a_terminal(arguments: Sequence[str], typed: bytes, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command on a terminal, type *typed*; return the exit code and the output."""
    main, side = pty.openpty()
    os.write(main, typed)
    command = [sys.executable, "-m", "redis_queue", *arguments]
    environment = {**os.environ, "TERM": "xterm", **environment}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        printed = b""
        # Linux raises an error at the end of the output, once the other side is closed.
        try:
            while part := os.read(main, 4096):
                printed += part
        except OSError:
            pass
        code = process.wait(20)
    os.close(main)
    return code, printed.decode()


class TestProcess:
    @pytest.mark.parametrize(("typed", "left"), [(b"y\n", 0), (b"n\n", 2)])
    def test_asks_with_the_count_on_a_terminal(
        self, typed: bytes, left: int, redis_url: str, client: redis.Redis
    ) -> None:
        queue = DelayQueue("scheduled", client)
        queue.push_many([Push("x", delay=60), Push("y", delay=60)])

        code, printed = on_a_terminal(["scheduled", "cancel", "--all"], typed, {"REDIS_QUEUE_URL": redis_url})

        assert "Cancel 2 entries? [y/N]" in printed
        assert ("2 cancelled" in printed, code) == ((True, 0) if not left else (False, 1))
        assert ("100%" in printed) is not left
        assert len(queue) == left

    def test_takes_url_and_prefix_as_options(self, redis_url: str, client: redis.Redis) -> None:
        RedisQueue("orders", client, prefix="mine").put("x")
        command = [sys.executable, "-m", "redis_queue", "queues", "--json", "--url", redis_url, "--prefix", "mine"]

        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

        assert (done.returncode, done.stderr) == (0, "")
        assert [row["name"] for row in json.loads(done.stdout)["queues"]] == ["orders"]

    def test_an_unknown_name_is_a_one_line_error(self, redis_url: str, client: redis.Redis) -> None:
        command = [sys.executable, "-m", "redis_queue", "queue", "orders", "peek", "--url", redis_url]

        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("error: no RedisQueue 'orders'")

    def test_through_celery_url_and_prefix_come_from_the_app(
        self, redis_server: RedisServer, client: redis.Redis
    ) -> None:
        DelayQueue("scheduled", client).push("x", id="mine", delay=60)
        environment = {"BROKER": f"redis+socket://{redis_server.socket}", "STORE": redis_server.url}

        done = run_command("scheduled", "list", "--json", **environment)
        refused = run_command("scheduled", "list", "--url", "redis://elsewhere", **environment)

        assert [entry["id"] for entry in json.loads(done.stdout)["entries"]] == ["mine"]
        assert refused.returncode == 2
        assert "--url" in refused.stderr


class TestBrokenQueue:
    @pytest.fixture(autouse=True)
    def broken(self, orders: RedisQueue, client: redis.Redis) -> None:
        """A queue with unreadable dead letters that is listed first, and one with invalid settings."""
        queue = RedisQueue("a broken one", client)
        queue.put("x")
        message = must(queue.get(block=False))
        queue.nack(message, dead=True, reason="lost")
        at = Keys("redis_queue", "queue", "a broken one")
        client.delete(at.errors)
        client.set(at.errors, "x")
        client.hset("redis_queue:registry", "queue:never", b'{"max_deliveries": -1, "shards": 1}')

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            ("dead list", "Timeout"),
            ("quarantine list", "unreadable"),
            ("dead redrive --all --yes", "redriven"),
            ("dead redrive --all --yes --rate 9", "redriven"),
            ("dead purge --yes", "deleted"),
            ("dead purge --dry-run", "2"),
            ("quarantine purge --yes", "1 deleted"),
            ("putback --dry-run", "0 expired"),
        ],
    )
    def test_the_others_are_processed_and_the_error_is_shown(self, line: str, what: str, run: Run) -> None:
        done = run(*line.split())
        assert (done.exit_code, what in done.stdout) == (1, True), done.output
        assert done.stderr.startswith("error: ")
        assert "never: max_deliveries" in done.stderr

    def test_in_json_too(self, run: Run) -> None:
        told = json.loads(run("dead", "list", "--json").stdout)
        assert [letter["id"] for letter in told["dead"]] == ["dead"]
        assert "a broken one" in told["error"]


def test_a_redrive_at_a_rate_ends_between_batches_and_keeps_the_rate(
    run: Run, client: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = RedisQueue("many", client, clock=clock)
    queue.put_many(range(1200))
    for _ in range(3):
        queue.nack_many(queue.get_many(400), dead=True, reason="Timeout")
    redrive: Callable[..., Iterator[Sequence[bool]]] = RedisQueue.redrive_batches

    def interrupted(self: RedisQueue, ids: Sequence[str], *, rate: float) -> Iterator[Sequence[bool]]:
        yield from itertools.islice(redrive(self, ids, rate=rate), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(RedisQueue, "redrive_batches", interrupted)

    done = run("dead", "redrive", "--name", "many", "--all", "--rate", "10", "--yes", "--json")

    assert (done.exit_code, json.loads(done.stdout)["redriven"]) == (1, 1000)
    assert (queue.stats().dead, queue.stats().ready + queue.stats().delayed) == (200, 1000)
    [(_, last)] = client.zrange(Keys("redis_queue", "queue", "many").waiting, -1, -1, withscores=True)
    assert last - clock.now == pytest.approx(99_900, abs=5000)
    [line] = [line for line in Audit(client, "redis_queue").last() if line.verb == "redrive"]
    assert line.count == 1000


class TestUnknownIds:
    @pytest.mark.parametrize(
        ("line", "noun", "verb"),
        [
            ("scheduled cancel --yes", "waiting entry", "cancelled"),
            ("scheduled reschedule --to 2h", "waiting entry", "rescheduled"),
            ("scheduled run-now", "waiting entry", "made_due"),
            ("dead redrive", "dead letter", "redriven"),
            ("dead redrive --rate 5", "dead letter", "redriven"),
        ],
    )
    def test_are_an_error(self, line: str, noun: str, verb: str, run: Run, tasks: DelayQueue) -> None:
        done = run(*line.split(), "nobody")
        assert (done.exit_code, done.stderr) == (1, f"error: no {noun}: 'nobody'\n")
        done = run(*line.split(), "nobody", "nothing", "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (1, {verb: 0, "error": f"no {noun} has any of these 2 ids"})

    def test_are_ignored_if_one_is_known(self, run: Run, tasks: DelayQueue) -> None:
        done = run("scheduled", "run-now", "nobody", "task-2")
        assert (done.exit_code, done.stdout) == (0, "1 made due\n")
