"""Each command that changes something by hand is written to the audit, with its user."""

from __future__ import annotations

import getpass
import json
import os
import socket
from pathlib import Path

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners
from redis_queue.cli import actions as cli_actions
from redis_queue.cli import group
from redis_queue.monitor.failures import Failures
from redis_queue.operate.audit import Audit, AuditLine
from tests.support.cli.commands import TASK, Run, leaves
from tests.support.clock import Clock
from tests.support.wait import must

CHANGES = {
    "queue pause": ("queue orders pause", "pause", "orders", 1, "", []),
    "queue resume": ("queue orders resume", "resume", "orders", 1, "", []),
    "queue purge": ("queue orders purge --yes", "purge", "orders", 3, "ready, delayed", []),
    "queue putback": ("queue orders putback", "putback", "orders", 1, "", []),
    "scheduled cancel": ("scheduled cancel task-2 --yes", "cancel", "scheduled", 1, "", ["task-2"]),
    "scheduled reschedule": (f"scheduled reschedule {TASK} --to 2h", "reschedule", "scheduled", 1, "in 2 h", [TASK]),
    "scheduled run-now": ("scheduled run-now --all --yes", "run-now", "scheduled", 3, "", [TASK, "data", "task-2"]),
    "scheduled import": ("scheduled import FILE", "import", "scheduled", 1, "on conflict: keep", ["new"]),
    "dead redrive": ("dead redrive dead", "redrive", "orders", 1, "", ["dead"]),
    "dead delete": ("dead delete --reason Timeout --yes", "delete", "orders", 1, "", ["dead"]),
    "dead purge": ("dead purge --yes", "purge", "orders", 1, "dead", []),
    "quarantine purge": ("quarantine purge --yes", "purge", "orders", 1, "quarantine", []),
    "failures retry": ("failures retry failed --rate 5", "retry", "failures", 1, "rate 5", ["failed"]),
    "failures delete": ("failures delete --all --yes", "delete", "failures", 2, "", ["failed", "gone"]),
    "flow set": (
        "flow set queue:reports --rate none --limit-each 3 --burst 2",
        "flow-set",
        "queue:reports",
        1,
        "rate none, limit of each key 3, burst 2",
        [],
    ),
    "flow pause": ("flow pause queue:mail", "flow-pause", "queue:mail", 1, "", []),
    "flow resume": ("flow resume queue:reports", "flow-resume", "queue:reports", 1, "", []),
    "flow reset": ("flow reset queue:mail", "flow-reset", "queue:mail", 1, "", []),
    "unique release": (
        "unique release shop.sync order:8 --yes",
        "unique-release",
        "shop.sync",
        1,
        "order:8",
        ["task-8"],
    ),
}
"""For each command: a line, and the verb, queue, count, detail and subjects of its action."""

ELSEWHERE = {"celery-queue move", "celery-queue delete", "celery-queue purge", "terminate", "stop"}
ELSEWHERE |= {"worker shutdown", "worker resize", "worker clear", "doctor", "flow move", "flow delete"}
ELSEWHERE |= {f"schedules {verb}" for verb in ("put", "pause", "resume", "run", "delete", "backfill", "import")}
"""They need a worker, a broker, an app or damage; their own tests look into the audit."""

WITHOUT_QUESTION = {"queue pause", "queue resume", "flow set", "flow pause", "flow resume", "flow reset"}
"""They delete nothing: they have neither --yes nor --dry-run."""

NOT_BY_HAND = {"putback", "adopt", "release-all"}
"""They run from timers and deployments."""


@pytest.fixture(autouse=True)
def filled(orders: RedisQueue, tasks: DelayQueue, failed: Failures, flows: Flows, unique: Owners) -> None:
    """Messages, entries, failures, flows and keys to act on."""


def actions(client: redis.Redis) -> list[AuditLine]:
    return Audit(client, "redis_queue").last()


