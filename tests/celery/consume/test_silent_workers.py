"""A worker whose connections fall silent takes tasks by new ones, and ends where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.celery.leasing import Leasing
from tests.support.celery.leasing_names import WAIT
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.celery, pytest.mark.timeout(180)]


@pytest.mark.parametrize("atomic", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["pop", "atomic fetch"])
def test_a_worker_goes_on_by_a_new_connection_and_ends_without_any(*, atomic: bool) -> None:
    with RedisServer() as store, store.client() as client, FaultProxy(str(store.socket)) as proxy:
        leasing = Leasing(store, client, f"redis+socket://{store.socket}")
        behind = replace(leasing, broker_url=proxy.url, settings={"redis_queue_atomic_fetch": atomic})
        # Celery itself sends its heartbeats again and again while a broker is away, and does nothing else meanwhile.
        with behind.worker("one", "--without-heartbeat", pool="threads") as one:
            one.wait_for_output("ready.")
            leasing.end_task("one")
            leasing.send(WAIT)
            leasing.wait_for_ends(1)
            leasing.wait_until_settled()
            proxy.mute()
            if not atomic:
                # Until then Redis may answer a BRPOP of kombu's that nobody hears.
                one.wait_for_output("dropping stale connection")
            leasing.end_task("one")
            leasing.send(WAIT)
            leasing.wait_for_ends(2)
            leasing.wait_until_settled()
            proxy.mode = "blackhole"
            assert one.finish() == 0
