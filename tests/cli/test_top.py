"""`redis-queue top`: its screen, its updates and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.cli.top_screen import Rates, draw, rates, short
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.queue_row import Overview, QueueRow
from tests.support.cli.commands import Run
from tests.support.cli.terminal import Terminal, terminal
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

AT = datetime(2030, 1, 1, tzinfo=timezone.utc)
LEAVES_SCREEN, SHOWS_CURSOR = "\x1b[?1049l", "\x1b[?25h"


def ended_cleanly(shown: Terminal) -> bool:
    assert shown.end() == 0, shown.printed
    assert "Traceback" not in shown.printed
    assert shown.printed.rindex(LEAVES_SCREEN) > shown.printed.rindex("\x1b[?1049h")
    assert shown.printed.rindex(SHOWS_CURSOR) > shown.printed.rindex("\x1b[?25l")
    return shown.settings() == shown.at_first


class TestLive:
    @pytest.mark.parametrize("way", ["q", signal.SIGINT, signal.SIGTERM])
    def test_updates_until_a_key_or_signal_and_restores_the_terminal(
        self, way: str | signal.Signals, redis_url: str, client: redis.Redis
    ) -> None:
        RedisQueue("orders", client).put("x")

        with terminal("top", "--interval", "0.2", REDIS_QUEUE_URL=redis_url) as shown:
            shown.wait_for("orders")
            assert shown.settings() != shown.at_first
            RedisQueue("mails", client).put("x")
            shown.type("x")
            shown.wait_for("mails")
            if isinstance(way, str):
                shown.type(way)
            else:
                shown.process.send_signal(way)
            assert ended_cleanly(shown)

    def test_an_outage_of_redis_is_shown_and_survived(self) -> None:
        with RedisServer(tcp=True, password="s3cr3t") as server:
            with server.client() as client:
                RedisQueue("orders", client).put("x")
            with terminal("top", "--interval", "0.2", REDIS_QUEUE_URL=server.url) as shown:
                shown.wait_for("orders")
                server.kill()
                shown.wait_for("Redis cannot be reached")
                # The last known values stay.
                shown.wait_for("orders")
                server.restart()
                with server.client() as client:
                    RedisQueue("after", client).put("x")
                shown.wait_for("after")
                shown.type("q")
                assert ended_cleanly(shown)
                assert "s3cr3t" not in shown.printed

    def test_starts_without_redis_and_ends_after_count_updates(self) -> None:
        url = "redis://:s3cr3t@127.0.0.1:1/0"
        with terminal("top", "--interval", "0.2", "--count", "2", REDIS_QUEUE_URL=url) as shown:
            assert ended_cleanly(shown)
            assert "Redis cannot be reached" in shown.printed
            assert "s3cr3t" not in shown.printed


class TestPipe:
    def test_without_a_count_it_prints_once(self, run: Run, orders: RedisQueue) -> None:
        done = run("top")

        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.count("2030-01-01") == 1

    def test_prints_count_times(self, run: Run, orders: RedisQueue) -> None:
        assert run("top", "--count", "3", "--interval", "0.2").stdout.count("2030-01-01") == 3

    def test_json_is_one_object_a_line_with_rates_from_the_second_on(self, redis_url: str, client: redis.Redis) -> None:
        queue = RedisQueue("orders", client)
        queue.put("first")
        options = ["--url", redis_url, "--json", "--count", "1000", "--interval", "0.2"]
        with subprocess.Popen(
            [sys.executable, "-m", "redis_queue", "top", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            looks = [json.loads(process.stdout.readline())]
            queue.put_many(range(10))
            while len(looks) < 2 or not looks[-1]["queues"][0]["rates"]["put"]:
                looks.append(json.loads(process.stdout.readline()))
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0

        assert looks[0]["queues"][0]["rates"] is None
        before, after = looks[-2:]
        seconds = (datetime.fromisoformat(after["at"]) - datetime.fromisoformat(before["at"])).total_seconds()
        row = after["queues"][0]
        assert (row["name"], row["ready"], row["put"]) == ("orders", 11, 11)
        assert row["rates"] == {"put": pytest.approx(10 / seconds), "acked": 0, "redelivered": 0}

    def test_its_cost_does_not_grow_with_the_number_of_entries(
        self, run: Run, client: redis.Redis, clock: Clock
    ) -> None:
        queue, delays = RedisQueue("orders", client, clock=clock), DelayQueue("mails", client, clock=clock)

        def calls() -> dict[str, int]:
            client.config_resetstat()
            assert run("top").exit_code == 0
            return {name: stats["calls"] for name, stats in client.info("commandstats").items()}

        queue.put("x", delay=60)
        queue.put("x")
        delays.push("x", delay=60)
        # The first call loads the scripts.
        calls()
        few = calls()
        queue.put_many(range(2000))
        queue.put_many(range(2000), delay=60)
        for number in range(500):
            delays.push(number, delay=60)

        assert calls() == few
        assert not {"cmdstat_hgetall", "cmdstat_keys", "cmdstat_lrange", "cmdstat_scan"} & set(few)


def row(name: str, **counts: int) -> QueueRow:
    return QueueRow("queue", name, **counts)


class TestRates:
    def test_are_differences_per_second(self) -> None:
        before = Overview(AT, [row("a", put=10, acked=5, redelivered=1)])
        now = Overview(AT + timedelta(seconds=2), [row("a", put=30, acked=6, redelivered=1), row("new", put=9)])

        assert rates(before, now) == {("queue", "a"): Rates(10, 0.5, 0)}

    @pytest.mark.parametrize(
        ("before", "now", "expected"),
        [
            (None, Overview(AT, [row("a")]), {}),
            # The clock of the server was set back.
            (Overview(AT, [row("a")]), Overview(AT - timedelta(1), [row("a", put=5)]), {}),
            # The queue was destroyed and filled again.
            (
                Overview(AT, [row("a", put=100)]),
                Overview(AT + timedelta(seconds=1), [row("a", put=3)]),
                {("queue", "a"): Rates(0, 0, 0)},
            ),
        ],
    )
    def test_are_plausible_after_a_clock_step_or_a_destroy(
        self, before: Overview | None, now: Overview, expected: dict[object, Rates]
    ) -> None:
        assert rates(before, now) == expected


MANY = [row(f"queue-{number:03}", ready=number, dead=99 - number, put=10**9) for number in range(100)]


class TestFrame:
    @pytest.mark.parametrize(("width", "height"), [(80, 24), (20, 5), (200, 50), (80, None)])
    def test_fits_the_screen(self, width: int, height: int | None) -> None:
        rows = [row("n" * 200, ready=10**15), row("全角" * 40), row("\x1b[2J\n\u202e"), *MANY]
        speeds = {(item.kind, item.name): Rates(123_456.7, 99_999.5, 0.04) for item in rows}

        lines = draw("prefix" * 30, Overview(AT, rows), speeds, "backlog", width=width, height=height, error="e" * 300)

        assert all(line.isprintable() for line in lines)
        assert max(map(len, lines)) <= max(width, 80)
        assert height is None or len(lines) <= height

    @pytest.mark.parametrize(
        ("sort", "first"),
        [("backlog", "queue-099"), ("dead", "queue-000"), ("name", "queue-000"), ("rate", "queue-050")],
    )
    def test_the_order_can_be_chosen(self, sort: str, first: str) -> None:
        speeds = {("queue", "queue-050"): Rates(5, 0, 0)}

        lines = draw("p", Overview(AT, MANY), speeds, sort, height=12)  # type: ignore[arg-type]

        assert lines[4].startswith(first)
        assert lines[-1].startswith("and ")

    def test_the_error_of_a_broken_queue_is_shown_below(self) -> None:
        lines = draw("p", Overview(AT, [QueueRow("delay", "bad", error="is a string\x1b"), row("good")]), {}, "name")

        assert lines[-1] == "error: delay:bad: is a string\\x1b"
        assert any(line.startswith("good") for line in lines)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0, "0"),
            (0.04, "0.0"),
            (0.25, "0.2"),
            (9_999, "9,999"),
            (9_999.4, "9,999"),
            (10_000, "10.0k"),
            (123_456, "123k"),
            (999_999, "1.0M"),
            (4_500_000, "4.5M"),
            (10**18, "many"),
        ],
    )
    def test_numbers_are_short(self, value: float, text: str) -> None:
        assert short(value) == text
        assert len(text) <= 6


def test_a_queue_with_invalid_settings_does_not_hide_the_others(
    run: Run, orders: RedisQueue, client: redis.Redis
) -> None:
    client.hset("redis_queue:registry", "delay:broken", b'{"max_deliveries": 1, "shards": 0}')

    lines = run("top").stdout.splitlines()

    assert any(line.startswith("orders") for line in lines)
    assert lines[-1].startswith("error: delay:broken: shards=0")
    assert [item.name for item in Inspector(client).queues() if item.error] == ["broken"]
