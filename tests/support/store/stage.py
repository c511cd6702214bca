"""Both queues in many states, all operations on them, and the invariants after each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.basics.histogram import Histogram
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Delivery, Dispatched, Push
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.report import Reports
from redis_queue.store.script_files import load
from tests.support.clock import START, Clock

LATER = 10**6
"""Milliseconds after which every lease here has expired."""

SOMEBODY = DispatcherRow("me", datetime(2026, 1, 1, tzinfo=timezone.utc), True, "1", 1, 0, "")


Snapshot = dict[bytes, Any]


READERS: dict[bytes, Callable[[Any, bytes], object]] = {
    b"string": lambda pipe, key: pipe.get(key),
    b"hash": lambda pipe, key: pipe.hgetall(key),
    b"set": lambda pipe, key: pipe.smembers(key),
    b"list": lambda pipe, key: pipe.lrange(key, 0, -1),
    b"zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    b"stream": lambda pipe, key: pipe.xrange(key),
}


def replies(client: redis.Redis, ask: Callable[[Any, bytes], object]) -> dict[bytes, Any]:
    """Return the reply about each key; *ask* takes a pipeline and the key, because a round trip for each is slow."""
    keys = list(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            ask(pipe, key)
        return dict(zip(keys, pipe.execute(), strict=True))


def snapshot(client: redis.Redis) -> Snapshot:
    """Return all data in Redis without the claim counter, which may have gaps."""
    kinds = replies(client, lambda pipe, key: pipe.type(key))
    found = replies(client, lambda pipe, key: READERS[kinds[key]](pipe, key))
    for key, value in found.items():
        if key.endswith(b":meta") and isinstance(value, dict):
            value.pop(b"claims", None)
    return found


def state(client: redis.Redis) -> dict[bytes, Any]:
    """Return all data in Redis without tokens and stored outcomes, which differ between two identical calls."""
    found = {key: value for key, value in snapshot(client).items() if b":slot:" not in key}
    for key, value in found.items():
        if key.endswith(b":leases"):
            found[key] = {id_: held.partition(b" ")[0] for id_, held in value.items()}
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the keys whose values differ."""
    return sorted(key.decode() for key in before.keys() | after.keys() if before.get(key) != after.get(key))


Raised = TypeVar("Raised", bound=Exception)


def raised(kind: type[Raised], call: Callable[[], Any]) -> Raised | None:
    """Return the exception of *call* if it is a *kind*, or None if it raises nothing."""
    try:
        call()
    except kind as error:
        return error
    return None


def drain(client: redis.Redis) -> list[Any]:
    """Return the bodies of everything that can still be taken from both queues, in any state."""

    def clock() -> int:
        return START + 2 * LATER

    queue = RedisQueue("orders", client, clock=clock, max_deliveries=0)
    timed = DelayQueue("orders", client, clock=clock, max_deliveries=0)
    queue.put_back()
    timed.put_back()
    queue.redrive()
    timed.redrive()
    queue.promote()
    bodies = [message.body for message in queue.get_many(500)]
    bodies += [entry.payload for entry in timed.claim(500)]
    bodies += [item.raw.rpartition(b"\n")[2].decode() for item in queue.quarantined() + timed.quarantined()]
    return bodies


class Stage:
    """Both queues of one server with items ready, delayed, due, in flight, expired and dead."""

    def __init__(self, client: redis.Redis) -> None:
        self.clock = Clock()
        self.queue = RedisQueue("orders", client, clock=self.clock, max_deliveries=3, put_back_on_get=0)
        self.timed = DelayQueue("orders", client, clock=self.clock, max_deliveries=3)
        self.reports = Reports(client, "redis_queue", self.clock)
        self.failures = Failures(client, "redis_queue", self.clock)
        self.fill()

    def fill(self) -> None:
        """Put a message and an entry into each state."""
        queue, timed = self.queue, self.timed
        queue.put("dead", dedupe_key="dead")
        queue.put("held", dedupe_key="held")
        dead, self.held = queue.get_many(2)
        queue.nack(dead, dead=True, reason="on purpose")
        queue.put("delayed", dedupe_key="delayed", delay=60)
        queue.put("ready", dedupe_key="ready")
        queue.put("ready 2", dedupe_key="ready2")
        timed.push("dead", id="dead")
        timed.nack(timed.claim()[0], dead=True, reason="on purpose")
        timed.push("held", id="held")
        self.held_entry = timed.claim()[0]
        timed.push("due", id="due", destination="target")
        timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])), dispatcher=SOMEBODY)
        timed.push("waiting", id="waiting", delay=60)

    def on(self, client: redis.Redis, *, later: int = 0) -> Stage:
        """Return the same stage for another client, *later* ms later."""
        other = object.__new__(Stage)
        other.__dict__.update(self.__dict__)
        other.clock = Clock(self.clock.now + later)
        other.queue = RedisQueue("orders", client, clock=other.clock, max_deliveries=3, put_back_on_get=0)
        other.timed = DelayQueue("orders", client, clock=other.clock, max_deliveries=3)
        return other


