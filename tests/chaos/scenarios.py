"""Scenarios: a workload, its servers, and the faults of the servers meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import redis
from kombu.connection import Connection

from chaos.flows import FairFlows, Flows
from chaos.queues import Queues
from chaos.run import Strikes
from chaos.schedules import PeriodicTasks
from chaos.tasks import POPPING, STOCK, Tasks
from chaos.uniques import Uniques
from chaos.workload import Workload
from tests.support.cluster import RedisCluster
from tests.support.proxy import FaultProxy
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer
from tests.support.services import RabbitServer, rabbitmq
from tests.support.store.server_states import REFUSALS
from tests.support.wait import wait_until

OUTAGE: Final = 0.3
TIMEOUT: Final = 2.0
"""Seconds for which a fault waits for requests."""

PAUSE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Site:
    """Workload and strikes of a run."""

    workload: Workload
    strikes: Strikes | None = None


SCENARIOS: Final[dict[str, Callable[[], AbstractContextManager[Site]]]] = {}


def scenario(function: Callable[[], Iterator[Site]]) -> Callable[[], AbstractContextManager[Site]]:
    """Add *function* to the scenarios under its name, which yields the site of a run."""
    found = SCENARIOS[function.__name__.replace("_", " ")] = contextlib.contextmanager(function)
    return found


@contextlib.contextmanager
def on_redis(workload: Callable[..., Workload], **options: Any) -> Iterator[Site]:
    """A workload of Celery with broker and store in one Redis."""
    with RedisServer() as server:
        yield Site(workload(_as_broker(server), server.url, **options))


@contextlib.contextmanager
def on_rabbitmq(workload: type[Flows]) -> Iterator[Site]:
    """A workload on a RabbitMQ that others may use as well, with the store in Redis."""
    queue = f"chaos-{os.getpid()}"
    with RedisServer() as store, rabbitmq() as url:
        try:
            yield Site(workload(url, store.url, queue))
        finally:
            with Connection(url) as connection:
                connection.default_channel.queue_delete(queue)
                for exchange in (queue, f"control-{queue}"):
                    connection.default_channel.exchange_delete(exchange)


@scenario
def kill() -> Iterator[Site]:
    """Processes are killed between any two commands."""
    with RedisServer() as server:
        yield Site(Queues(server.url))


@scenario
def restart_always() -> Iterator[Site]:
    """Like `kill`, and Redis is killed and restarted from its append-only file."""
    with RedisServer(aof="always") as server:
        yield Site(Queues(server.url), Strikes(server.restart, every=0.7))


@scenario
def restart_everysec() -> Iterator[Site]:
    """Like `restart_always` with ``everysec``: Redis writes its file before it replies unless an fsync is running."""
    with RedisServer(aof="everysec") as server:
        yield Site(Queues(server.url), Strikes(lambda: _restart_everysec(server), every=0.7))


@scenario
def flush() -> Iterator[Site]:
    """Redis loses its script cache."""
    with RedisServer() as server, server.client() as client:
        yield Site(Queues(server.url), Strikes(lambda: _flush(client), every=0.05))


@scenario
def cuts() -> Iterator[Site]:
    """Replies are lost, connections are reset, and for a moment no data arrives."""
    with RedisServer(tcp=True) as server, FaultProxy(server.address) as proxy:
        faults = itertools.cycle([FaultProxy.cut, _lose_replies, _silence])
        yield Site(Queues(f"{proxy.url}?socket_timeout=0.2"), Strikes(lambda: next(faults)(proxy), every=0.2))


@scenario
def failover() -> Iterator[Site]:
    """The primary of a Sentinel set is killed, then restarted as a replica."""
    with SentinelSet() as sentinel:
        yield Site(Queues(sentinel.url), Strikes(lambda: _fail_over(sentinel), every=1.0))


@scenario
def node_loss() -> Iterator[Site]:
    """The Cluster node with a queue is killed, then restarted as a replica."""
    with RedisCluster() as cluster:
        keys = itertools.cycle(["{chaos:queue:work}:meta", "{chaos:delay:later:0}:meta"])
        yield Site(Queues(cluster.url), Strikes(lambda: _lose_node(cluster, next(keys)), every=1.0))


SCENARIOS["celery"] = partial(on_redis, Tasks)


@scenario
def celery_restart() -> Iterator[Site]:
    """Like `celery`, and Redis is killed and restarted from its append-only file."""
    with RedisServer(aof="always") as server:
        workload = Tasks(_as_broker(server), server.url)
        yield Site(workload, Strikes(server.restart, every=2.0))


@scenario
def celery_refusals() -> Iterator[Site]:
    """Like `celery`, and Redis refuses commands, each time for another reason."""
    with RedisServer() as server:
        # To load, it would have to be killed: see `celery_restart`.
        states = itertools.cycle(state for name, state in REFUSALS.items() if name != "LOADING")
        yield Site(Tasks(_as_broker(server), server.url), Strikes(lambda: _refuse(server, next(states)), every=0.4))


@scenario
def celery_failover() -> Iterator[Site]:
    """A Celery app behind Sentinels; a primary refuses writes without a replica, and is killed."""
    with SentinelSet() as sentinel:
        for server in sentinel.servers:
            with server.client() as client:
                client.config_set("min-replicas-to-write", 1)
        broker = ";".join(f"sentinel://{host}:{port}" for host, port in sentinel.nodes)
        workload = Tasks(broker, sentinel.url, options={"master_name": sentinel.master_name})
        yield Site(workload, Strikes(lambda: _fail_over(sentinel), every=1.0))


@scenario
def celery_flush() -> Iterator[Site]:
    """Like `celery`, and Redis loses its script cache.

    Not as often as in `flush`: when a worker connects, kombu binds the queue of its remote control by a script of
    redis-py. The worker ends if Redis forgets that script between SCRIPT LOAD and the second EVALSHA.
    """
    with RedisServer() as server, server.client() as client:
        yield Site(Tasks(_as_broker(server), server.url), Strikes(lambda: _flush(client), every=0.3))


@scenario
def celery_cuts() -> Iterator[Site]:
    """Like `celery`, and replies are lost, connections are reset, pause, or receive nothing more."""
    with RedisServer(tcp=True) as server, FaultProxy(server.address) as proxy:
        faults = itertools.cycle([FaultProxy.cut, _lose_replies, _silence, FaultProxy.mute])
        yield Site(Tasks(proxy.url, proxy.url), Strikes(lambda: next(faults)(proxy), every=0.4))


# Beside Celery workers without redis_queue.
SCENARIOS["celery stock"] = partial(on_redis, Tasks, others=(STOCK, STOCK))
# Beside workers without atomic fetch, as while it is rolled out.
SCENARIOS["celery versions"] = partial(on_redis, Tasks, others=(POPPING, POPPING))


@scenario
def celery_elsewhere() -> Iterator[Site]:
    """A Celery app whose broker and store are two Redis servers."""
    with RedisServer() as broker, RedisServer() as store:
        yield Site(Tasks(_as_broker(broker), store.url))


@scenario
def celery_rabbitmq() -> Iterator[Site]:
    """A Celery app on RabbitMQ, with the store in Redis."""
    queue = f"chaos-{os.getpid()}"
    with RedisServer() as store, rabbitmq() as url:
        yield Site(Tasks(url, store.url, queue))


@scenario
def rabbitmq_restart() -> Iterator[Site]:
    """Like `celery_rabbitmq`, and RabbitMQ is killed and restarted."""
    with RedisServer() as store, RabbitServer() as rabbit:
        yield Site(Tasks(rabbit.url, store.url), Strikes(rabbit.restart, every=4.0))


# Limits and rates: tasks retry, fail, are revoked or expire.
SCENARIOS["flow"] = partial(on_redis, Flows)
# Tenants take turns.
SCENARIOS["flow fair"] = partial(on_redis, FairFlows)
# Producers are killed, too.
SCENARIOS["unique"] = partial(on_redis, Uniques)


@scenario
def schedules() -> Iterator[Site]:
    """Periodic tasks that three dispatchers and two beats send, and Redis is killed and restarted."""
    with RedisServer(aof="always") as server:
        yield Site(PeriodicTasks(_as_broker(server), server.url), Strikes(server.restart, every=7.0))


SCENARIOS |= {
    "flow rabbitmq": partial(on_rabbitmq, Flows),
    "flow fair rabbitmq": partial(on_rabbitmq, FairFlows),
    "unique rabbitmq": partial(on_rabbitmq, Uniques),
}


def _as_broker(server: RedisServer) -> str:
    return server.url.replace("unix://", "redis+socket://")


def _restart_everysec(server: RedisServer) -> bool:
    with server.client() as client:
        # During an fsync Redis replies first and writes up to two seconds later. A paused Redis cannot start one
        # between this check and the kill.
        client.client_pause(PAUSE_MS, all=False)
        held_back = client.info("persistence")["aof_buffer_length"] > 0
    server.restart()
    return bool(held_back)


def _flush(client: redis.Redis) -> None:
    client.script_flush()


def _lose_replies(proxy: FaultProxy) -> None:
    dropped = proxy.bytes_dropped
    proxy.mode = "drop_replies"
    # Perhaps all processes have been killed: then the run has to go on, to start others.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: proxy.bytes_dropped > dropped, timeout=TIMEOUT, description="a lost reply")
    proxy.mode = "pass"


def _silence(proxy: FaultProxy) -> None:
    proxy.mode = "blackhole"
    time.sleep(OUTAGE)  # the duration is the fault
    proxy.mode = "pass"


def _fail_over(sentinel: SentinelSet) -> bool:
    sentinel.fail_over()
    sentinel.heal()
    return True


def _refuse(server: RedisServer, state: Callable[[RedisServer], AbstractContextManager[None]]) -> None:
    with state(server):
        time.sleep(OUTAGE)  # the duration is the fault


def _lose_node(cluster: RedisCluster, key: str) -> bool:
    cluster.kill_primary_of(key)
    cluster.heal()
    return True
