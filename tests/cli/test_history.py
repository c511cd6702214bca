"""``redis-queue history``."""

from __future__ import annotations

import time

import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import Series, Tally
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
