"""Leases with wrong clocks, of the Redis host or of the workers: only a killed worker loses its tasks."""

from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from redis_queue.celery.leases.leases import LeaseCounters, read_counters
from tests.support.celery.leasing import TIMEOUT, Leasing
from tests.support.celery.leasing_names import WAIT
from tests.support.celery.processes import CeleryProcess
from tests.support.faketime import ClockServer, clock_off_by
from tests.support.marks import thorough
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)

HOUR = 3600
SKEW = 90
WINDOW = 4


def wait_for_lease_at(leasing: Leasing, second: float) -> None:
    """Wait until the lease starts at *second* by the clock of Redis, or later."""
    wait_until(
        lambda: [since for since in leasing.held().values() if 0 <= since - second < HOUR / 2],
        description="the lease to be renewed",
    )


def now(leasing: Leasing) -> int:
    """Return the time of the Redis clock in seconds."""
    return int(leasing.client.eval("return redis.call('TIME')[1] + 0", 0))


@pytest.mark.parametrize("offset", [HOUR, *thorough(-HOUR)])
def test_a_long_task_runs_once(tmp_path: Path, offset: int) -> None:
    with ClockServer(tmp_path) as store, store.client() as client:
        store.set_clock(offset)
        leasing = Leasing(store, client)
        with leasing.busy("one"), leasing.worker("two").ready():
            wait_for_lease_at(leasing, now(leasing) + 2 * TIMEOUT)
            leasing.end_task("one")
            leasing.wait_for_ends(1)
            leasing.wait_until_settled()
            assert leasing.started == leasing.ended
            assert len(leasing.started) == 1


def skew_of(worker: CeleryProcess) -> float:
    """Return how many seconds the clock of *worker*, which has just logged its first line, is ahead."""
    logged = next(line[1:20] for line in worker.output.splitlines() if line.startswith("[20"))
    return (datetime.fromisoformat(logged) - datetime.now()).total_seconds()


@pytest.mark.parametrize("killed", ["ahead", *thorough("behind")])
def test_only_the_messages_of_a_killed_worker_are_delivered_again(killed: str) -> None:
    with RedisServer() as store, store.client() as client:
        settings = {"worker_prefetch_multiplier": WINDOW}
        leasing = Leasing(store, client, settings=settings)
        ids = [leasing.send(WAIT).id for _ in range(5 * WINDOW)]
        with (
            leasing.worker("ahead", pool="prefork", environment=clock_off_by(SKEW)) as ahead,
            leasing.worker("behind", pool="prefork", environment=clock_off_by(-SKEW)) as behind,
        ):
            for name, worker, skew in (("ahead", ahead, SKEW), ("behind", behind, -SKEW)):
                worker.wait_for_output("ready.")
                assert skew_of(worker) == pytest.approx(skew, abs=SKEW / 2)
                for _ in range(WINDOW):
                    leasing.end_task(name)
            leasing.wait_for_ends(2 * WINDOW)
            leasing.wait_for_starts(2 * WINDOW + 2)
            leasing.wait_for_leases(2 * WINDOW)
            # Each worker sweeps several times meanwhile.
            leasing.wait_for_leases(2 * WINDOW, after=now(leasing) + 2 * TIMEOUT)
            assert not read_counters(leasing.app()).restored
            running = set(leasing.started) - set(leasing.ended)

            victim, survivor = (ahead, "behind") if killed == "ahead" else (behind, "ahead")
            victim.kill()
            for _ in ids:
                leasing.end_task(survivor)
            leasing.wait_for_ends(len(ids))
            leasing.wait_until_settled()

            assert sorted(leasing.ended) == sorted(ids)
            (again,) = Counter(leasing.started) - Counter(ids)
            assert again in running
            assert f"[{again}] received" in victim.output
            assert read_counters(leasing.app()) == LeaseCounters(lost=0, restored=WINDOW, dropped=0)
            for trouble in ("lost the lease", "the process that renews leases ended", "Exception in thread"):
                assert trouble not in ahead.output + behind.output
        assert not client.exists(leasing.queue, "unacked", "unacked_index")
