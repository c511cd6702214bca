"""The output and exit codes of every command, also with hostile data in Redis."""

from __future__ import annotations

import io
import json
import os
import re
import sys

import pytest
import redis
from rich.cells import cell_len

from redis_queue import DelayQueue, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.cli import group
from redis_queue.cli.output import show_table
from redis_queue.doctor import server
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.report import Reports
from tests.support.cli.commands import LOOKS, Run, leaves
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.store.stage import differences, snapshot

pytestmark = pytest.mark.usefixtures("unique", "schedules")


@pytest.fixture(autouse=True)
def filled(orders: RedisQueue, tasks: DelayQueue, failed: Failures, reports: Reports, flows: Flows) -> None:
    """Fill both queues, keep failures, write the report of a worker, and declare flows."""


@pytest.mark.parametrize("name", LOOKS)
def test_a_read_command_prints_the_expected_output_and_changes_nothing(
    name: str, run: Run, client: redis.Redis
) -> None:
    before, line = snapshot(client), LOOKS[name].split()

    done, in_json = run(*line), run(*line, "--json")

    assert (done.exit_code, done.stderr, in_json.exit_code) == (0, "", 0)
    check(name, done.stdout)
    assert isinstance(json.loads(in_json.stdout), dict)
    assert in_json.stdout.count("\n") == 1
    if "--body" not in line:
        for text in (done.stdout, in_json.stdout):
            assert "secret" not in text
            assert '"order"' not in text
    assert differences(before, snapshot(client)) == []


