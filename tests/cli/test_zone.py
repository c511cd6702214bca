"""Times are in the zone of the user, which is named; JSON is in UTC. Every table names its Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue, connect
from redis_queue.store.urls import url_of
from tests.support.cli.commands import DUE, Run
from tests.support.cli.terminal import terminal
from tests.support.clock import Clock

BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"

Choose = Callable[[str], None]


@pytest.fixture(autouse=True)
def filled(orders: RedisQueue, tasks: DelayQueue, local_zone: Choose) -> None:
    """Fill both queues and set the time zone to Berlin."""
    local_zone(BERLIN)


LINES = {
    "scheduled list": "due (CET)",
    "scheduled show data": "2030-01-01 01:00:30 CET",
    "scheduled forecast --hours 1 --buckets 1": "from (CET)",
    "scheduled cancel data --dry-run": "due (CET)",
    "dead list": "died (CET)",
    "dead show dead": "2030-01-01 01:00:00 CET",
    "dead delete dead --dry-run": "died (CET)",
    "quarantine list": "found (CET)",
    "queue orders peek": "put (CET)",
    "stats": "2030-01-01 01:00:30 CET",
    "top --count 1": "2030-01-01 01:00:00 CET",
}


@pytest.mark.parametrize("line", LINES)
def test_times_are_local_and_the_zone_is_named(line: str, run: Run) -> None:
    assert LINES[line] in run(*line.split()).stdout

    utc = run(*line.split(), "--utc").stdout
    assert "CET" not in utc
    assert "UTC" in utc


def test_a_table_across_a_clock_change_names_the_zone_of_each_time(run: Run, client: redis.Redis, clock: Clock) -> None:
    summer = DelayQueue("summer", client, clock=clock)
    summer.push("x", id="winter", due_at=datetime(2030, 3, 30, 12, tzinfo=timezone.utc))
    summer.push("x", id="summer", due_at=datetime(2030, 3, 31, 12, tzinfo=timezone.utc))

    lines = run("scheduled", "list", "--delay-queue", "summer").stdout.splitlines()

    assert lines[0].split() == ["id", "due", "task", "queue"]
    assert "2030-03-30 13:00:00 CET " in lines[1]
    assert "2030-03-31 14:00:00 CEST " in lines[2]


@pytest.mark.parametrize("line", ["dead list --name late", "dead show letter"])
def test_times_in_reasons_are_local_as_well(line: str, run: Run, client: redis.Redis, clock: Clock) -> None:
    late = DelayQueue("late", client, clock=clock)
    late.push("x", id="letter")
    late.nack(late.claim()[0], dead=True, reason="its worker died at 2030-01-01 00:00:00 UTC")
    assert "died at 2030-01-01 01:00:00 CET" in run(*line.split()).stdout
    for option in ("--utc", "--json"):
        assert "died at 2030-01-01 00:00:00 UTC" in run(*line.split(), option).stdout


def test_json_stays_in_utc(run: Run) -> None:
    (entry, *_) = json.loads(run("scheduled", "list", "--task", "remind", "--json").stdout)["entries"]

    assert entry["due_at"] == DUE.isoformat()


@pytest.mark.parametrize("line", [*LINES, "queues"])
def test_the_output_names_the_redis(line: str, run: Run, redis_url: str) -> None:
    if "show" not in line and "dry-run" not in line:
        assert redis_url.partition("?")[0] in run(*line.split()).stdout


def test_another_prefix_is_named(run: Run, client: redis.Redis) -> None:
    RedisQueue("x", client, prefix="other").put("x")

    assert run("queues", "--prefix", "other").stdout.splitlines()[-1].endswith(", prefix other")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ann:secret@localhost:6380/3", "redis://localhost:6380/3"),
        ("redis://:secret@[::1]", "redis://[::1]:6379/0"),
        ("rediss://:secret@example.org?password=secret", "rediss://example.org:6379/0"),
        ("unix:///run/redis.sock?db=2&password=secret", "unix:///run/redis.sock?db=2"),
        (
            "redis+sentinel://:secret@a:1,b:2,c:3,d:4/1?master_name=m",
            "redis+sentinel://a:1,b:2,c:3,.../1?master_name=m",
        ),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert url_of(connect(url, check=False)) == shown


def test_a_confirmation_shows_the_selected_entries(redis_url: str, orders: RedisQueue) -> None:
    with terminal("dead", "delete", "dead", "--utc", REDIS_QUEUE_URL=redis_url) as shown:
        shown.wait_for("Delete 1 dead letter?")
        shown.type("n\n")
        assert shown.end() == 1

    assert "died (UTC)" in shown.printed
    assert "orders" in shown.printed
    assert orders.stats().dead == 1


@pytest.mark.parametrize(
    ("options", "text", "due"),
    [
        ((), "2030-01-01 01:00:30", "2030-01-01T00:00:30"),
        ((), "2030-01-01 01:00:30 CET", "2030-01-01T00:00:30"),
        ((), "2030-07-01 01:00:30 CEST", "2030-06-30T23:00:30"),
        (("--utc",), "2030-01-01 01:00:30", "2030-01-01T01:00:30"),
        ((), "2030-01-01 01:00:30 UTC", "2030-01-01T01:00:30"),
    ],
)
def test_a_time_is_accepted_as_tables_show_it(
    options: tuple[str, ...], text: str, due: str, run: Run, tasks: DelayQueue
) -> None:
    done = run("scheduled", "reschedule", "data", "--to", text, *options)
    assert (done.exit_code, done.stdout) == (0, "1 rescheduled\n"), done.stderr
    entry = tasks.get("data")
    assert entry is not None
    assert entry.due_at.astimezone(timezone.utc).isoformat() == f"{due}+00:00"
    seen = run("scheduled", "list", "--due-before", text, *options)
    assert "data" not in seen.stdout


@pytest.mark.parametrize("text", ["2030-01-01 01:00:30 PST", "2030-13-01 01:00:30", "2030-07-01 01:00:30 CET"])
def test_a_time_of_another_zone_is_refused(text: str, run: Run) -> None:
    done = run("scheduled", "reschedule", "data", "--to", text)
    assert (done.exit_code, "must" in done.stderr) == (2, True)
