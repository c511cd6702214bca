"""``failures retry`` and ``failures delete``: selection, confirmation, results and exit codes."""

from __future__ import annotations

import json

import pytest
import redis

from redis_queue import DelayQueue
from redis_queue.celery.message.envelope import Envelope
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched
from redis_queue.monitor.failures import Failures
from redis_queue.operate.actions.failures import NO_MESSAGE
from redis_queue.store.keys import MonitorKeys
from tests.support.cli.commands import DUE, Run
from tests.support.wait import must

WAITS = "No dispatcher runs: the tasks wait until a worker or redis-queue dispatch does.\n"


def kept(failures: Failures) -> list[str]:
    return [failure.id for failure in failures.list()[0]]


def test_a_retry_stores_the_message_and_removes_the_failure(run: Run, tasks: DelayQueue, failed: Failures) -> None:
    done = run("failures", "retry", "failed")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "1 retried\n", WAITS)
    assert kept(failed) == ["gone"]
    entry = must(tasks.get("failed"))
    message = Envelope.unpack(entry.payload, entry.id, entry.headers)
    assert (message.task, message.headers["retries"], message.routing_key) == ("shop.remind", 0, "celery")
    again = run("failures", "retry", "failed")
    assert (again.exit_code, again.stdout) == (1, "0 retried\n")
    assert "no failure: 'failed'" in again.stderr


def test_other_arguments(run: Run, tasks: DelayQueue, failed: Failures) -> None:
    done = run("failures", "retry", "failed", "--args", '["x", 1]', "--kwargs", '{"a": null}', "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"retried": 1})
    entry = must(tasks.get("failed"))
    message = Envelope.unpack(entry.payload, entry.id, entry.headers)
    assert json.loads(message.body)[:2] == [["x", 1], {"a": None}]
    assert (message.headers["argsrepr"], message.headers["kwargsrepr"]) == ("('x', 1)", "{'a': None}")


def test_failures_without_a_message_are_skipped_with_the_reason(run: Run, tasks: DelayQueue, failed: Failures) -> None:
    dry = run("failures", "retry", "--all", "--dry-run", "--json")
    assert json.loads(dry.stdout)["to_be_retried"] == 1
    done = run("failures", "retry", "--all", "--yes")
    assert (done.exit_code, done.stdout) == (1, "1 retried\n")
    assert f"error: 1 skipped: {NO_MESSAGE}\n" in done.stderr
    assert kept(failed) == ["gone"]


def test_a_dispatcher_is_known(run: Run, tasks: DelayQueue, failed: Failures) -> None:
    tasks.dispatch_log.note(Dispatched(), dispatcher=DispatcherRow("me", DUE, True, "1", 0, 0, ""))
    assert run("failures", "retry", "failed").stderr == ""


def test_an_unknown_delay_queue_is_explained(run: Run, failed: Failures) -> None:
    done = run("failures", "retry", "failed")
    assert done.exit_code == 2
    assert "name the Celery app (redis-queue -A APP" in done.stderr
    assert "failed" in kept(failed)


def test_the_app_needs_no_delayed_task(run_in_app: Run, failed: Failures) -> None:
    done = run_in_app("failures", "retry", "failed")
    assert (done.exit_code, done.stdout) == (0, "1 retried\n")


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        (["--task", "shop.remind"], ["failed"]),
        (["--exception", "SMTPException"], ["failed"]),
        (["--exception", "smtplib.SMTPException"], ["failed"]),
        (["--text", "rout"], ["failed"]),
        (["--text", "secret"], ["gone", "failed"]),
        (["--worker", "one@host"], ["gone", "failed"]),
        (["--since", "1h"], ["gone", "failed"]),
        (["--since", "2030-01-01T00:00:01Z"], []),
        (["--until", "2030-01-01T00:00:00Z"], []),
        (["--until", "2030-01-01T00:00:01Z"], ["gone", "failed"]),
        (["--task", "shop.remind", "--exception", "NotRegistered"], []),
    ],
)
def test_conditions(conditions: list[str], found: list[str], run: Run, failed: Failures) -> None:
    listed = json.loads(run("failures", "list", *conditions, "--json").stdout)
    assert [failure["id"] for failure in listed["failures"]] == found
    done = run("failures", "delete", *conditions, "--yes")
    assert (done.exit_code, done.stdout) == (0, f"{len(found)} deleted\n")
    assert kept(failed) == [id_ for id_ in ("gone", "failed") if id_ not in found]


def test_a_search_without_a_match_suggests_a_name(run: Run, failed: Failures) -> None:
    for verb in (["list"], ["delete", "--yes"]):
        done = run("failures", *verb, "--task", "shop.remnid")
        assert "no match among 2 failures" in done.output
        assert "did you mean 'shop.remind'" in done.output


def test_an_unknown_id(run: Run, failed: Failures) -> None:
    assert run("failures", "show", "nobody").exit_code == 1
    done = run("failures", "delete", "nobody", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)["deleted"]) == (1, 0)


def test_an_empty_list(run: Run, client: redis.Redis) -> None:
    assert run("failures", "list").stdout.startswith("no failures in ")
    assert run("failures", "list", "--groups").stdout.startswith("no failures in ")
    assert run("failures", "list", "--groups", "--task", "x").stdout.startswith("no match among 0 failures in ")


def test_control_characters_are_escaped(run: Run, failed: Failures, client: redis.Redis) -> None:
    keys = MonitorKeys("redis_queue")
    row = must(client.hget(keys.failures, "failed"))
    client.hset(keys.failures, "failed", row.replace(b"no route", b"no\\u001b[2J\\u202eroute"))
    client.hset(keys.tracebacks, "failed", b"8\nline\n\x1b[2")
    for line in (["list"], ["show", "failed"]):
        done = run("failures", *line)
        assert done.exit_code == 0
        assert done.stdout.replace("\n", "").isprintable()
