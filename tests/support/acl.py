"""The calls that need all rules of a role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import redis

from redis_queue import DelayQueue, Lock, RedisQueue
from redis_queue.admission.backlog import Backlog
from redis_queue.admission.declarations import Declarations
from redis_queue.admission.flows import Flows, route_of
from redis_queue.admission.owners import Owners, field_of
from redis_queue.admission.rules import Flow
from redis_queue.basics.histogram import Histogram
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched
from redis_queue.doctor.roles import ROLES
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.history import RunHistory
from redis_queue.monitor.model import Failure, Run, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.monitor import Runs, Workers
from redis_queue.monitor.report import Reports
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.operate.inspector import Inspector
from redis_queue.schedules.state import Event, State
from redis_queue.schedules.store import Change, ScheduleStore
from redis_queue.store.keys import FlowKeys
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import NumberedCalls, Scripts, load_scripts
from tests.support.servers import client_options
from tests.support.wait import must


def is_redis_6(client: redis.Redis) -> bool:
    return str(client.info("server")["redis_version"]).startswith("6.")


def set_user(client: redis.Redis, name: str, rules: str) -> None:
    """Create or replace the user *name* with *rules* and the password pw."""
    # Redis 6.2 has no read-only patterns.
    rules = rules.replace("%R~", "~") if is_redis_6(client) else rules
    client.execute_command("ACL", "SETUSER", name, "reset", "resetchannels", "on", ">pw", *rules.split())


@contextmanager
def limited_clients(admin: redis.Redis, url: str) -> Iterator[Callable[[str], redis.Redis]]:
    """Yield a function that creates the user limited with rules, and returns its client for the server at *url*."""
    with ExitStack() as ends:
        ends.callback(admin.execute_command, "ACL", "DELUSER", "limited")

        def make(rules: str) -> redis.Redis:
            set_user(admin, "limited", rules)
            client = redis.Redis.from_url(url, username="limited", password="pw", **client_options())
            ends.callback(client.close)
            return client

        yield make


def produce(queue: RedisQueue, delayed: DelayQueue) -> None:
    """Put, delay, cancel."""
    queue.put("now")
    DelayQueue("new", queue.client).push("first", delay=60)
    queue.put("later", delay=60)
    queue.put("once", dedupe_key="key")
    delayed.push("due", id="due")
    delayed.push("far", delay=60, id="far")
    delayed.push("far", delay=90, id="far")
    delayed.reschedule("far", delay=30)
    delayed.get("far")
    delayed.cancel("far")


def consume(queue: RedisQueue, _: DelayQueue) -> None:
    """Take, extend, give back and settle messages."""
    held = must(queue.get(block=False))
    queue.extend(held)
    queue.nack(held)
    queue.ack(must(queue.get(timeout=0.1)))
    queue.promote()
    while (message := queue.get(timeout=0.01)) is not None:
        queue.ack(message)


def dispatch(queue: RedisQueue, delayed: DelayQueue) -> None:
    """Move, claim, settle and put back entries."""
    delayed.moves.lead("me", 10)
    delayed.moves.due_in()
    delayed.move_due()
    for entry in delayed.claim(10):
        delayed.nack(entry, delay=60)
    for entry in delayed.claim(10):
        delayed.ack(entry)
    delayed.put_back()
    queue.put_back()
    Inspector(queue.client).catalog.known()
    row = DispatcherRow("me", datetime.now(timezone.utc), True, "1", 1, 0, "")
    delayed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])), dispatcher=row)
    delayed.dispatch_log.note(Dispatched(), dispatcher=row, leaving=True)
    delayed.moves.lead("me", 0)
    send_schedules(delayed)
    now = datetime.now(timezone.utc)
    reports = Reports(queue.client, "redis_queue")
    reports.write(WorkerRow("me", now, now), [TASK], {SERIES: Tally(1)}, [RUN])
    failures = Failures(queue.client, "redis_queue")
    failures.keep([FAILURE, replace(FAILURE, task="other"), replace(FAILURE, id="second")], 1, 7, missed=1)


def send_schedules(delayed: DelayQueue) -> None:
    """Declare schedules, look for due ones, send a run and note its end."""
    store = ScheduleStore(delayed)
    text, _ = store.versions("shop")
    store.set_versions("shop", text, ["1"], ["nightly"])
    store.change([Change("nightly", b"", State("0123abcd", 1, 1), '{"v": 1}', look=1)])
    store.due(1)
    store.settle([("nightly", Event("ended", 1, "id"))])
    store.place_of("id")
    store.set_aside("nightly", 2)
    Workers(delayed.client, "redis_queue").find_running("id")


BROKER_KEYS = ("index", "unacked", "line", "listener", "lease_ends")


def run_flow(queue: RedisQueue, _: DelayQueue) -> None:
    """Declare a flow, send a message of it, take it, and look for orphans; the records are those of the flow itself."""
    client, keys = queue.client, FlowKeys("redis_queue")
    scripts = Scripts(client)
    Flows(client, "redis_queue").declare({"queue:mail": Flow(limit=1, fair="{to}", weights={"a": 2})})
    Declarations(scripts, FlowKeys("redis_queue"), lambda: 1).write("gone", {})
    Declarations(scripts, FlowKeys("redis_queue")).write("shop", {"queue:mail": Flow(limit=1)})
    calls = NumberedCalls(scripts, keys)
    call: dict[str, Any] = {"step": 0, "queue": "mail", "task": "", "of_task": "", "of_queue": "k", "message": "{}"}
    for _number in range(2):
        calls.prepare("admission/send", now=0, is_new=1, **call, more=["queue:mail", "1 - - - - - - -"])()
    of_broker = {name: f"{{redis_queue:flow}}:{name}".encode() for name in BROKER_KEYS}
    asked: dict[str, Any] = {"now": 0, "limit": 5, "at_once": 5, "channel": "c", "turn": 0, "settled": 0, "lease": 1}
    asked["more"] = ["mail", route_of("mail")]
    scripts.bind("admission/take", keys, **of_broker)(tag="t-", **asked)
    record = scripts.command("HGET", of_broker["unacked"], "t-001")
    scripts.bind("admission/restore", keys, **of_broker)(now=0, tag="t-001", record=record, ended=0, last=0, **call)
    scripts.bind("admission/take", keys, **of_broker)(tag="s-", **asked)
    scripts.bind("admission/settle", keys, **of_broker)(now=0, more=["s-001"])
    owners = Owners(client, "redis_queue")
    assert owners.acquire(field_of("sync", "key"), "ab", task_id="id", ttl_ms=1000).owns
    owners.confirm(field_of("sync", "key"), "ab")
    owners.extend(field_of("sync", "key"), "ab", due_ms=0, ttl_ms=1000)
    owners.withdraw(field_of("sync", "key"), "ab", sent=False)
    owners.revoke(["id"])
    scripts.command("HSCAN", keys.held, 0)
    scripts.command("MGET", keys.signal("mail"))


def take_turns(queue: RedisQueue, _: DelayQueue) -> None:
    """Acquire a lock, wait for it, extend and release it."""
    lock = Lock("customer:1", queue.client)
    with lock.hold() as held:
        lock.acquire()
        lock.extend([held], 60_000)


def watch(queue: RedisQueue, delayed: DelayQueue) -> None:
    """Read counts, pages and metrics."""
    queue.stats()
    queue.peek()
    queue.dead_letters()
    queue.quarantined()
    queue.look("x")
    queue.in_flight()
    delayed.stats()
    delayed.list()
    delayed.count()
    delayed.forecast(4, width=60)
    delayed.dead_letters()
    delayed.quarantined()
    delayed.get("due")
    delayed.look("due")
    delayed.in_flight()
    delayed.moves.leader()
    delayed.dispatch_log.totals()
    delayed.dispatch_log.minutes()
    delayed.dispatch_log.dispatchers()
    Registry(Scripts(queue.client), "redis_queue").fields()
    inspector = Inspector(queue.client)
    inspector.overview()
    inspector.expired(queue)
    inspector.expired(delayed)
    Audit(queue.client, "redis_queue").last()
    history = RunHistory(queue.client, "redis_queue")
    history.minutes(60, [SERIES])
    history.hours(24, [SERIES])
    history.totals(60)
    history.all_time()
    workers = Workers(queue.client, "redis_queue")
    workers.rows()
    workers.running()
    watch_runs(Runs(queue.client, "redis_queue"))
    failures = Failures(queue.client, "redis_queue")
    failures.count()
    failures.groups()
    page, _ = failures.list(after="1.x", until=NOW)
    failures.summaries([failure.id for failure in [*page, FAILURE]])
    failures.get(FAILURE.id)
    flows = Flows(queue.client, "redis_queue")
    flows.list()
    flows.get("queue:mail")
    flows.keys("queue:mail")
    Declarations(Scripts(queue.client), FlowKeys("redis_queue")).read()
    watch_owners(Owners(queue.client, "redis_queue"))
    watch_schedules(ScheduleStore(delayed))


def watch_owners(owners: Owners) -> None:
    """Read the keys of unique tasks."""
    owners.get("sync", "key")
    owners.list()
    owners.page("sync")
    owners.count()


def watch_schedules(schedules: ScheduleStore) -> None:
    schedules.get(schedules.names())
    schedules.events("nightly")
    schedules.states(10)
    schedules.count()
    schedules.refused()


def watch_runs(runs: Runs) -> None:
    """Read kept runs."""
    runs.latest()
    runs.get("id")
    runs.tree("id")


def administer(queue: RedisQueue, delayed: DelayQueue) -> None:
    """Redrive, pause, empty and delete queues."""
    queue.redrive()
    delayed.redrive()
    queue.delete_dead(["gone"])
    delayed.delete_dead(["gone"])
    delayed.marked.cancel_unique([("gone", "", "sync\0key", "ab")], FlowKeys("redis_queue"))
    failures = Failures(queue.client, "redis_queue")
    failures.claim([FAILURE], "token")
    failures.give_back([FAILURE], "token")
    failures.delete([FAILURE])
    Reports(queue.client, "redis_queue").write(WorkerRow("me", NOW, NOW), leaving=True)
    queue.pause()
    queue.resume()
    for place in ("ready", "delayed", "dead", "quarantine"):
        queue.purge(place)
    delayed.purge("waiting", "dead", "quarantine")
    queue.destroy()
    delayed.destroy()
    flows = Flows(queue.client, "redis_queue")
    flows.declare({"queue:mail": Flow(limit=1)})
    flows.set("queue:mail", limit=2)
    flows.pause("queue:mail")
    flows.resume("queue:mail")
    flows.reset("queue:mail")
    backlog = Backlog(Scripts(queue.client), FlowKeys("redis_queue"))
    backlog.of_queues(["mail"])
    list(backlog.purge("mail", 10))
    Owners(queue.client, "redis_queue").release("sync", "key")
    ScheduleStore(delayed).change([Change("nightly", b"", None)])
    ScheduleStore(delayed).set_versions("shop", b"", [], [])


def operate(queue: RedisQueue, _: DelayQueue) -> None:
    """Run an action once, write it to the audit log, read the log."""
    audit = Audit(queue.client, "redis_queue")
    assert audit.begin("form")
    assert not audit.begin("form")
    audit.record(ACTION)
    assert ACTION.user in [action.user for action in audit.last()]


NOW = datetime.now(timezone.utc)
SERIES = Series("task", "queue")
TASK = RunningTask("id", "task", "queue", "me", NOW)
RUN = Run("id", "task", "queue", "me", "succeeded", NOW)
ACTION = AuditLine(datetime.now(timezone.utc), "ann", "purge", "work", 3)
FAILURE = Failure("failed", "shop.mail", "celery", "one", NOW, traceback="Traceback")
ACTS: dict[str, Callable[[RedisQueue, DelayQueue], Any]] = {
    "producer": produce,
    "worker": consume,
    "dispatcher": dispatch,
    "flows": run_flow,
    "holder": take_turns,
    "dashboard": watch,
    "admin": administer,
    "operator": operate,
    "loader": lambda queue, _: load_scripts(queue.client),
}
"""What needs all rules of a role."""


def rules_of(name: str) -> str:
    return next(role.rules for role in ROLES if role.name == name)
