"""The reply to a change of a schedule is lost: the call is repeated, and has one effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from redis_queue.schedules.state import Event, State
from redis_queue.store.script_files import load
from tests.support.celery.periodic import Rota, rota_on_one_redis
from tests.support.celery.periodic_names import TICK
from tests.support.proxy import FaultProxy


class Lossy:
    """A rota whose Redis is behind a proxy."""

    def __init__(self, rota: Rota, proxy: FaultProxy) -> None:
        self.direct = rota
        self.behind = replace(rota, store_url=f"{proxy.url}?socket_timeout=1")
        self.proxy = proxy
        self.behind.schedules.put("tick", 3600, TICK, pause_after_failures=2)

    def lose_reply(self) -> None:
        self.proxy.drop_next_reply(matching=load("schedules/change").sha.encode())

    @property
    def state(self) -> State:
        assert not self.proxy.pending_drops
        return self.direct.state("tick")


@pytest.fixture
def lossy() -> Iterator[Lossy]:
    """A schedule that is due in an hour, and a connection that loses replies."""
    with rota_on_one_redis(tcp=True) as rota, FaultProxy(rota.server.address) as proxy:
        lossy = Lossy(rota, proxy)
        yield lossy
        lossy.behind.close()


def test_failure_counts_once(lossy: Lossy) -> None:
    lossy.lose_reply()
    lossy.behind.schedules.store.settle([("tick", Event("ended", 1, "one", text="failed"))])
    assert (lossy.state.failed, lossy.state.streak, lossy.state.is_paused) == (1, 1, False)


def test_failures_of_one_report_count_once_each(lossy: Lossy) -> None:
    lossy.lose_reply()
    ends = [("tick", Event("ended", 1, id_, text="failed")) for id_ in ("one", "two", "three")]
    lossy.behind.schedules.store.settle(ends)
    assert (lossy.state.failed, lossy.state.streak) == (3, 3)
    assert [event.id for event in lossy.direct.schedules.events("tick") if event.kind == "ended"] == [
        "three",
        "two",
        "one",
    ]


def test_run_by_hand_is_sent_once(lossy: Lossy) -> None:
    lossy.lose_reply()
    lossy.behind.schedules.run_now("tick")
    assert lossy.state.runs == 1
    assert lossy.direct.durable.count() == 1


def test_schedule_is_deleted(lossy: Lossy) -> None:
    lossy.lose_reply()
    assert lossy.behind.schedules.delete("tick")
    assert lossy.direct.schedules.get("tick") is None
    assert not lossy.behind.schedules.delete("tick")


def test_equal_failures_that_two_workers_report_count_twice(lossy: Lossy) -> None:
    for id_ in ("one", "two"):
        lossy.direct.schedules.store.settle([("tick", Event("ended", 1, id_, text="failed"))])
    assert lossy.state.failed == 2
