"""`celery -A app redis-queue …`: output and exit codes."""

from __future__ import annotations

import json
import signal
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redis_queue.celery import DurableTasks
from redis_queue.celery.migrate import adopt
from redis_queue.cli import celery as cli
from redis_queue.store.chunks import CHUNK
from redis_queue.store.keys import Keys
from tests.support.celery.brokers import Broker
from tests.support.celery.commands import run_command, start_command
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

LATER = datetime(2030, 1, 1, tzinfo=timezone.utc)
LATER_TEXT = "2030-01-01T00:00:00+00:00"
LATER_SHOWN = LATER.strftime("%Y-%m-%d %H:%M:%S UTC")


@pytest.fixture
def app(app: Celery) -> Celery:
    """The app, whose messages become visible again after all delays."""
    app.conf.broker_transport_options = {"visibility_timeout": 10 * 365 * 86400}
    return app


@pytest.fixture
def environment(redis_server: RedisServer, client: redis.Redis) -> dict[str, str]:
    """Environment variables that point `tests.support.celery.migrating` to the shared Redis."""
    return {"BROKER": f"redis+socket://{redis_server.socket}", "STORE": redis_server.url}


def run(app: Celery, *arguments: str) -> Result:
    return CliRunner().invoke(cli.group, arguments, obj=SimpleNamespace(app=app), catch_exceptions=False)


def stock(app: Celery) -> Celery:
    return Celery("stock", broker=app.conf.broker_url, set_as_current=False)


class TestEveryCommand:
    def test_is_registered_with_celery(self, environment: dict[str, str]) -> None:
        done = run_command("--help", **environment)

        assert done.returncode == 0, done.stderr
        assert all(name in done.stdout for name in ("dispatch", "adopt", "release-all", "doctor"))

    @pytest.mark.parametrize("name", ["dispatch", "adopt", "release-all", "doctor"])
    def test_help_lists_the_exit_codes(self, name: str, app: Celery) -> None:
        done = run(app, name, "--help")

        assert done.exit_code == 0
        assert "--json" in done.output
        assert "Exit code 0" in done.output

    @pytest.mark.parametrize("name", ["dispatch", "adopt", "release-all", "doctor"])
    def test_reports_invalid_settings_in_one_line(self, name: str, app: Celery) -> None:
        app.conf.redis_queue_shard = 3

        done = run(app, name)

        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("error: unknown setting redis_queue_shard: did you mean redis_queue_shards?")
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize("name", ["dispatch", "adopt", "release-all", "doctor"])
    def test_reports_an_unavailable_store_in_one_line(self, name: str) -> None:
        done = run(Celery("tests", broker="redis://:secret@127.0.0.1:1/0", set_as_current=False), name)

        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert "secret" not in done.stderr

    @pytest.mark.parametrize("arguments", [["dispatch", "-l", "loud"], ["adopt", "--dryrun"], ["release"]])
    def test_refuses_unknown_arguments(self, arguments: list[str], app: Celery) -> None:
        assert run(app, *arguments).exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dispatch_sends_due_tasks_until_it_is_stopped(
    number: signal.Signals, environment: dict[str, str], client: redis.Redis, app: Celery
) -> None:
    DurableTasks(app, leases=False)
    with start_command("dispatch", "--json", **environment) as process:
        app.send_task("shop.remind", countdown=0.01, task_id="the-task")
        app.send_task("shop.remind", countdown=3600)
        wait_until(lambda: client.llen("celery") == 1, description="the task in its queue")
        told = time.monotonic()
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    # The process takes a moment to exit; a task that is due in an hour does not delay it.
    assert time.monotonic() - told < 4
    assert (process.returncode, json.loads(out)) == (0, {"sent": 1, "failed": 0})