def test_doctor_prints_a_table(run: Run, orders: RedisQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    # These checks depend on the machine.
    for name in ("version", "clock"):
        monkeypatch.delitem(server.CHECKS, name)
    orders.pause()

    done = run("doctor")

    assert (done.exit_code, done.stderr) == (0, "")
    check("doctor", "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines()))


ACTIONS = {
    "alive",
    "queue pause",
    "queue resume",
    "celery-queue peek",
    "celery-queue move",
    "celery-queue delete",
    "celery-queue purge",
    "terminate",
    "stop",
    "worker shutdown",
    "worker resize",
    "worker clear",
    "flow set",
    "flow pause",
    "flow resume",
    "flow reset",
    "flow move",
    "flow delete",
    "schedules put",
    "schedules resume",
    "schedules run",
    "schedules backfill",
    "schedules declare",
    "schedules import",
    "schedules export",
    "scheduled export",
    "scheduled import",
    "validate",
    "dispatch",
    "adopt",
    "release-all",
    # These have their own tests.
    "incidents",
    "doctor",
    "load-scripts",
    "metrics",
    "web",
}


def test_every_command_is_tested() -> None:
    lines = {line.replace("queue orders", "queue") for line in LOOKS.values()}
    looked = {leaf for leaf in leaves(group) if any(line.startswith(leaf) for line in lines)}

    assert set(leaves(group)) == looked | ACTIONS


def test_every_command_explains_itself_in_80_columns(run: Run) -> None:
    for leaf in leaves(group):
        first, *rest = leaf.split()
        name = ["x"] if rest and (first.endswith("queue") or first == "worker") else []
        done = run(first, *name, *rest, "--help")

        assert done.exit_code == 0, leaf
        assert max(map(len, done.stdout.splitlines())) <= 80, leaf


HOSTILE = "\x1b[2J\x07\r\n\u202e[bold]"


@pytest.mark.parametrize("name", ["queues", "scheduled-list", "scheduled-list-body", "dead-list", "quarantine-list"])
def test_control_characters_in_stored_names_are_escaped(name: str, run: Run, client: redis.Redis, clock: Clock) -> None:
    delays = DelayQueue("scheduled", client, clock=clock)
    delays.push({"task": f"shop{HOSTILE}", "args": [HOSTILE]}, id="[red]x", delay=60)
    delays.push("x", id="gone[/]")
    delays.nack(delays.claim()[0], dead=True, reason=HOSTILE)
    client.rpush("{redis_queue:queue:orders}:quarantine", f"1 3 {len(HOSTILE.encode())}\n\x1b[A{HOSTILE}raw")
    data = client.hget("{redis_queue:delay:scheduled:0}:records", "data")
    client.hset("{redis_queue:delay:scheduled:0}:records", b"\xff\x1b[2J", data)
    client.zadd("{redis_queue:delay:scheduled:0}:waiting", {b"\xff\x1b[2J": 1})
    RedisQueue("[blink]" + "n" * 190, client, clock=clock).put("x")

    done = run(*LOOKS[name].split())

    assert done.exit_code == 0
    assert done.stdout.replace("\n", "").isprintable()
    assert max(map(len, done.stdout.splitlines())) <= 80
    if name == "scheduled-list":
        assert "[red]x" in done.stdout
    assert json.loads(run(*LOOKS[name].split(), "--json").stdout)


class TestExitCodes:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("queue order peek", "did you mean 'orders'?"),
            ("scheduled list --delay-queue sheduled", "did you mean 'scheduled'?"),
            ("dead list --name orderz", "did you mean 'orders'?"),
            ("scheduled list --prefix nope", "no DelayQueue 'scheduled' under the prefix 'nope': "),
            ("stats --prefix a\x1bb", "prefix="),
            ("queues --url http://x", "scheme='http'"),
            ("scheduled list --limit 0", "--limit"),
            ("scheduled list --limit 10001", "--limit"),
            ("queue orders peek --limit 501", "--limit"),
            ("scheduled list --due-before tomorrow", "must be a time like"),
            ("scheduled list --due-before 2030-01-01T00:00", "must have a time zone"),
            ("scheduled list --due-after 999999d", "must be at most ten years"),
            ("scheduled cancel", "give ids, or conditions like --task, or --all"),
            ("scheduled cancel data --all", "give ids, or conditions"),
            ("scheduled reschedule data --to -2h", "must not be in the past"),
            ("scheduled reschedule data", "--to"),
            ("scheduled forecast --buckets 501", "--buckets"),
            ("dead redrive", "give ids, or conditions like --task, or --all"),
            ("dead redrive --all --rate 0", "--rate"),
            ("dead delete", "give ids, or conditions like --task; purge deletes all"),
            ("queue orders purge everywhere", "everywhere"),
            ("nonsense", "nonsense"),
            ("flow set queue:mail --rate 0/s", "rate='0/s': must be a number per s, m, h or d"),
            ("flow set queue:mail --rate 1/fortnight", "rate='1/fortnight': must be a number per s, m, h or d"),
            ("flow set queue:mail --limit -1", "limit=-1: must be a whole number from 0 to 1,000,000"),
            ("flow set queue:mail --limit 1000001", "limit=1000001: must be a whole number from 0 to 1,000,000"),
            ("flow set queue:mail --limit true", "limit='true': must be a whole number, or none"),
            ("flow set queue:mail --limit 1.5", "'1.5': must be a whole number, or none"),
            ("flow set queue:mail --burst 0", "burst=0: must be a whole number from 1 to 1,000,000"),
            ("flow set queue:mail --burst none", "burst='none': must be a whole number"),
            ("flow set queue:mail --limit-each 2", "queue:mail: limit_each= and rate_each= need a flow with fair="),
            ("flow set shop.sync --rate-each 2/s", "shop.sync: limit_each= and rate_each= need a flow with fair="),
            ("flow set queue:mail", "change what? Give a limit, a rate or a burst"),
            ("flow set queue:mial --limit 1", "unknown flow 'queue:mial': did you mean 'queue:mail'?"),
            ("flow show mail", "unknown flow 'mail': did you mean 'queue:mail'?"),
            ("flow reset shop.sink", "unknown flow 'shop.sink': did you mean 'shop.sync'?"),
            ("flow pause shop.sink", "unknown flow 'shop.sink': did you mean 'shop.sync'?"),
            ("flow resume shop.sink", "unknown flow 'shop.sink': did you mean 'shop.sync'?"),
            ("flow pause queue:", "must be followed by the name of a queue"),
            ("flow pause a\x1b[2Jb", "must be 1 to 200 printable characters"),
            ("flow show queue:mail --keys 501", "--keys"),
            ("unique show shop\x1b[2Jsync a", "must be 1 to 200 printable characters"),
            (f"unique show {'x' * 201} a", "must be 1 to 200 printable characters"),
            (f"unique release shop.sync {'x' * 256} --yes", "256 bytes: must be 1 to 255"),
            ("unique release shop.sync a\x07b --yes", "must not have control characters"),
            (f"unique list --task {'x' * 201}", "must be at most 200 printable characters"),
            ("unique list --task a\x1bb", "must be at most 200 printable characters"),
            ("unique list --limit 0", "--limit"),
            ("unique list --limit 10001", "--limit"),
            ("unique show", "TASK"),
            ("unique release shop.sync a b", "b"),
            ("unique releas shop.sync a", "releas"),
            ("failures retry", "give ids, or conditions"),
            ("failures delete failed --all", "give ids, or conditions"),
            ("failures retry failed --args {}", "must be a JSON array"),
            ("failures retry failed --kwargs []", "must be a JSON object"),
            ("failures retry failed --args [NaN", "must be JSON"),
            ("failures retry failed --rate 0", "rate"),
            ("failures list --since yesterday", "must be a time"),
            ("top --interval 0.1", "--interval"),
            ("top --interval 61", "--interval"),
            ("top --interval nan", "--interval"),
            ("top --count 0", "--count"),
            ("top --sort x", "--sort"),
            ("scheduled list --limit -1", "--limit"),
            ("scheduled list --limit 1e12", "--limit"),
            ("scheduled list --limit 1000000000000", "--limit"),
            ("dead list --limit -1", "--limit"),
            ("quarantine list --limit 99999999999999999999999", "--limit"),
            ("queue orders peek --limit 0x10", "--limit"),
            ("dead redrive --all --rate nan", "--rate"),
            ("dead redrive --all --rate -1", "--rate"),
            ("scheduled forecast --hours nan", "--hours"),
            ("scheduled forecast --hours inf", "--hours"),
            ("scheduled forecast --hours 1e308", "--hours"),
            ("validate --visibility-timeout nan", "--visibility-timeout"),
            ("validate --messages 1e6", "--messages"),
        ],
    )
    def test_invalid_arguments_are_one_message_and_exit_code_2(
        self, line: str, words: str, run: Run, client: redis.Redis
    ) -> None:
        before = snapshot(client)

        done = run(*line.split(" "))

        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr
        assert done.stderr.replace("\n", "").isprintable()
        assert words in json.loads(run(*line.split(" "), "--json").stdout)["error"]
        assert differences(before, snapshot(client)) == []

    @pytest.mark.parametrize(
        "line",
        [
            "queue orders purge",
            "scheduled cancel data",
            "scheduled cancel --all",
            "scheduled run-now --all",
            "scheduled reschedule --all --to 2h",
            "dead redrive --all",
            "dead delete dead",
            "dead purge",
            "quarantine purge",
            "failures retry --all",
            "failures delete --all",
            "unique release shop.sync order:7",
        ],
    )
    def test_without_a_terminal_a_confirmation_is_exit_code_2(self, line: str, run: Run, client: redis.Redis) -> None:
        before = snapshot(client)

        done = run(*line.split())

        assert (done.exit_code, done.stdout) == (2, "")
        assert "add --yes" in done.stderr
        assert "add --yes" in json.loads(run(*line.split(), "--json").stdout)["error"]
        assert differences(before, snapshot(client)) == []

    @pytest.mark.parametrize(
        "line", ["scheduled show nobody", "dead show nobody", "quarantine show nobody", "unique show shop.sync nobody"]
    )
    def test_an_unknown_id_is_exit_code_1(self, line: str, run: Run) -> None:
        done = run(*line.split(), "--json")

        assert done.exit_code == 1
        assert "nobody" in json.loads(done.stdout)["error"]

    def test_an_unreachable_redis_is_exit_code_1_and_shows_no_password(self, run: Run) -> None:
        for line in LOOKS.values():
            done = run(*line.split(), "--json", "--url", "redis://:secret@127.0.0.1:1/0")

            assert done.exit_code == 1, line
            assert "cannot be reached" in json.loads(done.stdout)["error"], line
            assert done.stderr.count("\n") == 1, line
            assert "secret" not in done.output, line


