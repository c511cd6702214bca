"""docs/cli.md has an example for every command, and each example runs."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue import DelayQueue, RedisQueue
from redis_queue.cli import celery as celery_cli
from redis_queue.cli import group
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from tests.support.cli.commands import APP_EXAMPLES, DOCS, EXAMPLES, Run, leaves
from tests.support.clock import Clock


def test_every_command_has_an_example() -> None:
    told = {example.replace("queue orders", "queue") for example in EXAMPLES}
    told |= {example.replace("queue mail", "queue") for example in APP_EXAMPLES}
    told |= {example.replace("worker celery@host", "worker") for example in APP_EXAMPLES}

    for leaf in leaves(group):
        assert any(example.startswith(leaf) for example in told) or f"redis-queue {leaf}`" in DOCS, leaf


def test_both_groups_have_the_same_commands() -> None:
    assert group.commands == celery_cli.group.commands


@pytest.mark.usefixtures("failed", "flows", "unique")
def test_the_examples_run(
    run: Run, orders: RedisQueue, tasks: DelayQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in EXAMPLES:
        done = run(*shlex.split(example))
        assert done.exit_code == 0, (example, done.output)


def test_the_examples_with_an_app_run(
    run_in_app: Run, tasks: DelayQueue, app: Celery, client: redis.Redis, clock: Clock
) -> None:
    at = datetime.fromtimestamp(clock.now / 1000, timezone.utc)
    worker = WorkerRow("celery@host", at, at, pool="prefork", concurrency=2)
    task = RunningTask("task-1", "shop.remind", "mail", worker.name, at)
    Reports(client, "redis_queue", clock).write(worker, [task])
    app.conf.task_queues = [Queue("mail"), Queue("slow")]
    for number in range(3):
        app.send_task("shop.remind", [number], queue="mail", task_id=f"task-{number}")
    assert APP_EXAMPLES
    for example in APP_EXAMPLES:
        done = run_in_app(*shlex.split(example))
        assert done.exit_code == 0, (example, done.output)