def test_every_command_that_changes_something_is_here() -> None:
    commands = dict.fromkeys(leaves(group), group)
    for leaf in commands:
        for word in leaf.split():
            commands[leaf] = commands[leaf].commands[word]  # type: ignore[assignment,attr-defined]
    changing = {
        leaf
        for leaf, command in commands.items()
        if {"yes", "dry_run"} & {parameter.name for parameter in command.params}
    }
    assert changing | WITHOUT_QUESTION == CHANGES.keys() | ELSEWHERE | NOT_BY_HAND


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_written_with_its_user(
    name: str, run: Run, client: redis.Redis, clock: Clock, tmp_path: Path
) -> None:
    line, *expected = CHANGES[name]
    if name == "queue putback":
        clock.forward(61)
    file = tmp_path / "entries.jsonl"
    file.write_text(json.dumps({"id": "new", "payload": "x", "due_at": "2030-01-01T00:00:00+00:00"}))

    done = run(*line.replace("FILE", str(file)).split())

    assert done.exit_code == 0, done.output
    [found] = actions(client)
    assert [found.verb, found.queue, found.count, found.detail, sorted(one.id for one in found.subjects)] == expected
    assert found.user == f"{getpass.getuser()}@{socket.gethostname()} (command line)"


@pytest.mark.parametrize(
    "line",
    [
        "scheduled cancel nobody",
        "dead purge --name celery --yes",
        "queue orders purge",
        "flow set queue:mail --limit -1",
        "flow pause shop.sink",
        "unique release shop.sync order:70 --yes",
        "unique release shop.sync order:7 --dry-run",
    ],
)
def test_what_changed_nothing_is_not_written(line: str, run: Run, client: redis.Redis) -> None:
    run(*line.split())

    assert actions(client) == []


def test_the_queues_of_a_line_are_few(run: Run, client: redis.Redis) -> None:
    for number in range(5):
        queue = RedisQueue(f"many-{number}", client)
        queue.put("x")
        message = must(queue.get(block=False))
        queue.nack(message, dead=True, reason="Timeout")

    assert run("dead", "redrive", "--reason", "Timeout", "--yes").exit_code == 0

    [found] = actions(client)
    assert (found.queue, found.count) == ("many-0, many-1, many-2 and 3 more", 6)


def test_an_audit_that_cannot_be_written_is_a_warning(run: Run, client: redis.Redis, orders: RedisQueue) -> None:
    client.set("redis_queue:audit", "not a list")

    done = run("queue", "orders", "pause")

    assert (done.exit_code, done.stdout) == (0, "orders paused\n")
    assert done.stderr.startswith("warning: not written to the audit: ")
    assert orders.stats().paused


def test_a_put_back_that_cannot_be_written_is_a_warning_too(run: Run, client: redis.Redis, clock: Clock) -> None:
    client.set("redis_queue:audit", "not a list")
    clock.forward(61)
    assert "warning: not written to the audit: " in run("queue", "orders", "putback").stderr


def test_the_timeline_of_a_task_shows_it(run: Run, app: Celery) -> None:
    assert run("scheduled", "reschedule", TASK, "--to", "2030-01-01T00:00Z").exit_code == 0

    events = json.loads(run("task", TASK, "--json").stdout)["events"]

    [found] = [event for event in events if event["what"].startswith("reschedule by ")]
    assert found["detail"] == "2030-01-01T00:00:00+0000"


def test_the_timeline_of_a_task_shows_that_its_key_was_freed(run: Run) -> None:
    assert run("unique", "release", "shop.rebuild", "--yes").exit_code == 0

    events = json.loads(run("task", "task-2", "--json").stdout)["events"]

    assert [event["what"].partition(" ")[0] for event in events if "by" in event["what"]] == ["unique-release"]


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)

    assert cli_actions.user() == f"uid {os.getuid()}@{socket.gethostname()} (command line)"
