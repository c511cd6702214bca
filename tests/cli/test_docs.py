"""docs/cli.md has an example for every command, and each example runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue import DelayQueue, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.cli import celery as celery_cli
from redis_queue.cli import group
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.store.scripts import load_scripts
from tests.support.acl import ROLES
from tests.support.cli.commands import APP_EXAMPLES, DOCS, EXAMPLES, LOOKS, Run, leaves
from tests.support.clock import Clock
from tests.support.paths import ROOT


def test_every_command_has_an_example() -> None:
    told = {example.replace("queue orders", "queue") for example in EXAMPLES}
    told |= {example.replace("queue mail", "queue") for example in APP_EXAMPLES}
    told |= {example.replace("worker celery@host", "worker") for example in APP_EXAMPLES}
    told |= {example.replace("worker celery@gone", "worker") for example in EXAMPLES}

    for leaf in leaves(group):
        assert any(example.startswith(leaf) for example in told) or f"redis-queue {leaf}`" in DOCS, leaf


def test_both_groups_have_the_same_commands() -> None:
    assert group.commands == celery_cli.group.commands


@pytest.mark.usefixtures("failed", "flows", "unique", "lost", "schedules")
def test_the_examples_run(run: Run, orders: RedisQueue, tasks: DelayQueue) -> None:
    for example in EXAMPLES:
        done = run(*shlex.split(example))
        assert done.exit_code == 0, (example, done.output)


@pytest.mark.usefixtures("schedules")
def test_the_examples_with_an_app_run(
    run_in_app: Run, tasks: DelayQueue, app: Celery, client: redis.Redis, clock: Clock
) -> None:
    at = datetime.fromtimestamp(clock.now / 1000, timezone.utc)
    worker = WorkerRow("celery@host", at, at, pool="prefork", concurrency=2)
    task = RunningTask("task-1", "shop.remind", "mail", worker.name, at)
    Reports(client, "redis_queue", clock).write(worker, [task])
    app.conf.task_queues = [Queue("mail"), Queue("slow")]
    # An export names an unreadable schedule, and fails.
    Schedules(app).delete("broken")
    for number in range(3):
        app.send_task("shop.remind", [number], queue="mail", task_id=f"task-{number}")
    assert APP_EXAMPLES
    for example in APP_EXAMPLES:
        done = run_in_app(*shlex.split(example))
        assert done.exit_code == 0, (example, done.output)


# The roles of docs/security.md: a dashboard may run all read commands, and actions need other roles.

RULES = {role.name: role.rules for role in ROLES}


@pytest.fixture
def user(client: redis.Redis, orders: RedisQueue, tasks: DelayQueue, failed: Failures, flows: Flows) -> Iterator[None]:
    """A user "limited" without permissions; the queues are filled, and there are flows."""
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw")
    yield
    client.execute_command("ACL", "DELUSER", "limited")


def allow(client: redis.Redis, *roles: str) -> None:
    rules = dict.fromkeys(rule for role in roles for rule in RULES[role].split())
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", *rules)
    load_scripts(client)


@pytest.mark.usefixtures("user", "unique", "lost", "schedules")
class TestRoles:
    def test_a_dashboard_runs_every_read_command(self, run: Run, client: redis.Redis, redis_url: str) -> None:
        allow(client, "dashboard")
        url = redis_url.replace("://", "://limited:pw@")

        for line in LOOKS.values():
            done = run(*line.split(), "--url", url)
            assert done.exit_code == 0, (line, done.output)

    def test_a_dashboard_can_change_nothing(self, run: Run, client: redis.Redis, redis_url: str) -> None:
        allow(client, "dashboard")

        done = run("scheduled", "cancel", "data", "--yes", "--url", redis_url.replace("://", "://limited:pw@"))

        assert done.exit_code == 1
        assert "lacks a permission" in done.stderr

    def test_all_roles_but_the_worker_run_everything(self, run: Run, client: redis.Redis, redis_url: str) -> None:
        # The loader's rules are needed for load-scripts.
        allow(client, "dashboard", "producer", "dispatcher", "admin", "operator", "loader")

        for example in EXAMPLES:
            done = run(*shlex.split(example), "--url", redis_url.replace("://", "://limited:pw@"))
            assert (done.exit_code, "warning" in done.stderr) == (0, False), (example, done.output)


# Shell completion for bash, zsh and fish, called like their own functions do.

COMMAND = Path(sys.executable).parent / "redis-queue"


def complete(shell: str, words: str, *, kind: str = "complete") -> str:
    """Return the answer of `redis-queue` to the completion of *words*, whose last word is incomplete."""
    parts = words.split(" ")
    current = parts[-1] if shell == "fish" else str(len(parts) - 1)
    asked = {"_REDIS_QUEUE_COMPLETE": f"{shell}_{kind}", "COMP_WORDS": words, "COMP_CWORD": current}
    environment = {**os.environ, **asked, "PYTHONPATH": str(ROOT), "REDIS_QUEUE_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_commands_are_completed(shell: str) -> None:
    assert "scheduled" in complete(shell, "redis-queue sch").replace(",", " ").split()


def test_options_are_completed_without_loading_the_app() -> None:
    assert complete("bash", "redis-queue -A no.such.app scheduled cancel --ids").startswith("plain,--ids-file")


def test_the_script_for_a_shell_is_printed() -> None:
    assert "_REDIS_QUEUE_COMPLETE=fish_complete" in complete("fish", "", kind="source")
