"""``redis-queue history``."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone

import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from tests.support.cli.commands import Run


def test_numbers_and_times_stay_whole_on_a_narrow_terminal(run: Run, client: redis.Redis) -> None:
    name = "shop.orders.tasks.send_the_invoice_of_an_order_by_mail"
    times = Histogram.of([750.0] * 10)
    tally = Tally(executed=12_345, failed=10, duration=times, waiting=times, lateness=times)
    before = Tally(executed=12_345, failed=1)
    past = round(time.time() * 1000) - 90 * 60_000
    Reports(client, "redis_queue", lambda: past).write(tallies={Series(name, "orders-with-a-long-name"): before})
    Reports(client, "redis_queue").write(tallies={Series(name, "orders-with-a-long-name"): tally})
    lines = run("history", "--span", "1h").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(text in lines[1] for text in ("12,345", "750 ms", "worse"))


def test_a_release_is_compared_with_the_time_before_it(run: Run, client: redis.Redis) -> None:
    now = datetime.now(timezone.utc)
    past = round(time.time() * 1000) - 600_000
    slow, quick = Series("shop.orders.tasks.pay_the_invoice_of_an_order", "orders"), Series("shop.mail", "mail")
    before = {slow: Tally(1000, duration=Histogram.of([100] * 1000)), quick: Tally(5)}
    after = {slow: Tally(1000, duration=Histogram.of([400] * 1000)), quick: Tally(2000)}
    for at, release, tallies in ((past, "1.0", before), (past + 60_000, "2.0", after)):
        reports = Reports(client, "redis_queue", lambda at=at: at)  # type: ignore[misc]
        reports.write(WorkerRow("w", now, now, release=release), tallies=tallies)
    lines = run("history", "--release", "2.0").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "after release 2.0 was first reported" in lines[0]
    assert ["slower" in lines[2], "shop.mail" in lines[2]] == [True, False]
    assert "100 ms > 400 ms" in " ".join(lines)
    found = json.loads(run("history", "--release", "2.0", "--json").stdout)
    task = found["tasks"][0]
    assert (found["release"]["release"], task["change"], task["before"]["executed"]) == ("2.0", "slower", 1000)
    assert "no data from before" in run("history", "--release", "1.0").stdout
    unknown = run("history", "--release", "2.1")
    assert (unknown.exit_code, "release='2.1': did you mean '2.0'?" in unknown.stderr) == (2, True)
    releases = json.loads(run("workers", "--json").stdout)["releases"]
    assert [(row["release"], row["workers"]) for row in releases] == [("2.0", 0), ("1.0", 0)]
