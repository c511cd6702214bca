"""A worker whose connections receive no data takes tasks on new connections, and shuts down without any."""

from dataclasses import replace

import pytest

from tests.support.celery.leasing import Leasing
from tests.support.celery.leasing_names import WAIT
from tests.support.marks import thorough
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("atomic", [False, *thorough(True)], ids=["pop", "atomic fetch"])
def test_worker_continues_on_a_new_connection_and_shuts_down_without_any(*, atomic: bool) -> None:
    with RedisServer() as store, store.client() as client, FaultProxy(str(store.socket)) as proxy:
        leasing = Leasing(store, client)
        behind = replace(leasing, broker_url=proxy.url, settings={"redis_queue_atomic_fetch": atomic})
        # Without a broker Celery retries its heartbeats again and again, and does nothing else meanwhile.
        with behind.worker("one", "--without-heartbeat", pool="threads").ready() as one:
            leasing.end_task("one")
            leasing.send(WAIT)
            leasing.wait_for_ends(1)
            leasing.wait_until_settled()
            proxy.mute()
            if not atomic:
                # Until then Redis may answer a BRPOP of kombu whose reply is lost. Kombu drops the connection, or
                # another command on it fails first, and Celery replaces all of them.
                one.wait_for_output("dropping stale connection", "Connection to broker lost")
            leasing.end_task("one")
            leasing.send(WAIT)
            leasing.wait_for_ends(2)
            leasing.wait_until_settled()
            proxy.mode = "blackhole"
            assert one.finish() == 0
