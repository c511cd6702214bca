"""A full Redis (``maxmemory``, ``noeviction``) takes nothing new, and can be drained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pytest
import redis

from redis_queue import DelayQueue, Lock, RedisQueue, StoreRefusedError
from redis_queue.basics.times import from_ms
from redis_queue.delay.model import Delivery, ForeignMessage, Push
from redis_queue.monitor.model import Failure, Run, Series, Tally, WorkerRow
from redis_queue.schedules.state import State
from redis_queue.schedules.store import Change, ScheduleStore
from redis_queue.store.keys import FlowKeys
from redis_queue.store.script_files import all_scripts
from redis_queue.store.scripts import Scripts
from tests.support.clock import START, when
from tests.support.servers import RedisServer
from tests.support.store.server_states import Ballast
from tests.support.store.stage import VERBS, Copy, Stage, snapshot
from tests.support.wait import must

ADVICE = "out of memory and takes nothing new: let consumers and workers make room, or raise its maxmemory"

REFUSED = {
    "queue/put": ["put", "put delayed"],
    "delay/push": ["push", "push over", "push keep"],
    "admission/send": ["send to a gate"],
    "broker/push": ["broker/push"],
    "admission/acquire": ["own a key"],
    "monitor/failure_keep": ["keep a failure"],
    "monitor/failure_claim": ["claim a failure"],
    "schedules/change": ["send a run"],
    "schedules/declare": ["declare schedules"],
}
"""Script -> the calls that store something new, which a full Redis refuses; all other calls are executed."""


class Call(NamedTuple):
    """A call: the operation, its script, and the ms before it."""

    act: Callable[[Stage], Any]
    script: str
    later: int = 0


def script(stage: Stage, name: str, **arguments: Any) -> Any:
    """Call a script of messages in flight in the broker, which is the Redis of *stage*."""
    client: Any = stage.queue.client
    keys = {name: name.encode() for name in ("index", "unacked", "lease_ends", "line", "listener", "target", "slot")}
    keys["list"] = b"foreign"
    if name.startswith("admission/"):
        keys["slot"] = b"slot of flows"
    return Scripts(client).bind(name, FlowKeys("redis_queue"), **keys)(**arguments)


def send(stage: Stage, sequence: int = 100) -> Any:
    """Send a message of a flow with two places."""
    call: dict[str, Any] = {"step": 0, "queue": "mail", "task": "sync", "of_task": "a", "of_queue": "", "message": "{}"}
    flows = ["sync", "2 - 1 5 - - - -"]
    return script(stage, "admission/send", now=stage.clock(), sequence=sequence, is_new=1, **call, more=flows)


def own(stage: Stage, **changed: Any) -> Any:
    call: dict[str, Any] = {
        "field": "sync\0key",
        "token": "ab",
        "running": "",
        "id": "id",
        "ttl": 5000,
        "due": 0,
        "replaces": 0,
        "sequence": 90,
    }
    return script(stage, "admission/acquire", now=stage.clock(), **{**call, **changed}, gone="", awaited=0)


def take(stage: Stage, tag: str = "u-", settled: Sequence[str] = ()) -> Any:
    """Settle messages of flows, and take one."""
    caller: dict[str, Any] = {"limit": 1, "at_once": 1, "tag": tag, "channel": "channel", "turn": 0, "lease": 60_000}
    more = [*settled, "mail", '"", "mail"']
    return script(stage, "admission/take", now=stage.clock(), **caller, settled=len(settled), more=more)


def restore(stage: Stage) -> Any:
    call: dict[str, Any] = {"step": 0, "queue": "mail", "task": "sync", "of_task": "a", "of_queue": "", "message": "{}"}
    return script(stage, "admission/restore", now=stage.clock(), tag="t-001", record=RECORD, ended=0, last=0, **call)


def purge_backlog(stage: Stage) -> Any:
    """Delete the messages of a flow that wait, and none of a group that is gone."""
    arguments = {"now": stage.clock(), "sequence": 100, "limit": 5}
    return script(stage, "admission/purge", **arguments, more=["0\0mail\0sync\0a\0", "0\0mail\0gone\0\0"])


def delete_from_gate(stage: Stage) -> Any:
    """Delete the message of a flow that waits, and one that is gone."""
    return take_out(stage, "mail", "")


def take_out(stage: Stage, queue: str, message: str) -> Any:
    """Let the message of a flow wait in *queue* as *message*, or delete it, and one that is gone."""
    group = {"step": 0, "queue": queue, "task": "sync", "of_task": "a", "of_queue": ""}
    arguments = {"now": stage.clock(), "sequence": 101, "source": "0\0mail\0sync\0a\0", **group}
    return script(stage, "admission/remove", **arguments, more=[0, 2, "{}", "", message, 1, 2, "gone", "", message])


RECORD = '[{}, "", "mail"]'
KEY_CHANGE = {"flow": "sync", "key": "a", "places": "", "spacing": "", "burst": "", "paused": 1, "forget": 0, "most": 9}
CHANGE = {"flow": "sync", "flag": "sync", "declared_now": "1 - - - - - - -", "set": "5 = = = = = = ="}


def schedule(stage: Stage, *, sends: bool = False) -> Any:
    """Put a schedule, also with the message of a run."""
    store = ScheduleStore(stage.timed)
    message = Push("run", id="run", due_at=from_ms(START)) if sends else None
    return store.change([Change("nightly", b"", State("0" * 8, START, START), "{}", START, message=message)])


def lock(stage: Stage) -> Lock:
    return Lock("door", stage.queue.client)


def locked(stage: Stage) -> Any:
    """Take the lock."""
    return must(lock(stage).acquire())


def adopt(stage: Stage) -> Any:
    """Adopt a message of a foreign list."""
    return stage.timed.foreign.adopt([(Push("adopted", id="adopted"), ForeignMessage(b"element", "foreign", 0))])


def mend(stage: Stage) -> Any:
    """Repair a record without a place and a place without a record, in both queues."""
    ids = [b"orphan", b"empty"]
    queue, timed = stage.queue._records, stage.timed._shards[0]
    return [
        queue.run("records/repair", now=1, listed=1, repair=1, more=ids),
        timed.run("records/repair", now=1, listed=0, repair=1, more=ids),
    ]


FAILURE = Failure("failed", "task", "queue", "me", when(0))


def report(stage: Stage, tallies: Any = None) -> None:
    """Write the report of a worker, without the time of the server."""
    now = datetime.fromtimestamp(stage.clock() / 1000, timezone.utc)
    run = Run("id", "task", "queue", "me", "failed", now)
    stage.reports.write(WorkerRow("me", now, now), tallies=tallies, ended=[run])


def purge_twice(stage: Stage) -> Any:
    """Purge a place that is empty since its size was read."""
    records = stage.queue._records
    return [records.call("records/purge", others={"place": records.keys.ready}, limit=5) for _ in range(2)]


CALLS = {name: Call(verb.call, verb.script, verb.later) for name, verb in VERBS.items()} | {
    "quarantine": Call(lambda s: s.queue._records.quarantine(s.held, "bad"), "records/quarantine"),
    "mend": Call(mend, "records/repair"),
    "adopt": Call(adopt, "delay/adopt"),
    "note_revoked": Call(lambda s: s.timed.revokes.note_revoked(["waiting", "new"]), "delay/cancel"),
    "cancel an unknown id": Call(lambda s: s.timed.cancel("unknown"), "delay/cancel"),
    "delete an unknown id": Call(lambda s: s.queue.delete_dead(["unknown"]), "records/delete_dead"),
    "purge more": Call(purge_twice, "records/purge"),
    "retry": Call(lambda s: s.timed.marked.replace_own(Push("again", id="new", mark="call")), "delay/push"),
    "lock": Call(locked, "lock/acquire"),
    "wait for a lock": Call(lambda s: (locked(s), lock(s).acquire()), "lock/acquire"),
    "extend a lock": Call(lambda s: lock(s).extend([locked(s)], 60_000), "lock/extend"),
    "release a lock": Call(lambda s: locked(s).release(), "lock/release"),
    "broker/fetch": Call(
        lambda s: script(
            s,
            "broker/fetch",
            now=0,
            limit=5,
            tag="tag",
            channel="channel",
            missed=0,
            turns=1,
            width=1,
            lease=1,
            more=["foreign", "1"],
        ),
        "broker/fetch",
    ),
    "broker/expired": Call(lambda s: script(s, "broker/expired", now=0, timeout=1, limit=1), "broker/expired"),
    "broker/leave": Call(lambda s: script(s, "broker/leave", channel="channel"), "broker/leave"),
    "broker/push": Call(lambda s: script(s, "broker/push", sequence=1, message="{}"), "broker/push"),
    "broker/repair": Call(lambda s: script(s, "broker/repair", now=0, repair=1, more=["lost"]), "broker/repair"),
    "broker/record": Call(
        lambda s: script(s, "broker/record", now=0, tag="new", record="[]", lease=1), "broker/record"
    ),
    "broker/renew": Call(
        lambda s: script(s, "broker/renew", now=0, lease=60, signature=1, more=["tag", "1"]), "broker/renew"
    ),
    "broker/restore": Call(
        lambda s: script(
            s, "broker/restore", now=0, tag="tag", record="[]", ended=0, last=0, more=["foreign", "x" * 100]
        ),
        "broker/restore",
    ),
    "broker/drop": Call(lambda s: script(s, "broker/drop", sequence=1, limit=5), "broker/drop"),
    "broker/remove": Call(
        lambda s: script(s, "broker/remove", sequence=1, more=[0, 7, "element", "", "x" * 100]), "broker/remove"
    ),
    "broker/settle": Call(lambda s: script(s, "broker/settle", more=["tag"]), "broker/settle"),
    "send to a gate": Call(send, "admission/send"),
    "take from a gate": Call(take, "admission/take"),
    "settle and take": Call(lambda s: take(s, settled=["t-001"]), "admission/take"),
    "settle a message of a flow": Call(
        lambda s: script(s, "admission/settle", now=s.clock(), more=["t-001"]), "admission/settle"
    ),
    "return a message of a flow": Call(restore, "admission/restore"),
    "purge a gate": Call(purge_backlog, "admission/purge"),
    "delete from a gate": Call(delete_from_gate, "admission/remove"),
    "move to another gate": Call(lambda s: take_out(s, "slow", "{}"), "admission/remove"),
    "pause a key": Call(lambda s: script(s, "admission/set_key", **KEY_CHANGE), "admission/set_key"),
    "own a key": Call(own, "admission/acquire"),
    "confirm a key": Call(
        lambda s: script(s, "admission/confirm", now=s.clock(), sequence=91, field="taken\0", token="cd", gone=0),
        "admission/confirm",
    ),
    "release a key": Call(
        lambda s: script(s, "admission/release", now=s.clock(), field="taken\0", token="cd", sent=0, owner_id=""),
        "admission/release",
    ),
    "keep a key for longer": Call(
        lambda s: script(s, "admission/extend", now=s.clock(), field="taken\0", token="cd", due=0, ttl=1000),
        "admission/extend",
    ),
    "cancel a task with a key": Call(
        lambda s: s.timed.marked.cancel_unique([("waiting", "", "taken\0", "cd")], FlowKeys("redis_queue")),
        "admission/cancel",
    ),
    "revoke a task with a key": Call(
        lambda s: script(s, "admission/revoke", now=s.clock(), more=["id"]), "admission/revoke"
    ),
    "change a flow": Call(
        lambda s: script(s, "admission/configure", **CHANGE, paused=1, forget=0, more=["a", 2]), "admission/configure"
    ),
    "look at a flow again": Call(
        lambda s: script(s, "admission/reconsider", limit=5, places=1, more=["sync", "mail"]), "admission/reconsider"
    ),
    "count": Call(lambda s: report(s, {Series("task", "queue"): Tally(1)}), "monitor/count"),
    "report": Call(report, "monitor/report"),
    "keep a failure": Call(lambda s: s.failures.keep([FAILURE], 10, 7), "monitor/failure_keep"),
    "claim a failure": Call(lambda s: s.failures.claim([FAILURE], "token"), "monitor/failure_claim"),
    "put a schedule": Call(schedule, "schedules/change"),
    "send a run": Call(lambda s: schedule(s, sends=True), "schedules/change"),
    "declare schedules": Call(
        lambda s: ScheduleStore(s.timed).set_versions("app", b"", ["1"], ["nightly"]), "schedules/declare"
    ),
    "delete a failure": Call(lambda s: s.failures.delete([FAILURE]), "monitor/failure_delete"),
}

EXECUTED = sorted(CALLS.keys() - {name for names in REFUSED.values() for name in names})


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server with a changeable memory limit."""
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the server, which is empty and has no limit."""
    with server.client() as client:
        client.config_set("maxmemory", "0")
        client.flushall()
        yield client


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """Both queues with entries in every state, and messages of a broker."""
    stage = Stage(client)
    client.rpush("foreign", "element")
    client.hset("unacked", mapping={"tag": "[]", "lost": "[]"})
    client.zadd("index", {"tag": 1})
    stage.failures.keep([FAILURE], 10, 7)
    for sequence in range(1, 4):
        send(stage, sequence)
    take(stage, "t-")
    own(stage, field="taken\0", token="cd", sequence=80)
    for keys in (stage.queue._records.keys, stage.timed._shards[0].keys):
        client.hset(keys.records, "orphan", "v1 1 json 0 1\n5")
        client.zadd(keys.dead, {"empty": 1})
    return stage


def shape(client: redis.Redis) -> dict[bytes, tuple[bytes, int]]:
    """Return the type and the number of items of each key."""
    sizes: dict[bytes, Callable[[bytes], Any]] = {
        b"string": lambda _: 1,
        b"hash": client.hlen,
        b"list": client.llen,
        b"zset": client.zcard,
    }
    return {key: (kind, sizes[kind](key)) for key in client.scan_iter() for kind in [client.type(key)]}


def test_each_script_that_writes_is_called() -> None:
    called = {CALLS[name].script for name in EXECUTED} | REFUSED.keys()
    assert called >= {script.name for script in all_scripts() if script.writes}


@pytest.mark.parametrize("name", EXECUTED)
def test_call_is_executed_as_without_a_limit(client: redis.Redis, stage: Stage, name: str) -> None:
    call, copy = CALLS[name], Copy(client)
    later = stage.on(client, later=call.later)
    call.act(later)
    usual = shape(client)
    copy.restore()
    client.config_set("maxmemory", "1")
    call.act(later)
    assert shape(client) == usual


@pytest.mark.parametrize("name", [name for names in REFUSED.values() for name in names])
def test_call_is_refused_and_changes_nothing(client: redis.Redis, stage: Stage, name: str) -> None:
    client.config_set("maxmemory", "1")
    before = snapshot(client)
    with pytest.raises(StoreRefusedError, match=ADVICE):
        CALLS[name].act(stage)
    assert snapshot(client) == before


def test_new_queue_is_refused(client: redis.Redis) -> None:
    client.config_set("maxmemory", "1")
    for call in (lambda: RedisQueue("new", client).put(1), lambda: DelayQueue("new", client).push(1)):
        with pytest.raises(StoreRefusedError, match=ADVICE):
            call()
    assert not client.keys("*new*")


def test_unreadable_messages_are_quarantined(client: redis.Redis, stage: Stage) -> None:
    client.hset(stage.queue._records.keys.records, "ready", b"garbage")
    client.hset(stage.queue._records.keys.records, "ready2", b"v1 5 json 0 3\n{x}")
    client.hset(stage.timed._shards[0].keys.records, "due", b"garbage")
    client.config_set("maxmemory", "1")
    assert stage.queue.get(block=False) is None
    assert {item.id for item in stage.queue.quarantined()} == {"ready", "ready2"}
    assert stage.timed.claim() == []
    assert [item.id for item in stage.timed.quarantined()] == ["due"]


def test_due_entries_are_moved_in_portions(client: redis.Redis) -> None:
    timed = DelayQueue("orders", client)
    timed.push_many([Push(number, id=str(number), destination="target") for number in range(1200)])
    client.config_set("maxmemory", "1")
    for left in (700, 200, 0):
        moved = timed.moves.move()
        assert (moved.sent, len(timed)) == (500 if left else 200, left)
        if left:
            again = timed.moves.move()
            assert (again.sent, again.next_in) == (0, 0.1)
        client.delete("target")


def test_claimed_entries_are_not_delivered_to_a_long_list(client: redis.Redis) -> None:
    timed = DelayQueue("orders", client)
    client.rpush("target", *range(500))
    timed.push("claimed")
    entries = timed.claim()
    client.config_set("maxmemory", "1")
    row = Delivery(entries[0], b"element", ("target",))
    with pytest.raises(StoreRefusedError, match=ADVICE):
        timed.moves.deliver([row])
    client.rpop("target")
    assert timed.moves.deliver([row]) == [True]


def test_both_queues_are_drained_and_take_messages_afterwards(client: redis.Redis) -> None:
    queue, timed = RedisQueue("orders", client), DelayQueue("orders", client)
    count = 500
    queue.put_many({"order": number} for number in range(count))
    timed.push_many([Push(number, id=f"moved{number}", destination="target") for number in range(count)])
    timed.push_many([Push(number, id=f"claimed{number}") for number in range(count)])
    timed.push("far", delay=3600, id="far")
    ballast = Ballast(client)
    with pytest.raises(StoreRefusedError, match=ADVICE):
        queue.put("refused")
    with pytest.raises(StoreRefusedError, match=ADVICE):
        timed.push("refused")

    got = 0
    while messages := queue.get_many(100, block=False):
        for message in messages[::10]:
            assert queue.extend(message, 60)
        assert all(queue.ack_many(messages))
        got += len(messages)
    assert got == count
    assert timed.move_due() == count
    assert client.llen("target") == count
    got = 0
    while entries := timed.claim(100):
        back = entries[1:2]
        assert all(timed.nack_many(back))
        assert all(timed.ack_many(entries[:1] + entries[2:]))
        got += len(entries) - len(back)
    assert got == count
    assert timed.cancel("far").taken_out
    assert ballast.is_full()
    assert (queue.stats().ready, queue.stats().in_flight, len(timed)) == (0, 0, 0)

    ballast.free()
    assert queue.put("taken")
    assert timed.push("taken")
