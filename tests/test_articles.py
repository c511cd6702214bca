"""Mistakes of published recipes for queues on Redis: each docstring names one, and its test would find it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.delay.model import Push
from redis_queue.store.keys import Keys
from redis_queue.store.script_files import load
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until

QUEUE = Keys("redis_queue", "queue", "orders")
TIMED = Keys("redis_queue", "delay", "orders", 0)

T = TypeVar("T")


def at_once(number: int, act: Callable[[int], T]) -> list[T]:
    """Call *act* in *number* threads at the same moment; return the results, or raise the first error."""
    barrier = threading.Barrier(number)

    def run(index: int) -> T:
        barrier.wait(10)
        return act(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a separate Python process."""
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)


DIE_IN = """
import os, signal, sys
from redis_queue import DelayQueue, RedisQueue
from redis_queue.store.links import DirectLink

def send_and_die(self, *command):
    connection = self._take()
    connection.send_packed_command(connection.pack_command(*command))
    os.kill(os.getpid(), signal.SIGKILL)

queue = RedisQueue("orders", sys.argv[1], lease=0.3)
timed = DelayQueue("orders", sys.argv[1], lease=0.3)
for call in sys.argv[2:]:
    victim = os.fork()
    if not victim:
        DirectLink.send = send_and_die
        eval(call)
        os._exit(1)
    _, status = os.waitpid(victim, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (call, status)
"""


def die_in(client: redis.Redis, url: str, *calls: str) -> None:
    """Run each of *calls* in a process that is killed after it sent the command and before it reads the answer."""
    for name in ("queue/get", "queue/put", "delay/claim"):
        client.script_load(load(name).source)
    subprocess.run([sys.executable, "-c", DIE_IN, url, *calls], cwd=ROOT, check=True, timeout=60)


