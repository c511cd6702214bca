"""The roles of docs/security.md: a dashboard may run all read commands, and actions need other roles."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.doctor.roles import ROLES
from redis_queue.flow.flows import Flows
from redis_queue.monitor.failures import Failures
from redis_queue.store.scripts import load_scripts
from tests.support.cli.commands import EXAMPLES, LOOKS, Run

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


@pytest.mark.usefixtures("user", "unique")
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

    def test_all_roles_but_the_worker_run_everything(
        self, run: Run, client: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The loader's rules are needed for load-scripts.
        allow(client, "dashboard", "producer", "dispatcher", "admin", "operator", "loader")
        monkeypatch.chdir(tmp_path)

        for example in EXAMPLES:
            done = run(*shlex.split(example), "--url", redis_url.replace("://", "://limited:pw@"))
            assert (done.exit_code, "warning" in done.stderr) == (0, False), (example, done.output)
