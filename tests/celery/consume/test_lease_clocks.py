"""TaskLeases with a clock of the Redis host that is an hour off: a living worker still keeps its task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.celery.leasing import TIMEOUT, Leasing
from tests.support.faketime import ClockServer
from tests.support.wait import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.timeout(180)]

HOUR = 3600


def wait_for_lease_at(leasing: Leasing, second: float) -> None:
    """Wait until the lease starts at *second* by the clock of Redis, or later."""
    wait_until(
        lambda: [since for since in leasing.held().values() if 0 <= since - second < HOUR / 2],
        description="the lease to be renewed",
    )


def now(leasing: Leasing) -> int:
    """Return the time of the Redis clock in seconds."""
    return int(leasing.client.eval("return redis.call('TIME')[1] + 0", 0))


@pytest.mark.parametrize("offset", [-HOUR, HOUR])
def test_a_long_task_runs_once(tmp_path: Path, offset: int) -> None:
    with ClockServer(tmp_path) as store, store.client() as client:
        store.set_clock(offset)
        leasing = Leasing(store, client, f"redis+socket://{store.socket}")
        with leasing.busy("one"), leasing.worker("two") as two:
            two.wait_for_output("ready.")
            wait_for_lease_at(leasing, now(leasing) + 2 * TIMEOUT)
            leasing.end_task("one")
            leasing.wait_for_ends(1)
            leasing.wait_until_settled()
            assert leasing.started == leasing.ended
            assert len(leasing.started) == 1
