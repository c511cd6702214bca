"""Typing errors of users, hostile stored data, and signals and closed pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue, RedisQueue
from redis_queue.cli import celery as celery_cli
from redis_queue.cli import group
from redis_queue.delay.model import Push
from tests.support.cli.commands import Run, leaves, runner
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.store.stage import differences, snapshot
from tests.support.wait import wait_until

PASSWORD = "s3cr3t"
WRITE_MUCH = (
    "--help",
    "doctor",
    "history",
    "metrics --once",
    "queue orders peek",
    "queues",
    "scheduled export",
    "scheduled list --json",
    "stats",
    "tasks",
    "top",
    "workers",
)
NEEDS_APP = ("dispatch", "adopt", "release-all")


def redis_queue(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "redis_queue", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


class TestChoice:
    """The options that choose an app or a Redis stand before the command or after it."""

    @pytest.mark.parametrize("command", leaves(group))
    def test_every_command_takes_an_app_behind_it(self, command: str) -> None:
        first, *rest = command.split()
        arguments = [first, *(["mail"] if first in ("queue", "celery-queue") else []), *rest]
        for before, behind in ((["-A", "nosuch"], []), ([], ["-A", "nosuch"])):
            done = runner().invoke(group, [*before, *arguments, *behind, "--help"])
            assert done.exit_code == 0, done.output

    @pytest.mark.parametrize("place", ["before", "behind", "both", "group"])
    def test_the_last_one_counts(self, redis_server: RedisServer, client: redis.Redis, place: str) -> None:
        RedisQueue("mail", client).put(b"x")
        here, nowhere = ["--url", redis_server.url], ["--url", "redis://127.0.0.1:1/0"]
        arguments = {
            "before": [*here, "queues"],
            "behind": ["queues", *here],
            "both": [*nowhere, "queues", *here],
            "group": ["queue", *here, "mail", "peek"],
        }
        done = runner().invoke(group, [*arguments[place], "--json"])
        assert done.exit_code == 0, done.output
        assert "mail" in done.output or '"messages"' in done.output

    @pytest.mark.parametrize("as_json", [[], ["--json"]])
    def test_an_app_and_a_redis_exclude_each_other(self, as_json: list[str]) -> None:
        for arguments in (["-A", "tasks", "--url", "redis://x", "queues"], ["queues", "-A", "tasks", "--prefix", "x"]):
            done = runner().invoke(group, [*arguments, *as_json])
            assert done.exit_code == 2
            assert "or --app, not both" in done.output

    def test_an_app_behind_the_command_is_used(self) -> None:
        done = redis_queue("queues", "-A", "nosuch.app", "--json")
        assert done.returncode == 2
        assert "cannot load the app 'nosuch.app'" in json.loads(done.stdout)["error"]


class TestRedis:
    @pytest.mark.parametrize(
        ("url", "words", "code"),
        [
            (f"redis://:{PASSWORD}@127.0.0.1:1/0", "cannot be reached", 1),
            (f"redis://:{PASSWORD}@[::1/0", "invalid redis:// URL", 2),
            (f"redis://:{PASSWORD}@localhost:99999/0", "invalid redis:// URL", 2),
            (f"redis://:{PASSWORD}@localhost:port/0", "invalid redis:// URL", 2),
            (f"http://:{PASSWORD}@localhost/0", "url scheme='http': must be one of", 2),
            (f":{PASSWORD}@localhost/0", "url: must be a URL", 2),
            (f"redis://:{PASSWORD}@localhost/0?socket_timeout=x", "invalid redis:// URL", 2),
            (f"redis+sentinel://:{PASSWORD}@localhost/0", "master_name", 2),
            (f"unix://:{PASSWORD}@/nowhere/redis.sock", "cannot be reached", 1),
        ],
    )
    @pytest.mark.parametrize("line", ["stats", "top", "doctor", "validate"])
    def test_an_unusable_url_is_a_one_line_error_without_the_password(
        self, url: str, words: str, code: int, line: str, run: Run
    ) -> None:
        done = run(line, "--url", url, "--json")

        assert done.exit_code == code
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert PASSWORD not in done.output
        assert list(json.loads(done.stdout)) == ["error"]

    def test_a_wrong_password_is_an_error_that_does_not_show_it(self) -> None:
        with RedisServer(tcp=True, password="another") as server:
            done = redis_queue("stats", REDIS_QUEUE_URL=server.url.replace("another", PASSWORD))

        assert (done.returncode, done.stdout) == (1, "")
        assert "Redis refused the login" in done.stderr
        assert PASSWORD not in done.stderr

    @pytest.mark.parametrize("line", ["stats", "top", "doctor", "scheduled list"])
    def test_a_database_that_does_not_exist_is_a_one_line_error(self, line: str, run: Run, redis_url: str) -> None:
        done = run(*line.split(), "--url", redis_url.replace("db=0", "db=9999"))

        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert "DB index is out of range" in done.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            ["queues", f"redis://:{PASSWORD}@host/0"],
            [f"redis://:{PASSWORD}@host/0", "queues"],
            ["scheduled", "list", "--limit", f"redis://:{PASSWORD}@host/0"],
        ],
    )
    def test_a_url_in_the_wrong_place_is_quoted_without_its_password(self, arguments: list[str]) -> None:
        done = redis_queue(*arguments)

        assert done.returncode == 2
        assert done.stderr.startswith("Usage: ")
        assert PASSWORD not in done.stderr

    def test_redis_queue_url_has_precedence_over_redis_url(
        self, run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")

        # `run` sets REDIS_QUEUE_URL.
        assert run("stats").exit_code == 0
        assert redis_queue("stats", REDIS_QUEUE_URL="", REDIS_URL=redis_url).returncode == 0
        assert "the process list shows options" in " ".join(run("stats", "--help").stdout.split())


PATTERNS = ["*", "?", "[a-z]*", ".*", "(a+)+$", "(" * 5000, "%", "\\"]


class TestFilters:
    """Filters are plain text: no pattern matches more than its text or takes long."""

    @pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern[:8])
    def test_are_not_patterns(self, pattern: str, run: Run, tasks: DelayQueue, orders: RedisQueue) -> None:
        for option in ("--task", "--queue", "--id-prefix"):
            found = run("scheduled", "list", option, pattern, "--json")
            assert json.loads(found.stdout)["entries"] == []
        for option in ("--task", "--reason", "--id-prefix"):
            found = run("dead", "list", option, pattern, "--json")
            assert json.loads(found.stdout)["dead"] == []

    def test_a_hostile_pattern_takes_no_longer(self, run: Run, client: redis.Redis) -> None:
        queue = DelayQueue("scheduled", client)
        queue.push_many(Push({"task": "a" * 5000}, id=f"{'a' * 200}{number}", delay=60) for number in range(200))
        began = time.process_time()

        assert run("scheduled", "cancel", "--task", "(a+)+$", "--yes").stdout == "0 cancelled\n"
        assert time.process_time() - began < 5


IDS = [
    "scheduled cancel --yes",
    "scheduled reschedule --to 2h --yes",
    "scheduled run-now --yes",
    "dead redrive --yes",
    "dead delete --yes",
]


class TestIdsFile:
    @pytest.fixture
    def dead(self, orders: RedisQueue, tasks: DelayQueue) -> None:
        """Waiting entries and a dead letter."""

    @pytest.mark.parametrize("line", IDS)
    def test_may_come_from_windows(self, line: str, run: Run, dead: None, tmp_path: Path) -> None:
        file = tmp_path / "ids.txt"
        file.write_bytes("\ufeff task-2\r\n\r\ndead\r\nnobody\r\ndead\r\n\ttask-2  \r\n".encode())

        said = json.loads(run(*line.split(), "--dry-run", "--json", "--ids-file", str(file)).stdout)
        done = json.loads(run(*line.split(), "--json", "--ids-file", str(file)).stdout)

        assert len(said.pop("first")) == 1
        assert [*said.values()] == [*done.values()] == [1]

    @pytest.mark.parametrize("line", IDS)
    def test_may_be_stdin(self, line: str, run: Run, dead: None) -> None:
        done = run(*line.split(), "--json", "--ids-file", "-", input="task-2\r\ndead")

        assert [*json.loads(done.stdout).values()] == [1]

    @pytest.mark.parametrize("line", IDS)
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"task-2\na\x1b[2Jb\n", "line 2: id="),
            (b"task-2\n" + b"x" * 300, "line 2: id="),
            (b"task-2\n\xff\xfe\n", "UTF-8"),
            (b"task-2\n\x00\n", "line 2: id="),
        ],
    )
    def test_with_an_invalid_line_is_refused_completely(  # noqa: PLR0917 - most are fixtures
        self, line: str, content: bytes, words: str, run: Run, dead: None, client: redis.Redis, tmp_path: Path
    ) -> None:
        file = tmp_path / "ids.txt"
        file.write_bytes(content)
        before = snapshot(client)

        done = run(*line.split(), "--ids-file", str(file))

        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr
        assert done.stderr.replace("\n", "").isprintable()
        assert differences(before, snapshot(client)) == []

    @pytest.mark.parametrize("line", IDS)
    @pytest.mark.parametrize("more", ["data", "--all", "--id-prefix x"])
    def test_excludes_ids_and_filters(self, line: str, more: str, run: Run, dead: None) -> None:
        done = run(*line.split(), *more.split(), "--ids-file", "-", input="task-2")

        assert (done.exit_code, done.stdout) == (2, "")

    def test_that_is_empty_selects_nothing(self, run: Run, dead: None) -> None:
        for line in IDS:
            done = run(*line.split(), "--json", "--ids-file", "-", input="\r\n")
            assert [*json.loads(done.stdout).values()] == [0]

    def test_needs_a_confirmation(self, run: Run, dead: None) -> None:
        done = run("scheduled", "run-now", "--ids-file", "-", input="task-2\ndata\n")

        assert done.exit_code == 2
        assert "Run now 2 entries? There is no terminal for the question: add --yes" in done.stderr

    def test_that_does_not_exist_is_one_message(self, run: Run) -> None:
        done = run("scheduled", "cancel", "--ids-file", "/nowhere", "--yes", "--json")

        assert done.exit_code == 2
        assert "/nowhere" in json.loads(done.stdout)["error"]


class TestApp:
    @pytest.mark.parametrize("name", NEEDS_APP)
    def test_that_is_missing_is_a_one_line_error(self, name: str, run: Run) -> None:
        done = run(name, "--json")

        assert done.exit_code == 2
        told = json.loads(done.stdout)["error"]
        assert told == f"{name} needs a Celery app: redis-queue -A APP {name}, or celery -A APP redis-queue {name}"

    def test_that_cannot_be_loaded_is_a_one_line_error_without_the_password(self, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text(f"raise ValueError('redis://:{PASSWORD}@host/0 \\x1b[2J')")
        for app, words in (("broken", "redis://***@host/0"), ("nowhere", "nowhere")):
            done = redis_queue("-A", app, "queues", PYTHONPATH=str(tmp_path))

            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert done.stderr.startswith(f"error: cannot load the app '{app}': ")
            assert words in done.stderr
            assert PASSWORD not in done.stderr
            assert "\x1b" not in done.stderr

    def test_determines_the_redis(self, redis_server: RedisServer, client: redis.Redis) -> None:
        DelayQueue("scheduled", client).push("x", id="mine", delay=60)
        environment = {"BROKER": f"redis+socket://{redis_server.socket}", "STORE": redis_server.url}
        app = ("-A", "tests.support.celery.migrating")

        found = redis_queue(*app, "scheduled", "list", "--json", **environment)
        refused = redis_queue(*app, "queues", "--url", "redis://elsewhere", **environment)
        released = redis_queue(*app, "release-all", "--dry-run", "--json", **environment)

        assert [entry["id"] for entry in json.loads(found.stdout)["entries"]] == ["mine"]
        assert (refused.returncode, "--url" in refused.stderr) == (2, True)
        assert [task["id"] for task in json.loads(released.stdout)["tasks"]] == ["mine"]

    def test_determines_the_validated_redis(self, run_in_app: Run, app: Celery, client: redis.Redis) -> None:
        client.config_resetstat()

        done = run_in_app("validate", "--messages", "20", "--lose-every", "0", "--json")

        assert (done.exit_code, json.loads(done.stdout)["passed"]) == (0, True)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] > 0
        assert client.keys("*validate*") == []


@pytest.mark.parametrize("leaf", leaves(group))
def test_both_groups_refuse_unknown_options(leaf: str, run: Run, run_in_app: Run) -> None:
    words = leaf.split()
    line = [*words[:1], *(["x"] if words[0] == "queue" and len(words) > 1 else []), *words[1:], "--nonsense"]
    assert leaves(celery_cli.group) == leaves(group)

    for done in (run(*line), run_in_app(*line)):
        assert (done.exit_code, done.stdout) == (2, "")
        assert "--nonsense" in done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nosuch --json", "No such command 'nosuch'"),
        ("dead nosuch --json", "No such command 'nosuch'"),
        ("--nonsense stats --json", "No such option"),
        ("-A no.such.module stats --json", "cannot load the app"),
    ],
)
def test_with_json_all_errors_are_json(line: str, words: str) -> None:
    done = redis_queue(*line.split())
    assert done.returncode == 2
    assert words in json.loads(done.stdout)["error"]
    assert words in done.stderr


def test_with_json_an_aborted_confirmation_is_json(
    run: Run, tasks: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr("redis_queue.cli.actions.confirm", away)
    assert json.loads(run("scheduled", "cancel", "--all", "--json").stdout) == {"error": "interrupted"}


class TestEnvironment:
    def test_ctrl_c_during_a_purge_keeps_the_rest(self, redis_url: str, client: redis.Redis) -> None:
        many = 200_000
        queue = RedisQueue("orders", client)
        for _ in range(many // 10_000):
            queue.put_many([0] * 10_000)
        command = [sys.executable, "-m", "redis_queue", "queue", "orders", "purge", "--yes", "--json"]
        environment = {**os.environ, "REDIS_QUEUE_URL": redis_url}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_until(lambda: queue.stats().ready < many, description="the first batch to be deleted")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)

        told: dict[str, Any] = json.loads(out)
        assert (process.returncode, err) == (1, "error: interrupted: run it again to go on\n")
        assert 0 < told["deleted"] < many
        assert queue.stats().ready == many - told["deleted"]
        assert client.hlen("{redis_queue:queue:orders}:records") == many - told["deleted"]

    @pytest.mark.parametrize(
        "line",
        [
            *(f"redis-queue {line}" for line in WRITE_MUCH),
            "redis-queue -A tasks schedules export",
            *(f"celery -A tasks redis-queue {line}" for line in ("queues", "scheduled export", "schedules export")),
        ],
    )
    def test_a_closed_pipe_is_not_a_traceback(self, line: str, redis_server: RedisServer, client: redis.Redis) -> None:
        RedisQueue("orders", client).put("x")
        DelayQueue("scheduled", client).push("x", delay=60)
        program, *arguments = line.split()
        # Nothing else of this environment: PYTHONUNBUFFERED would write each line at once.
        environment = {"PATH": os.environ["PATH"], "REDIS_URL": redis_server.url}
        with subprocess.Popen(
            [Path(sys.executable).with_name(program), *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(20) == 1

    def test_letters_outside_the_locale_are_escaped(self, redis_url: str, client: redis.Redis) -> None:
        queue = RedisQueue("größe-№", client)
        queue.put("x")
        queue.pause()
        plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "REDIS_QUEUE_URL": redis_url}

        for line in ("queues", "top", "doctor"):
            done = redis_queue(line, **plain, COLUMNS="200")
            assert done.returncode == 0, done.stderr
            assert done.stdout.isascii()
            assert r"gr\xf6\xdf" in done.stdout
