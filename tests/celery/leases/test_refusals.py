"""A broker that refuses commands for a while ends no worker: it waits, says so once, and settles what ran meanwhile."""

from contextlib import ExitStack

import psutil
import pytest

from tests.support.celery.leasing import Leasing, is_keeper
from tests.support.celery.leasing_names import MEASURE, MEASURED, WAIT
from tests.support.celery.processes import CeleryProcess
from tests.support.marks import thorough
from tests.support.servers import RedisServer
from tests.support.store.server_states import REFUSALS
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)

LINE = "the broker refuses commands for now"

REFUSED = (LINE, "Cannot connect to")
"""A Redis with too many clients may close a connection before its refusal is read: then it is a lost connection."""

OF_CONNECTIONS = {"NOAUTH", "max number of clients", "LOADING"}
"""Refusals that begin with closed connections."""


@pytest.mark.parametrize(
    ("first", "strikes", "pool", "atomic"),
    [
        ("OOM", ["NOREPLICAS", "BUSY"], "prefork", True),
        *thorough(
            ("NOAUTH", ["READONLY", "MISCONF", "MASTERDOWN", "NOAUTH"], "threads", True),
            ("LOADING", ["LOADING", "max number of clients", "READONLY"], "solo", True),
            ("MISCONF", ["NOREPLICAS", "READONLY", "MASTERDOWN"], "prefork", False),
            ("BUSY", ["NOREPLICAS", "MASTERDOWN"], "gevent", True),
        ),
    ],
)
def test_worker_waits_says_so_once_and_settles_later(
    notes: RedisServer, *, first: str, strikes: list[str], pool: str, atomic: bool
) -> None:
    with RedisServer("--rdbchecksum", "no") as server, notes.client() as client, server.client() as broker:
        settings = {"redis_queue_atomic_fetch": atomic}
        leasing = Leasing(server, client, settings=settings, broker=broker)
        processes = 1 if pool == "solo" else 2
        worker = leasing.worker(
            *("one", "--concurrency", str(processes)), pool=pool, timeout=60, environment={"NOTES_URL": notes.url}
        )
        with ExitStack() as refusal:
            refusal.enter_context(REFUSALS[first](server))
            with worker:
                worker.wait_for_output(*REFUSED)
                refusal.close()
                worker.wait_for_output("ready.")
                sent: list[str] = []
                for kind in strikes:
                    sent += [leasing.send(WAIT).id for _ in range(processes)]
                    leasing.wait_for_starts(len(sent))
                    refused = refusals(worker)
                    refusal.enter_context(REFUSALS[kind](server))
                    leasing.end_task("one")
                    leasing.wait_for_ends(len(sent) - processes + 1)
                    wait_until(lambda: refusals(worker) > refused, description="the refusal to be noticed")  # noqa: B023
                    refusal.close()
                    if processes > 1:
                        leasing.end_task("one", processes - 1)
                    leasing.wait_for_ends(len(sent))
                    leasing.wait_until_settled()
                assert sorted(leasing.started) == sorted(sent)
                assert worker.output.count(LINE) <= len(strikes) + 1
                assert "Connection to broker lost" not in worker.output or not OF_CONNECTIONS.isdisjoint(strikes)
                assert "Unrecoverable" not in worker.output
                assert worker.finish() == 0


@pytest.mark.parametrize("kind", ["away", "NOREPLICAS"])
def test_processes_that_are_killed_before_the_worker_is_ready_are_replaced(notes: RedisServer, kind: str) -> None:
    with RedisServer() as server, notes.client() as client, ExitStack() as refusal:
        leasing = Leasing(server, client)
        if kind == "away":
            server.kill()
            refusal.callback(server.restart)
        else:
            refusal.enter_context(REFUSALS[kind](server))
        with leasing.worker(
            *("one", "--concurrency", "2"), pool="prefork", timeout=60, environment={"NOTES_URL": notes.url}
        ) as worker:
            worker.wait_for_output(*REFUSED)
            before = processes_of(worker)
            before[0].kill()
            if kind == "away":
                # The worker connects, and has not looked at its processes yet.
                wait_until(lambda: before[0].status() == psutil.STATUS_ZOMBIE, description="the end of a process")
            else:
                # At each refusal it replaces those that have ended.
                wait_until(lambda: not psutil.pid_exists(before[0].pid), description="a look at the processes")
            refusal.close()
            worker.wait_for_output("ready.")
            for _ in range(4):
                leasing.send(MEASURE)
            wait_until(lambda: client.llen(MEASURED) == 4, description="the tasks to run")
            assert len(processes_of(worker)) == len(before) == 2
            assert worker.finish() == 0


def processes_of(worker: CeleryProcess) -> list[psutil.Process]:
    """Return the processes of a worker's pool."""
    return [process for process in psutil.Process(worker.pid).children() if not is_keeper(process)]


def refusals(worker: CeleryProcess) -> int:
    """Return how many lines of *worker* say that the broker refuses commands."""
    return sum(map(worker.output.count, REFUSED))