KEPT = ["dead", "dead", "delayed", "due", "held", "held", "ready", "ready 2", "waiting"]
"""The bodies in a stage, sorted."""


class Verb(NamedTuple):
    """A call: the operation, its script, the delay before it, and the bodies that it may remove."""

    call: Callable[[Stage], Any]
    script: str
    later: int = 0
    takes: tuple[str, ...] = ()
    which: str = "queue"


VERBS: dict[str, Verb] = {
    "put": Verb(lambda s: s.queue.put("new", dedupe_key="new"), "queue/put"),
    "put delayed": Verb(lambda s: s.queue.put("new", dedupe_key="new", delay=1), "queue/put"),
    "get": Verb(lambda s: s.queue.get(block=False), "queue/get"),
    "get_many": Verb(lambda s: s.queue.get_many(10), "queue/get"),
    "ack_then_get": Verb(lambda s: s.queue.ack_then_get([s.held], 5)(), "queue/get", takes=("held",)),
    "promote": Verb(lambda s: s.queue.promote(), "queue/promote", LATER),
    "peek": Verb(lambda s: s.queue.peek(5), "queue/peek"),
    "stats": Verb(lambda s: s.queue.stats(), "queue/stats"),
    "ack": Verb(lambda s: s.queue.ack(s.held), "records/ack", takes=("held",)),
    "nack": Verb(lambda s: s.queue.nack(s.held), "records/nack"),
    "nack delayed": Verb(lambda s: s.queue.nack(s.held, delay=5, reason="busy"), "records/nack"),
    "nack dead": Verb(lambda s: s.queue.nack(s.held, dead=True, reason="bad"), "records/nack"),
    "extend": Verb(lambda s: s.queue.extend(s.held, 120), "records/extend"),
    "put_back": Verb(lambda s: s.queue.put_back(), "records/put_back", LATER),
    "still_mine": Verb(lambda s: s.queue.still_mine(s.held), "records/extend"),
    "dead_letters": Verb(lambda s: s.queue.dead_letters(), "records/dead_letters"),
    "redrive": Verb(lambda s: s.queue.redrive(), "records/redrive"),
    "redrive slowly": Verb(lambda s: s.queue.redrive(["dead"], rate=1), "records/redrive"),
    "delete dead": Verb(lambda s: s.queue.delete_dead(["dead"]), "records/delete_dead", takes=("dead",)),
    "purge": Verb(lambda s: s.queue.purge("ready"), "records/purge", takes=("ready", "ready 2")),
    "purge dead": Verb(lambda s: s.queue.purge("dead"), "records/purge", takes=("dead",)),
    "quarantined": Verb(lambda s: s.queue.quarantined(), "records/quarantined"),
    "versions": Verb(lambda s: s.queue.versions(["held"]), "records/versions"),
    "push": Verb(lambda s: s.timed.push("new", id="new", delay=1), "delay/push", which="delay"),
    "push over": Verb(lambda s: s.timed.push("held", id="held", delay=1), "delay/push", which="delay"),
    "push keep": Verb(
        lambda s: s.timed.push("held", id="held", delay=1, on_conflict="keep"), "delay/push", which="delay"
    ),
    "claim": Verb(lambda s: s.timed.claim(5), "delay/claim", which="delay"),
    "timed nack": Verb(lambda s: s.timed.nack(s.held_entry, reason="busy"), "records/nack", which="delay"),
    "timed nack dead": Verb(
        lambda s: s.timed.nack(s.held_entry, dead=True, reason="bad"), "records/nack", which="delay"
    ),
    "timed extend": Verb(lambda s: s.timed.extend(s.held_entry, 120), "records/extend", which="delay"),
    "pop": Verb(lambda s: s.timed.pop(5), "delay/claim", takes=("due",), which="delay"),
    "timed ack": Verb(lambda s: s.timed.ack(s.held_entry), "records/ack", takes=("held",), which="delay"),
    "timed put_back": Verb(lambda s: s.timed.put_back(), "records/put_back", LATER, which="delay"),
    "cancel": Verb(lambda s: s.timed.cancel("waiting"), "delay/cancel", takes=("waiting",), which="delay"),
    "cancel dead": Verb(lambda s: s.timed.cancel("dead"), "delay/cancel", takes=("dead",), which="delay"),
    "cancel_many": Verb(
        lambda s: s.timed.cancel_many(["waiting", "dead"]), "delay/cancel", takes=("waiting", "dead"), which="delay"
    ),
    "reschedule": Verb(lambda s: s.timed.reschedule("waiting", delay=5), "delay/reschedule", which="delay"),
    "run_now": Verb(lambda s: s.timed.run_now("waiting"), "delay/reschedule", which="delay"),
    "move_due": Verb(lambda s: s.timed.move_due(), "delay/move_due", takes=("due",), which="delay"),
    "deliver": Verb(
        lambda s: s.timed.moves.deliver([Delivery(s.held_entry, b"held", ("target",))]),
        "delay/deliver",
        takes=("held",),
        which="delay",
    ),
    "note_dispatches": Verb(
        lambda s: s.timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])), dispatcher=SOMEBODY),
        "delay/note",
        which="delay",
    ),
    "minutes": Verb(lambda s: s.timed.dispatch_log.minutes(5), "delay/minutes", which="delay"),
    "dispatchers": Verb(lambda s: s.timed.dispatch_log.dispatchers(), "delay/dispatchers", which="delay"),
    "bury": Verb(
        lambda s: s.timed.foreign.bury(Push("new", id="new"), reason="bad", deliveries=3),
        "records/add_dead",
        which="delay",
    ),
    "bury_overdue": Verb(lambda s: s.timed.moves.bury_overdue(60, reason="late"), "delay/bury", LATER, which="delay"),
    "lead": Verb(lambda s: s.timed.moves.lead("me", 60).mine, "delay/lead", which="delay"),
    "due_in": Verb(lambda s: s.timed.moves.due_in(), "delay/head", which="delay"),
    "find": Verb(lambda s: s.timed.get("waiting"), "delay/find", which="delay"),
    "list": Verb(lambda s: s.timed.list(), "delay/list", which="delay"),
    "count": Verb(lambda s: s.timed.count(), "delay/count", which="delay"),
    "forecast": Verb(lambda s: s.timed.forecast(2), "delay/count", which="delay"),
    "timed stats": Verb(lambda s: s.timed.stats(), "delay/stats", which="delay"),
    "timed dead_letters": Verb(lambda s: s.timed.dead_letters(), "records/dead_letters", which="delay"),
    "timed redrive": Verb(lambda s: s.timed.redrive(), "records/redrive", which="delay"),
    "timed delete dead": Verb(
        lambda s: s.timed.delete_dead(["dead"]), "records/delete_dead", takes=("dead",), which="delay"
    ),
}