def test_without_rich_a_table_names_the_missing_package(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)

    done = run("queues")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "pip install 'celery-redis-queue[cli]', or add --json" in done.stderr
    assert run("queues", "--json").exit_code == 0


def test_a_broken_queue_does_not_hide_the_others(run: Run, client: redis.Redis) -> None:
    client.delete("{redis_queue:queue:orders}:ready")
    client.set("{redis_queue:queue:orders}:ready", "x")

    table, found = run("queues"), json.loads(run("stats", "--json").stdout)

    assert "scheduled" in table.stdout
    assert "orders" not in table.stdout
    assert table.stderr.startswith("error: queue:orders: ")
    assert list(found["errors"]) == ["queue:orders"]


def test_an_unused_prefix_is_named(run: Run, redis_url: str) -> None:
    said = run("queues", "--prefix", "nope").stdout

    assert said.startswith(f"no queues under the prefix 'nope' in {redis_url.partition('?')[0]}\n")
    assert "choose another Redis with --url or REDIS_QUEUE_URL" in said


class TestTables:
    def test_a_number_that_does_not_fit_is_marked_as_cut(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_table([str(number) for number in range(9)], [[10**12] * 9])

        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert "…" in lines[1]

    def test_letters_outside_the_encoding_are_escaped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(kept, "ascii"))
        show_table(["näme"], [["größe"]])
        sys.stdout.flush()

        assert kept.getvalue() == b"n\\xe4me\ngr\\xf6\\xdfe\n"

    def test_a_short_id_stays_on_one_line_and_a_long_one_is_wrapped(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_table(["id", "text"], [["i" * 36, "t" * 200]], keep=["id"])
        assert "i" * 36 in capsys.readouterr().out

        show_table(["id", "text"], [["i" * 255, "t" * 200]], keep=["id"])
        out = capsys.readouterr().out
        assert out.count("i") - 1 == 255
        assert max(map(len, out.splitlines())) <= 80

    def test_columns_that_do_not_fit_are_printed_below_the_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        rows = [["i" * 36, "celery", 5, "shop.tasks.send", "why " * 30], ["j", "celery", 1, None, "short"]]
        show_table(["id", "queue", "n", "task", "reason"], rows, keep=["id"], below=["task", "reason"])

        assert capsys.readouterr().out.splitlines() == [
            "id                                    queue   n",
            f"{'i' * 36}  celery  5",
            "    task: shop.tasks.send",
            "    reason: " + "why " * 16 + "why",
            "    " + "why " * 12 + "why",
            "j                                     celery  1",
            "    reason: short",
        ]

    def test_wide_names_are_wrapped(self, capsys: pytest.CaptureFixture[str]) -> None:
        show_table(["id", "queue", "reason"], [["i" * 36, "界" * 60, "r" * 100]], keep=["id"], below=["reason"])

        out = capsys.readouterr().out
        assert out.count("界") == 60
        assert f"{'i' * 36}  界" in out
        assert max(map(cell_len, out.splitlines())) <= 80


_SOCKET = re.compile(r"unix:///[^\s;]+")

FILES = ROOT / "tests" / "cli" / "golden"


def check(name: str, text: str) -> None:
    """Compare *text* with the file *name*, without the URL of Redis; no line may exceed 80 columns."""
    text = _SOCKET.sub("unix:///redis.sock", text)
    path = FILES / f"{name}.txt"
    if os.environ.get("REDIS_QUEUE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(len, text.splitlines())) <= 80
