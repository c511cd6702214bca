"""The output and the exit codes of `redis-queue doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redis_queue.cli import celery as cli
from redis_queue.cli import group
from redis_queue.cli.doctor import _show
from redis_queue.doctor import Finding, examine
from redis_queue.operate import diagnosis
from redis_queue.operate.access import access_to
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import PrefixKeys
from tests.support.doctor import faults
from tests.support.doctor.stage import Limit, Stage, keyspace
from tests.support.ports import HOST, free_port
from tests.support.servers import RedisServer

PASSWORD = "s3cr3t/p@ss:w0rd"
HOSTILE = b"queue:\x1b[2J\x1b]0;owned\x07[bold]x[/bold]\r\nerror: \xe2\x80\xae"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the terminal so wide that no line is wrapped."""
    monkeypatch.setenv("COLUMNS", "400")


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(group, ["doctor", "--url", url, *arguments])


def doctor(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redis_queue", "doctor", *arguments]
    environment = {**os.environ, "REDIS_QUEUE_URL": url}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_without_problems_the_exit_code_is_0(stage: Stage, sound: RedisServer) -> None:
    done = doctor(sound.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 errors, " in done.stdout
    assert "Redis evicts no keys when memory is short" not in done.stdout


def test_passed_checks_are_summarized_in_one_line(stage: Stage, sound: RedisServer) -> None:
    ok = [finding for finding in diagnosis.examine(access_to(stage.client, "redis_queue"), ask=True) if finding.silent]
    folded, everything = run(sound.url).output, run(sound.url, "--all").output

    assert f"{len(ok):,} checks ok: --all shows them\n" in folded
    assert not any(line.startswith("ok ") for line in folded.splitlines())
    assert "checks ok" not in everything
    assert sum(line.startswith("ok ") for line in everything.splitlines()) == len(ok) > 10


def test_incomplete_checks_are_shown_without_problems(sound: RedisServer, capsys: Any) -> None:
    _show([Finding("coverage", "ok", "read 10,000 fields"), Finding("memory", "ok", "far")], everything=False)

    output = capsys.readouterr().out
    assert "read 10,000 fields" in output
    assert "1 check ok" in output


def test_the_output_names_the_redis(sound: RedisServer) -> None:
    assert run(sound.url).output.splitlines()[-1] == f"in {sound.url.partition('?')[0]}"


def test_with_warnings_the_exit_code_is_0(stage: Stage, sound: RedisServer) -> None:
    stage.queue.pause()
    done = run(sound.url)
    assert done.exit_code == 0
    assert "queue orders is paused" in done.output


def test_with_errors_the_exit_code_is_1_and_they_come_first(stage: Stage, sound: RedisServer) -> None:
    faults.late_entry(stage)
    done = doctor(sound.url)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("error")
    assert "no dispatcher leads" in done.stdout


def test_an_unreachable_redis_is_exit_code_1_without_the_password() -> None:
    done = doctor(f"redis://:{PASSWORD.replace('/', '%2F').replace('@', '%40')}@{HOST}:{free_port()}/0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Redis cannot be reached")
    assert "s3cr3t" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_password_is_exit_code_1_and_not_shown() -> None:
    with RedisServer(tcp=True, password="another") as server:
        done = run(server.url.replace("another", "s3cr3t"))

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Redis refused the login")
    assert "s3cr3t" not in done.output


def test_a_user_without_permission_to_ping_sees_other_checks(stage: Stage, limited: Limit) -> None:
    found = examine(limited("+info ~*"))

    assert {finding.severity for finding in found if finding.check == "memory"} == {"ok"}


@pytest.mark.parametrize("options", [(), ("--json",), ("--fix",)])
def test_no_password_is_shown(options: tuple[str, ...]) -> None:
    with RedisServer(tcp=True, password=PASSWORD) as server:
        done = doctor(server.url, *options)
        assert done.returncode == 0
        assert "s3cr3t" not in done.stdout + done.stderr


def test_fix_alone_changes_nothing(stage: Stage, sound: RedisServer) -> None:
    faults.record_without_place(stage)
    before = keyspace(stage.client)
    done = run(sound.url, "--fix")
    assert done.exit_code == 1
    assert keyspace(stage.client) == before
    assert "orphans: queue orders: move 1 record without a place back into the ready list" in done.output
    assert "1 would be repaired; nothing was changed" in done.output


def test_fix_with_yes_repairs(stage: Stage, sound: RedisServer) -> None:
    faults.record_without_place(stage)
    done = run(sound.url, "--fix", "--yes")
    assert done.exit_code == 0
    assert "1 repaired" in done.output
    assert "0 errors" in done.output
    assert stage.wrong() == {}
    [action] = Audit(stage.client, "redis_queue").last()
    assert (action.verb, action.count, action.detail) == ("repair", 1, "orphans")


def test_yes_alone_is_refused(stage: Stage, sound: RedisServer) -> None:
    done = doctor(sound.url, "--yes")
    assert done.returncode == 2
    assert "--yes needs --fix" in done.stderr


@pytest.mark.parametrize(("options", "extra"), [((), {}), (("--fix",), {"dry_run": True})])
def test_json_output_is_one_object(
    stage: Stage, sound: RedisServer, options: tuple[str, ...], extra: dict[str, Any]
) -> None:
    faults.records_that_expire(stage)
    found = json.loads(run(sound.url, "--json", *options).output)
    errors = [finding for finding in found["findings"] if finding["severity"] == "error"]
    assert errors == [
        {
            "check": "lifetime",
            "severity": "error",
            "found": "{redis_queue:queue:orders}:records has a TTL: Redis will delete it",
            "advice": "redis-queue doctor --fix",
            "repairable": True,
        }
    ]
    assert ("repairs" in found) == bool(options)
    assert extra.items() <= found.items()


@pytest.mark.parametrize("without_rich", [False, True])
def test_control_characters_in_names_are_escaped(
    stage: Stage, sound: RedisServer, monkeypatch: pytest.MonkeyPatch, without_rich: bool
) -> None:
    if without_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    stage.client.hset(PrefixKeys("redis_queue").registry, HOSTILE, "{")
    done = run(sound.url)
    assert done.exit_code == 1
    assert all(char.isprintable() for char in done.output.replace("\n", ""))
    assert "\\x1b[2J\\x1b]0;owned\\x07[bold]x[/bold]\\r\\nerror: \\u202e" in done.output


def test_another_prefix(stage: Stage, sound: RedisServer) -> None:
    faults.late_entry(stage)
    assert run(sound.url, "--prefix", "other").exit_code == 0
    done = doctor(sound.url, "--prefix", "")
    assert (done.returncode, done.stdout) == (2, "")


class TestThroughCelery:
    @pytest.fixture
    def app(self, sound: RedisServer, client: redis.Redis) -> Any:
        app = Celery("tests", broker=f"redis+socket://{sound.socket}", set_as_current=False)
        yield app
        app.close()

    def run(self, app: Celery, *arguments: str) -> Result:
        return CliRunner().invoke(cli.group, ["doctor", *arguments], obj=SimpleNamespace(app=app))

    def test_it_checks_the_store_of_the_app(self, stage: Stage, app: Celery) -> None:
        assert self.run(app).exit_code == 0
        faults.late_entry(stage)
        done = self.run(app)
        assert done.exit_code == 1
        assert "no dispatcher leads" in done.output

    def test_it_repairs(self, stage: Stage, app: Celery) -> None:
        faults.record_without_place(stage)
        assert self.run(app, "--fix").exit_code == 1
        assert self.run(app, "--fix", "--yes").exit_code == 0

    def test_an_unreachable_store_is_exit_code_1(self) -> None:
        app = Celery("tests", broker=f"redis://{HOST}:{free_port()}/0", set_as_current=False)
        done = self.run(app)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "error: Redis cannot be reached" in done.stderr
        app.close()