COUNTS = (
    *("promote", "put_back", "timed put_back", "purge", "purge dead", "redrive", "redrive slowly", "timed redrive"),
    *("move_due", "bury_overdue", "delete dead", "timed delete dead"),
)
"""Calls that return how many items they processed; a repeated call returns only the rest."""


def load_scripts(client: redis.Redis) -> None:
    """Load every script, so that each call is one EVALSHA."""
    with client.pipeline(transaction=False) as pipe:
        for name in {"records/quarantine", *(verb.script for verb in VERBS.values())}:
            pipe.execute_command("SCRIPT LOAD", load(name).source)
        pipe.execute()


class Copy:
    """A snapshot of everything in Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._dumps = replies(client, lambda pipe, key: pipe.dump(key))

    def restore(self) -> None:
        """Write the snapshot back."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for key, value in self._dumps.items():
                pipe.restore(key, 0, value)
            pipe.execute()


class Expected(NamedTuple):
    """The stage before a verb, at the time of the verb, and its answer and effect without faults."""

    stage: Stage
    answer: Any
    before: Snapshot
    after: Snapshot
    sha: bytes


def rehearse(client: redis.Redis, verb: str) -> Expected:
    """Call *verb* once without faults and restore the stage."""
    act = VERBS[verb]
    load_scripts(client)
    stage = Stage(client).on(client, later=act.later)
    copy, before = Copy(client), state(client)
    answer = act.call(stage)
    after = state(client)
    copy.restore()
    return Expected(stage, answer, before, after, load(act.script).sha.encode())


def drain_of_a_copy(client: redis.Redis) -> list[Any]:
    """Return the result of drain() and restore everything afterwards."""
    copy = Copy(client)
    try:
        return drain(client)
    finally:
        copy.restore()


def lost(client: redis.Redis, verb: Verb) -> list[str]:
    """Return the bodies that are no longer in a queue, except those that *verb* takes."""
    found = drain_of_a_copy(client)
    return sorted({body for body in KEPT if body not in verb.takes and found.count(body) < KEPT.count(body)})


verbs = pytest.mark.parametrize("verb", VERBS)
