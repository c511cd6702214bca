"""docs/cli.md has an example for every command, and each example runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from redis_queue import DelayQueue, RedisQueue
from redis_queue.cli import celery as celery_cli
from redis_queue.cli import group
from tests.support.cli.commands import DOCS, EXAMPLES, leaves
from tests.support.cli.runner import Run

pytestmark = pytest.mark.celery


def test_every_command_has_an_example() -> None:
    told = {example.replace("queue orders", "queue") for example in EXAMPLES}

    for leaf in leaves(group):
        assert any(example.startswith(leaf) for example in told) or f"redis-queue {leaf}`" in DOCS, leaf


def test_both_groups_have_the_same_commands() -> None:
    assert group.commands == celery_cli.group.commands


def test_the_examples_run(
    run: Run, orders: RedisQueue, tasks: DelayQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in EXAMPLES:
        done = run(*shlex.split(example))
        assert done.exit_code == 0, (example, done.output)
