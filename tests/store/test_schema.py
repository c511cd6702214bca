"""Releases that share data: this one reads the data of the first release and leaves that of newer ones alone."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from redis_queue import DelayQueue, Lease, Lock, PutBack, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners
from redis_queue.basics.times import from_ms
from redis_queue.monitor.model import Series, Tally
from redis_queue.monitor.monitor import Monitor
from redis_queue.monitor.report import Reports
from redis_queue.operate.audit import Audit
from redis_queue.schedules.store import ScheduleStore
from redis_queue.store.keys import KEY_GROUPS, FlowKeys, Keys
from redis_queue.store.registry import Registry, RegistryRow
from redis_queue.store.scripts import Scripts
from tests.support.clock import START as MOMENT
from tests.support.clock import Clock, when
from tests.support.paths import ROOT
from tests.support.store.release import load
from tests.support.wait import must, wait_until

WITHOUT_DATA = {
    # They exist while a process works, or waits for a reply.
    *("idle", "leader", "listener", "operation", "probe", "slot"),
    # Workers write them again, or pages of people show them for a while.
    *("apps", "counters", "declared_by", "discarded", "starts", "uncounted", "unreadable"),
    # One of a few of the same form has data.
    *("hours:0", "hours:1", "hours:2", "minutes:0", "minutes:2", "retrying"),
    # Places of other messages than those in the file.
    *("blocked", "offers", "owned", "replaced", "timers"),
}
"""Kinds of keys that are not in the data of 0.1.0."""


class TestFirstRelease:
    @pytest.fixture(autouse=True)
    def data(self, client: redis.Redis) -> None:
        """The data that the first release wrote."""
        load(client)

    def queue(self, client: redis.Redis, later: int = 0) -> RedisQueue:
        """Return its queue *later* milliseconds after the data was written."""
        return RedisQueue("orders", client, clock=lambda: MOMENT + later, max_deliveries=3, put_back_on_get=0)

    def timed(self, client: redis.Redis, later: int = 0) -> DelayQueue:
        """Return its delay queue *later* milliseconds after the data was written."""
        return DelayQueue("orders", client, clock=lambda: MOMENT + later, max_deliveries=3)

    def test_messages_can_be_claimed(self, client: redis.Redis) -> None:
        queue = self.queue(client)
        nacked, bare = queue.get_many(10)
        assert (nacked.id, nacked.body, nacked.deliveries) == ("nacked", "nacked", 2)
        assert (bare.id, bare.body, bare.deliveries) == ("bytes", b"\x00\xff raw", 1)
        assert {(item.id, item.raw) for item in queue.quarantined()} == {("aside", b"garbage"), ("broken", b"garbage")}
        assert queue.ack_many([nacked, bare]) == [True, True]
        assert queue.get(block=False) is None
        assert [message.body for message in self.queue(client, 60_000).get_many(5)] == ["delayed"]

    def test_leases_are_valid(self, client: redis.Redis) -> None:
        queue = self.queue(client)
        _, token = must(client.hget(Keys("redis_queue", "queue", "orders").leases, "held")).split()
        (held,) = queue.get_many(1)
        held = type(held)(
            id="held",
            body=held.body,
            headers=held.headers,
            deliveries=1,
            put_at=held.put_at,
            lease=Lease(token.decode(), from_ms(MOMENT + 60_000)),
        )
        assert queue.still_mine(held)
        assert queue.put_back() == PutBack()
        assert queue.ack(held)
        assert not queue.ack(held)

    def test_leases_expire(self, client: redis.Redis) -> None:
        late = self.queue(client, 60_001)
        assert late.put_back() == PutBack(returned=1)
        (held,) = late.get_many(1)
        assert (held.id, held.body, held.deliveries) == ("held", {"n": 1, "name": "Zoë"}, 2)
        assert held.headers == {"trace": "abc"}
        assert held.put_at == from_ms(MOMENT)

    def test_dead_letters_can_be_redriven(self, client: redis.Redis) -> None:
        for queue in (self.queue(client), self.timed(client)):
            (letter,) = queue.dead_letters()
            assert (letter.id, letter.body, letter.deliveries, letter.reason) == ("dead", "dead", 1, "on purpose")
            assert queue.redrive() == 1

    def test_entries_can_be_claimed_and_moved(self, client: redis.Redis) -> None:
        timed = self.timed(client, 60_001)
        waiting = must(timed.get("waiting"))
        assert (waiting.payload, waiting.due_at) == ({"n": 2}, from_ms(MOMENT + 60_000))
        assert timed.move_due() == 1
        assert client.lrange("target", 0, -1) == [b"to a list"]
        assert timed.put_back() == PutBack(returned=1)
        found = {entry.id: entry for entry in timed.claim(10)}
        assert found.keys() == {"waiting", "held"}
        assert (found["held"].payload, found["held"].headers) == ("held", {"trace": "abc"})
        assert found["held"].deliveries == 2

    def test_the_registry_is_read(self, client: redis.Redis) -> None:
        assert Registry(Scripts(client), "redis_queue").all() == [
            RegistryRow("delay", "orders", max_deliveries=3, shards=1),
            RegistryRow("delay", "scheduled", max_deliveries=20, shards=1),
            RegistryRow("queue", "orders", max_deliveries=3, shards=1),
        ]

    def test_reports_of_workers_are_read(self, client: redis.Redis) -> None:
        clock = Clock(MOMENT + 61_000)
        monitor = Monitor(client, "redis_queue", clock)
        (row,) = monitor.workers.rows()
        assert (row.name, row.queues, row.release) == ("one@test", ("shop",), "r1")
        assert [(task.id, task.args, task.lease) for task in monitor.workers.running()] == [("running", "(2,)", "held")]
        tally = monitor.history.totals(10)[Series("plain", "shop")]
        assert (tally.executed, tally.failed) == (6, 2)
        assert monitor.history.all_time()[Series("plain", "shop")] == tally
        (run,) = monitor.runs.tree("run")
        assert (run.id, run.outcome, run.started_at, run.args) == ("run", "succeeded", when(-2), "(1,)")
        assert [each.release for each in monitor.releases()] == ["r1"]
        (dispatched,) = self.timed(client).dispatch_log.dispatchers()
        assert dispatched.name == "me"
        # What comes next is added to it.
        Reports(client, "redis_queue", clock).write(tallies={Series("plain", "shop"): Tally(executed=1)})
        assert monitor.history.all_time()[Series("plain", "shop")].executed == 7

    def test_failures_are_read_and_settled(self, client: redis.Redis) -> None:
        failures = Monitor(client, "redis_queue", Clock(MOMENT + 61_000)).failures
        (group,) = failures.groups()
        assert (group.group, group.count, group.last_at) == (("plain", "ValueError"), 1, when(0))
        failure = must(failures.get("failed"))
        assert (failure.message, failure.failed_at, failure.worker) == ("Zoë", when(0), "one@test")
        assert [each.id for each in failures.claim([failure], "token")] == ["failed"]
        assert [each.id for each in failures.delete([failure], "token")] == ["failed"]
        assert failures.count() == 0

    def test_flows_keep_their_limits(self, client: redis.Redis) -> None:
        flows = Flows(client, "redis_queue")
        state = flows.find("api")
        assert (state.limits.limit, state.declared.limit, state.paused) == (2, 3, True)
        assert flows.key("api", "7").own["limit"] == 1
        flows.resume("api")
        assert (flows.reset("api").limits.limit, flows.find("flowing").running) == (3, 1)

    def test_owners_schedules_locks_and_the_audit_are_read(self, client: redis.Redis) -> None:
        ends = max(score for _, score in client.zrange(FlowKeys("redis_queue").owner_ends, 0, -1, withscores=True))
        owners = Owners(client, "redis_queue", clock=Clock(int(ends) - 1000))
        (owner,) = owners.list()
        assert (owner.task, owner.task_id, owner.state) == ("single", "id of unique", "delayed")
        assert owners.release("single", task_id="id of unique")
        store = ScheduleStore(DelayQueue("scheduled", client))
        stored, *_ = store.get(["tick"])
        assert stored is not None
        assert (stored.name, must(stored.definition).task, len(store.events("tick"))) == ("tick", "plain", 1)
        assert Lock("job", client, clock=Clock(MOMENT + 1000)).acquire() is None
        with must(Lock("job", client, clock=Clock(MOMENT + 10**7)).acquire()) as held:
            assert held.fence > MOMENT * 1000
        (line,) = Audit(client, "redis_queue").last(10)
        assert (line.user, line.verb, line.count, line.at) == ("ann", "cancel", 2, when(0))

    def test_each_kind_of_key_has_data(self, client: redis.Redis) -> None:
        """A kind that a later release adds belongs into the file of that release, or into `WITHOUT_DATA`."""
        kinds = {key.part for group in KEY_GROUPS[:-1] for key in group.declarations().values()}
        names = [f"{name.decode()}:" for name in client.scan_iter()]
        assert {kind for kind in kinds if not any(f":{kind}:" in name for name in names)} == WITHOUT_DATA


@contextlib.contextmanager
def working(role: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process of `tests.support.store.schema`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.store.schema", role, url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


ROLES = ("put", "consume", "push", "pop")


class TestNewerRelease:
    """A newer release raises the schema while processes of this release work."""

    def raise_schema(self, client: redis.Redis, schema: int) -> None:
        """Write a schema number as another release would."""
        for keys in (Keys("redis_queue", "queue", "orders"), Keys("redis_queue", "delay", "orders", 0)):
            client.hset(keys.meta, "schema", schema)

    def test_stops_older_processes_and_a_downgrade_loses_nothing(self, client: redis.Redis, redis_url: str) -> None:
        with contextlib.ExitStack() as running:
            processes = {role: running.enter_context(working(role, redis_url)) for role in ROLES}
            wait_until(
                lambda: client.llen("popped") > 50 and client.llen("consumed") > 50, description="all roles to work"
            )
            self.raise_schema(client, 2)
            for role, process in processes.items():
                output, _ = process.communicate(timeout=60)
                assert (process.returncode, role, "newer redis_queue" in output) == (3, role, True), output
        queue, timed = RedisQueue("orders", client), DelayQueue("orders", client)
        assert (queue.stats().in_flight, timed.stats().in_flight) == (0, 0)

        self.raise_schema(client, 1)
        left = [message.body for message in iter(lambda: queue.get(block=False), None)]
        done = [json.loads(row) for row in client.lrange("consumed", 0, -1)]
        assert Counter(done + left) == Counter(map(int, client.lrange("put", 0, -1)))
        left = [entry.payload for page in iter(lambda: timed.claim(500), []) for entry in page]
        done = [json.loads(row) for row in client.lrange("popped", 0, -1)]
        assert Counter(done + left) == Counter(map(int, client.lrange("pushed", 0, -1)))