class TestDataQueue:
    """A data queue made of a list and a sorted set of messages in flight, with a periodic put-back."""

    def test_a_batch_survives_its_put_back_byte_for_byte(self, client: redis.Redis, clock: Clock) -> None:
        """The recipe puts back str() of the cached batch: the next pop returns something else than the put stored."""
        bodies = [
            b"\x00\xff\n",
            bytes(range(256)),
            b"",
            '{"a": "\\u00e9"}',
            {"a": [1.0, None, "é", 2**60]},
            "b'x'",
            [],
            0,
        ]
        queue = RedisQueue("orders", client, clock=clock)
        queue.put_many(bodies, headers={"kind": "é"})
        records = client.hgetall(QUEUE.records)
        for _ in range(3):
            assert [message.body for message in queue.get_many(10)] == bodies
            clock.now += 60_000
            assert queue.put_back().returned == len(bodies)
        assert client.hgetall(QUEUE.records) == records
        found = queue.get_many(10)
        assert [(type(message.body), message.headers) for message in found] == [
            (type(body), {"kind": "é"}) for body in bodies
        ]

    def test_a_crash_between_pop_and_record_loses_nothing(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe calls RPOP, ZADD and SET: a process killed after RPOP takes the item with it."""
        queue = RedisQueue("orders", client, lease=0.3)
        queue.put_many(range(20))
        die_in(client, redis_url, "queue.get()", "queue.get_many(5)", "next(queue.consume())")
        wait_until(lambda: queue.stats().in_flight == 7, description="the claims of the killed processes")
        found = Counter()
        while message := queue.get(timeout=1):
            assert queue.ack(message)
            found[message.body] += 1
        assert found == Counter(range(20))

    def test_a_crash_in_the_middle_of_a_put_leaves_all_or_nothing(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe writes the cached object and the list in two calls: between them the item cannot be found."""
        queue = RedisQueue("orders", client)
        queue.put("warm")
        calls = [
            f"setattr(queue._shards, '_registered', True) or queue.put_many(['{number}'] * 3)" for number in range(2)
        ]
        die_in(client, redis_url, *calls)
        wait_until(lambda: queue.stats().ready == 7, description="the sent commands to arrive")
        assert client.hlen(QUEUE.records) == 7
        assert [message.body for message in queue.get_many(10)] == ["warm", *["0"] * 3, *["1"] * 3]

    def test_concurrent_put_backs_duplicate_nothing(self, client: redis.Redis, redis_url: str, clock: Clock) -> None:
        """The recipe pushes, then deletes: two put-backs at the same moment push everything twice."""
        queue = RedisQueue("orders", client, clock=clock)
        ids = queue.put_many(range(1000))
        assert len(queue.get_many(500) + queue.get_many(500)) == 1000
        clock.now += 60_000
        counts = at_once(6, lambda _: RedisQueue("orders", redis_url, clock=clock).put_back())
        assert sum(count.returned for count in counts) == 1000
        assert sorted(id_.decode() for id_ in client.lrange(QUEUE.ready, 0, -1)) == sorted(ids)
        assert queue.stats().in_flight == 0

    def test_each_ack_is_accepted_once_while_workers_put_back(self, redis_url: str) -> None:
        """The recipe puts back an item that a worker still processes, and lets both delete it."""
        setup = RedisQueue("orders", redis_url)
        setup.client.flushall()
        setup.put_many(range(300))
        accepted: list[int] = []

        def work(index: int) -> None:
            queue = RedisQueue("orders", redis_url, lease=0.005, max_deliveries=0)
            while queue.stats().ready + queue.stats().in_flight:
                for message in queue.get_many(10):
                    if queue.ack(message):
                        accepted.append(message.body)
                queue.put_back()

        at_once(4, work)
        assert sorted(accepted) == list(range(300))

    def test_extend_does_not_restore_an_acked_message(self, client: redis.Redis, clock: Clock) -> None:
        """The recipe checks with a ZADD of ten more seconds: they add up, and a deleted item is written again."""
        queue = RedisQueue("orders", client, clock=clock, lease=60)
        queue.put("order")
        message = must(queue.get(block=False))
        for _ in range(5):
            assert queue.extend(message, 70)
        assert client.zscore(QUEUE.in_flight, message.id) == clock.now + 70_000
        assert queue.ack(message)
        assert not queue.extend(message)
        assert not queue.still_mine(message)
        assert client.zcard(QUEUE.in_flight) == client.hlen(QUEUE.leases) == 0

    def test_two_objects_of_one_name_are_one_queue(self, client: redis.Redis, redis_url: str) -> None:
        """So it is in the recipe; here a claim of one object can also be settled through the other."""
        first, second = RedisQueue("orders", client), RedisQueue("orders", redis_url)
        first.put("hello")
        message = must(second.get(block=False))
        assert first.stats() == second.stats()
        assert first.ack(message)
        assert len(RedisQueue("orders", client, prefix="other")) == 0

    def test_calls_share_one_connection(self, client: redis.Redis, redis_server: RedisServer) -> None:
        """The recipe makes a new client, and with it a new connection, for each call."""
        with FaultProxy(redis_server.address) as proxy:
            queue = RedisQueue("orders", proxy.url)
            for number in range(100):
                queue.put(number)
                assert queue.ack(must(queue.get()))
            assert proxy.connections <= 2


class TestAsynchronousWork:
    """Work that is taken with a blocking pop and retried later."""

    def test_killing_a_blocking_get_as_a_message_arrives_loses_nothing(
        self, client: redis.Redis, redis_url: str
    ) -> None:
        """The recipe uses BRPOP: Redis hands the item to a process that may be dead, and keeps no copy."""
        queue = RedisQueue("orders", client, lease=0.3)
        waiting = (
            "import os, sys; from redis_queue import RedisQueue\n"
            "queue = RedisQueue('orders', sys.argv[1], lease=0.3)\n"
            "message = queue.get()\n"
            "print(message.body, flush=True)\n"
            "sys.stdin.read()\n"
            "os._exit(0)\n"
        )
        command = [sys.executable, "-c", waiting, redis_url]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        for body in ("taken and lost", "taken at the same moment"):
            with subprocess.Popen(command, **pipes) as process:
                wait_until(lambda: client.info("clients")["blocked_clients"] == 1, description="a blocked get")
                queue.put(body)
                if body == "taken and lost":
                    assert process.stdout is not None
                    assert process.stdout.readline().strip() == body
                os.kill(process.pid, signal.SIGKILL)
            message = must(queue.get(timeout=10))
            assert message.body == body
            assert queue.ack(message)

    def test_each_entry_has_one_owner_among_many_pollers(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe lets all pollers read the due ids; the first to delete an id owns it. Most reads are in vain."""
        DelayQueue("orders", client).push_many([Push(number) for number in range(400)])

        def poll(_: int) -> list[int]:
            timed = DelayQueue("orders", redis_url)
            mine: list[int] = []
            while entries := timed.claim(7):
                assert all(timed.ack_many(entries))
                mine += [entry.payload for entry in entries]
            return mine

        owned = at_once(6, poll)
        assert sorted(number for mine in owned for number in mine) == list(range(400))

    def test_the_work_of_an_owner_who_dies_is_taken_over(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe deletes the id before the work starts: a kill then loses the work."""
        timed = DelayQueue("orders", client, lease=0.3)
        timed.push("work")
        die_in(client, redis_url, "timed.claim()")
        wait_until(lambda: timed.put_back().returned, description="the lease of the dead owner to end")
        (entry,) = timed.claim()
        assert (entry.payload, entry.deliveries) == ("work", 2)
        assert timed.ack(entry)


class TestPayloadInTheMember:
    """A delay queue that uses the payloads as members of its sorted set."""

    def test_equal_payloads_are_two_entries(self, client: redis.Redis) -> None:
        """The recipe uses the payload as member: a payload that is pushed twice is stored once."""
        timed = DelayQueue("orders", client)
        timed.push("same", delay=60)
        timed.push("same")
        assert len(timed) == 2
        assert [entry.payload for entry in timed.pop(10)] == ["same"]
        assert [entry.payload for entry in timed] == ["same"]


PUSH_ON = """
import itertools, sys
from redis_queue import DelayQueue
timed = DelayQueue("orders", sys.argv[1])
for number in itertools.count():
    timed.push(number, id=str(number), destination="target")
"""
MOVE_ON = """
import sys
from redis_queue import DelayQueue
timed = DelayQueue("orders", sys.argv[1])
while timed.move_due(1):
    pass
"""


def kill_once(script: str, url: str, is_so: Callable[[], bool]) -> None:
    """Start *script* as a process and kill it with SIGKILL as soon as *is_so*."""
    with child(script, url) as process:
        wait_until(is_so, description="the process to make progress")
        assert process.poll() is None
        process.kill()


class TestDelayForAJobQueue:
    """A `delay=` for a job queue: ids in a sorted set, jobs in hashes, and a timer that moves due jobs."""

    def test_an_id_is_never_there_without_its_payload(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe adds the id before it saves the job: after a kill in between, the id blocks the head for ever."""
        kill_once(PUSH_ON, redis_url, lambda: client.zcard(TIMED.waiting) >= 50)
        ids = set(client.zrange(TIMED.waiting, 0, -1))
        assert len(ids) >= 50
        assert ids == set(client.hkeys(TIMED.records))
        assert DelayQueue("orders", client).move_due() == len(ids)

    def test_a_killed_timer_neither_loses_nor_duplicates(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe's timer removes the id and enqueues the job afterwards: a kill in between loses the job."""
        timed = DelayQueue("orders", client)
        timed.push_many([Push(number, destination="target") for number in range(5000)])
        for goal in (1, 500):
            kill_once(MOVE_ON, redis_url, lambda: client.llen("target") >= goal)  # noqa: B023
        waiting = [entry.payload for entry in timed]
        moved = [int(payload) for payload in client.lrange("target", 0, -1)]
        assert sorted(waiting + moved) == list(range(5000))
        assert waiting
        timed.move_due()
        assert client.lrange("target", 0, -1) == [b"%d" % number for number in reversed(range(5000))]

    def test_many_timers_need_no_lock(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe locks its timers with SETNX and EXPIRE: after a kill in between, no timer ever runs again."""
        DelayQueue("orders", client).push_many([Push(number, destination="target") for number in range(1500)])
        counts = at_once(6, lambda _: DelayQueue("orders", redis_url).move_due())
        assert sum(counts) == 1500
        assert sorted(int(payload) for payload in client.lrange("target", 0, -1)) == list(range(1500))
        left = {key for key in client.scan_iter() if b":slot:" not in key}
        assert left == {b"target", b"redis_queue:registry", TIMED.meta}

    def test_moved_payloads_are_unchanged(self, client: redis.Redis) -> None:
        """The recipe builds the job anew when it moves it, and loses its options."""
        timed = DelayQueue("orders", client)
        payload = b'{"body": "\\u00e9 \x00", "args": [], "n": 1.0, "big": 9007199254740993}'
        timed.push(payload, destination="queue\x06\x163")
        timed.push({"json": [1, 2.0, "é", {}]}, destination="other")
        assert timed.move_due() == 2
        assert client.rpop("queue\x06\x163") == payload
        assert client.rpop("other") == '{"json":[1,2.0,"é",{}]}'.encode()


class TestFormAutoSubmit:
    """Forms that submit themselves: id and due time in a sorted set, data in a hash."""

    def test_an_entry_is_either_cancelled_or_moved(self, client: redis.Redis, redis_url: str) -> None:
        """The recipe lets cancel and poller race: both may report success."""
        ids = [f"form-{number}" for number in range(600)]
        DelayQueue("orders", client).push_many([Push(id_, id=id_, destination="target") for id_ in ids])

        def cancel(order: int) -> list[str]:
            timed = DelayQueue("orders", redis_url)
            return [id_ for id_ in ids[::order] if timed.cancel(id_)]

        def move(_: int) -> list[str]:
            timed = DelayQueue("orders", redis_url)
            while timed.move_due(2):
                pass
            return []

        cancelled = [
            id_ for part in at_once(4, lambda index: (move, cancel)[index % 2](-1 if index == 1 else 1)) for id_ in part
        ]
        moved = [payload.decode().strip('"') for payload in client.lrange("target", 0, -1)]
        assert sorted(cancelled + moved) == sorted(ids)