class TestAdopt:
    def test_dry_run_lists_the_tasks(self, app: Celery, client: redis.Redis) -> None:
        stock(app).send_task("shop.remind", eta=LATER, task_id="the-task")

        done = run(app, "adopt", "--dry-run", "--utc")
        as_json = run(app, "adopt", "--dry-run", "--json")

        assert done.stdout == f"the-task  shop.remind  {LATER_SHOWN}  celery\n1 would be adopted, 0 would stay\n"
        task = {"id": "the-task", "task": "shop.remind", "due_at": LATER_TEXT, "in": "celery"}
        assert json.loads(as_json.stdout) == {"tasks": [task], "left": []}
        assert done.exit_code == as_json.exit_code == 0
        assert client.llen("celery") == 1

    def test_reports_its_result(self, app: Celery) -> None:
        stock(app).send_task("shop.remind", eta=LATER, task_id="the-task")

        done = run(app, "adopt")

        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == "1 adopted, 0 taken out that were stored already, 0 left in the broker\n"

    def test_exits_with_1_and_the_reason_if_tasks_remain(self, app: Celery) -> None:
        DurableTasks(app, leases=False)
        app.send_task("shop.remind", [1], eta=LATER, task_id="the-task")
        stock(app).send_task("shop.remind", [2], eta=LATER, task_id="the-task")

        done = run(app, "adopt")

        assert done.exit_code == 1
        assert done.stdout.splitlines()[0] == "the-task  celery  another task with its id is stored"

    def test_exits_with_2_if_it_refuses(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        stock(app).send_task("shop.remind", eta=LATER)

        def held(self: Any, known: Any) -> None:
            raise adopt.HeldByWorkersError("stop them first")

        monkeypatch.setattr(adopt.Adoption, "_refuse_if_held", held)

        done = run(app, "adopt")
        as_json = run(app, "adopt", "--json")

        assert (done.exit_code, done.stdout, done.stderr) == (2, "", "error: stop them first\n")
        assert as_json.exit_code == 2
        assert json.loads(as_json.stdout) == {"adopted": 0, "removed": 0, "left": [], "error": "stop them first"}

    def test_interrupted_run_reports_its_progress(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        stock(app).send_task("shop.remind", eta=LATER)
        before = signal.getsignal(signal.SIGTERM)

        def terminate(self: Any, known: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(adopt.Adoption, "_refuse_if_held", terminate)

        done = run(app, "adopt")

        assert (done.exit_code, done.stderr) == (1, "error: interrupted: run it again to go on\n")
        # The current batch is completed.
        assert done.stdout.startswith("1 adopted")
        assert signal.getsignal(signal.SIGTERM) is before

    def test_needs_a_redis_broker(self, rabbitmq_url: str, redis_server: RedisServer) -> None:
        with Broker(rabbitmq_url) as broker:
            done = run(broker.app(redis_queue_url=redis_server.url), "adopt")

        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("error: the broker is amqp: must be Redis")


class TestReleaseAll:
    @pytest.fixture(autouse=True)
    def waiting(self, app: Celery) -> None:
        DurableTasks(app, leases=False)
        app.send_task("shop.remind", eta=datetime(2020, 1, 1, tzinfo=timezone.utc), task_id="due")
        app.send_task("shop.remind", eta=LATER, task_id="later")

    def test_dry_run_lists_the_tasks(self, app: Celery, client: redis.Redis) -> None:
        done = run(app, "release-all", "--dry-run", "--utc")
        as_json = json.loads(run(app, "release-all", "--dry-run", "--json").stdout)

        assert done.exit_code == 0
        assert done.stdout.splitlines()[1:] == [
            f"later  shop.remind  {LATER_SHOWN}  celery",
            "2 would be released, and 0 of flows; 0 schedules would be sent no more",
        ]
        assert [task["id"] for task in as_json["tasks"]] == ["due", "later"]
        assert client.exists("celery") == 0

    def test_reports_its_result(self, app: Celery, client: redis.Redis) -> None:
        done = run(app, "release-all")

        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == "2 released, 1 of them due, and 0 of flows; 0 stay, 0 dead letters and 0 schedules\n"
        assert client.llen("celery") == 2

    def test_works_as_a_process(self, environment: dict[str, str], client: redis.Redis) -> None:
        done = run_command("release-all", "--json", **environment)

        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "released": 2,
            "due": 1,
            "from_flows": 0,
            "left": [],
            "staying": 0,
            "dead": 0,
            "schedules": 0,
        }

    def test_exits_with_1_and_the_reason_if_tasks_stay(self, app: Celery, client: redis.Redis) -> None:
        client.set("celery", "not a list")

        done = run(app, "release-all", "--json")

        report = json.loads(done.stdout)
        assert done.exit_code == 1
        assert (report["released"], report["staying"]) == (0, 2)
        assert [row["id"] for row in report["left"]] == ["due", "later"]
        assert "expected a list" in report["left"][0]["reason"]

    def test_exits_with_1_if_the_broker_is_unavailable(self, redis_server: RedisServer) -> None:
        app = Celery("tests", broker="redis://:secret@127.0.0.1:1/0", set_as_current=False)
        app.conf.redis_queue_url = redis_server.url

        done = run(app, "release-all")

        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("error: the broker cannot be reached: ")
        assert "secret" not in done.stderr


HOSTILE = ["\x1b]0;owned\x07", "\x1b[2J", "a\rb", "a\nb", "\u202eevil", "\x9b31m", "\udcff"]


class TestHostileNames:
    @pytest.mark.parametrize("name", HOSTILE, ids=ascii)
    @pytest.mark.parametrize("verb", ["adopt", "release-all"])
    def test_are_escaped_on_the_terminal_and_unchanged_in_json(
        self, app: Celery, client: redis.Redis, verb: str, name: str
    ) -> None:
        if verb == "release-all":
            DurableTasks(app, leases=False)
        app.send_task(f"task {name}", eta=LATER, task_id="the-task")

        done = run(app, verb, "--dry-run")
        as_json = json.loads(run(app, verb, "--dry-run", "--json").stdout)

        assert done.exit_code == 0
        assert all(char.isprintable() or char == "\n" for char in done.stdout)
        assert done.stdout.startswith(f"the-task  task {ascii(name)[1:-1]}  ")
        assert done.stdout.count("\n") == 2
        assert as_json["tasks"][0]["task"] == f"task {name}"

    def test_may_be_an_id_that_is_not_utf_8(self, app: Celery, client: redis.Redis) -> None:
        delayed = DurableTasks(app, leases=False)
        app.send_task("shop.remind", eta=LATER, task_id="the-task")
        keys = Keys("redis_queue", "delay", "scheduled", 0)
        client.hset(keys.records, b"\xff\x1b", client.hget(keys.records, "the-task") or b"")
        client.zadd(keys.waiting, {b"\xff\x1b": LATER.timestamp() * 1000})

        done = run(app, "release-all", "--dry-run", "--utc")

        assert done.exit_code == 0
        assert r"\udcff\x1b" in done.stdout
        assert delayed.cancel_matching(due_after=datetime(2029, 1, 1, tzinfo=timezone.utc)) == 1

    def test_are_escaped_in_a_reason(self, app: Celery) -> None:
        DurableTasks(app, leases=False)
        app.send_task("shop.remind", [1], eta=LATER, task_id="x" * 9)
        stock(app).send_task("shop.remind", eta=LATER, task_id="bad\x1b[2J")

        done = run(app, "adopt")

        assert done.exit_code == 1
        assert "\x1b" not in done.stdout
        assert r"bad\x1b[2J" in done.stdout

    def test_are_escaped_in_an_error(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        stock(app).send_task("shop.remind", eta=LATER)

        def held(self: Any, known: Any) -> None:
            raise adopt.HeldByWorkersError("such as \x1b[2J")

        monkeypatch.setattr(adopt.Adoption, "_refuse_if_held", held)

        assert run(app, "adopt").stderr == "error: such as \\x1b[2J\n"
        assert json.loads(run(app, "adopt", "--json").stdout)["error"] == "such as \x1b[2J"


class TestProcess:
    @pytest.fixture(autouse=True)
    def waiting(self, app: Celery) -> None:
        """Waiting tasks, one with a name that is not ASCII."""
        DurableTasks(app, leases=False)
        for number in range(5):
            app.send_task("лавка.№", eta=LATER, task_id=f"the-task-{number}")

    def test_escapes_letters_that_the_locale_lacks(self, environment: dict[str, str]) -> None:
        plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

        done = run_command("release-all", "--dry-run", **environment, **plain)

        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(r"the-task-0  \u043b\u0430\u0432\u043a\u0430.\u2116  ")

    def test_closed_output_ends_it_without_a_traceback(self, environment: dict[str, str]) -> None:
        with start_command("release-all", "--dry-run", **environment) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert "Traceback" not in process.stderr.read()
            assert process.wait(10) == 1

    def test_ctrl_c_leaves_every_task_stored_or_released(
        self, app: Celery, client: redis.Redis, proxy: FaultProxy
    ) -> None:
        DurableTasks(app, leases=False).send_many([app.signature("shop.remind") for _ in range(5_000)], countdown=3600)
        # The other batches take longer than the signal.
        proxy.latency = 0.05
        with start_command("release-all", "--json", BROKER=proxy.url, STORE=proxy.url) as process:
            wait_until(lambda: client.llen("celery") > 2 * CHUNK, description="two batches in their queue")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)

        report = json.loads(out)
        assert (process.returncode, err) == (1, "error: interrupted: run it again to go on\n")
        assert 0 < report["released"] < 5_005
        assert report["released"] + report["staying"] == 5_005
        sent = {json.loads(element)["headers"]["id"].encode() for element in client.lrange("celery", 0, -1)}
        stored = set(client.hkeys(Keys("redis_queue", "delay", "scheduled", 0).records))
        # The current batch may be in both; it is sent again with the same ids.
        assert len(sent | stored) == 5_005
        assert len(sent & stored) <= CHUNK
