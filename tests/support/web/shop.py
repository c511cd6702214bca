"""A shop on a bad day: half an hour ago a deploy broke charging, a worker is stuck, and nobody reads the reports."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Final

import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue import DelayQueue, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.admission.rules import Flow
from redis_queue.basics.histogram import Histogram
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.schedules.runs import calendar_of
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched, Push
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Run, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import AppAccess
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.schedules.state import Event
from redis_queue.schedules.store import Change
from redis_queue.store.keys import FlowKeys

PREFIX: Final = "redis_queue"
DEPLOYED: Final = 30
"""Minutes since the deploy."""

BEFORE: Final = "2026.11-0c17e55"
RELEASE: Final = "2026.11-4f2a91c"

QUEUES: Final = ("shop", "mail", "billing", "search", "reports", "parked")
MINUTES: Final = 130


@dataclass(frozen=True)
class Load:
    """Runs of a task in a minute, its share of failures, and its usual run and waiting time in ms."""

    task: str
    runs: int
    failing: float
    run: float
    wait: float


LOADS: Final = (
    Load("shop.remind", 240, 0.001, 35, 8),
    Load("shop.cancel_order", 60, 0.002, 60, 9),
    Load("mail.digest", 110, 0.01, 180, 30),
    Load("billing.charge", 45, 0.004, 420, 15),
    Load("search.reindex", 6, 0.0, 9_000, 900),
)
SHARES: Final = tuple(load.runs for load in LOADS)


SCHEDULES: Final[Sequence[tuple[str, str, str, dict[str, Any]]]] = (
    ("reindex", "*/5 * * * *", "search.reindex", {"overlap": "skip", "queue": "search"}),
    ("charge-open-invoices", "0 6-20 * * *", "billing.charge", {"queue": "billing", "jitter": 60}),
    ("digest", "30 7,12,17 * * *", "mail.digest", {"queue": "mail", "expires": "next"}),
    ("nightly-report", "30 2 * * *", "shop.report", {"args": ("eu",), "missed": "latest", "window": 3600}),
    ("stock-sync", "*/20 * * * *", "shop.sync", {"queue": "shop", "pause_after_failures": 5}),
    ("remind", "*/15 8-18 * * 1-5", "shop.remind", {"queue": "shop"}),
    ("clean-up", "0 */2 * * *", "shop.clean_up", {}),
    ("month-end", "0 1 1 * *", "billing.close_month", {"queue": "billing", "missed": "all"}),
)


def fill_shop(client: redis.Redis, app: Celery) -> None:
    """Fill Redis with the data of this day; only its times differ from call to call. *app* sends the messages."""
    chance = random.Random(7)
    client.flushall()
    app.conf.task_queues = [Queue(name) for name in QUEUES]
    _delay(client, chance)
    _log_dispatches(client, chance)
    _put_orders(client)
    _send(app, chance)
    _limit_mail(client)
    _keep_failures(client, chance)
    _report(client, chance)
    audit = Audit(client, PREFIX)
    audit.record(AuditLine(_ago(minutes=9), "ann", "cancel", "scheduled", 14, ""))


def _ago(**span: float) -> datetime:
    return datetime.now(timezone.utc) - timedelta(**span)


def _delay(client: redis.Redis, chance: random.Random) -> None:
    delayed = DelayQueue("scheduled", client)
    delays = [abs(chance.gauss(6, 4)) * 3600 + 60 * math.floor(chance.random() * 3) for _ in range(6000)]
    delayed.push_many(
        Push(_call(chance, 1000 + n), delay=wait, id=f"order-{1000 + n}") for n, wait in enumerate(delays)
    )
    options = {"queue": "shop", "priority": 5}
    payload = {"task": "shop.remind", "args": [1042], "kwargs": {"customer": 7042, "token": "4f1c"}, "options": options}
    delayed.push(payload, id="order-1042", delay=5400, headers={"trace": "00-4bf92f35-01"})


def _call(chance: random.Random, number: int) -> dict[str, object]:
    task = chance.choices(LOADS, SHARES)[0].task
    return {
        "task": task,
        "args": [number],
        "kwargs": {"customer": 7000 + number % 900},
        "options": {"queue": task.partition(".")[0]},
    }


def _log_dispatches(client: redis.Redis, chance: random.Random) -> None:
    """Log the dispatches of the last hour, minute by minute."""
    now = round(time.time() * 1000)
    for minute in range(60):
        past = DelayQueue("scheduled", client, clock=partial(int, now - (59 - minute) * 60_000))
        late = [
            chance.expovariate(1 / 4) + (40 if minute in (22, 23) else 0)
            for _ in range(chance.randint(90, 150) + (400 if minute % 15 == 0 else 0))
        ]
        past.dispatch_log.note(Dispatched(len(late), 0, Histogram.of(late)))
    for name, leads in (("worker-1@shop", True), ("worker-2@shop", False)):
        row = DispatcherRow(name, datetime.now(timezone.utc), leads, "0.1.0", 9000 if leads else 0, 0, "")
        DelayQueue("scheduled", client).dispatch_log.note(Dispatched(), dispatcher=row)


def _put_orders(client: redis.Redis) -> None:
    orders = RedisQueue("orders", client)
    orders.put_many({"order": number} for number in range(400))
    orders.get_many(12)
    for number, reason in enumerate(["Timeout: no answer from payments within 30 s", "KeyError: 'address'"] * 6):
        orders.nack_many(orders.get_many(1 + number % 2), dead=True, reason=reason)
    RedisQueue("exports", client).put_many(range(25))
    RedisQueue("exports", client).pause()


def _send(app: Celery, chance: random.Random) -> None:
    """Send mails of three tenants, and reports, whose queue nobody reads."""
    with app.connection_for_write() as connection:
        for number in range(240):
            tenant = chance.choices(("acme", "birch", "cedar"), (8, 1, 1))[0]
            mail = {"tenant": tenant, "customer": 7000 + number}
            app.send_task("mail.digest", [number], mail, queue="mail", task_id=f"mail-{number}", connection=connection)
        for number in range(38):
            app.send_task(
                "reports.monthly", [number], queue="reports", task_id=f"report-{number}", connection=connection
            )


def _limit_mail(client: redis.Redis) -> None:
    """Let the tenants take turns in the queue "mail"; somebody has lowered its limit."""
    flows, keys, name = Flows(client, PREFIX), FlowKeys(PREFIX), "queue:mail"
    flows.declare(
        {
            name: Flow(limit=40, rate="600/m", burst=20, fair="{tenant}", limit_each=8),
            "search.reindex": Flow(limit=1, key="shop:{shop}"),
            "billing.charge": Flow(limit=12, rate="5/s"),
        }
    )
    flows.set(name, limit=20)
    waiting, running = {"acme": 1840, "birch": 12, "cedar": 3}, {"acme": 8, "birch": 6, "cedar": 1}
    client.zadd(keys.keys(name), waiting)
    client.hset(keys.backlog.decode(), name, sum(waiting.values()))
    client.hset(keys.running.decode(), mapping={name: sum(running.values()), "billing.charge": 7})
    client.hset(keys.running.decode(), mapping={f"{name}\0{tenant}": count for tenant, count in running.items()})


def _keep_failures(client: redis.Redis, chance: random.Random) -> None:
    rows = [
        ("billing.charge", "GatewayError", "the gateway refused field 'iban' (code 4012)", 64, DEPLOYED),
        ("mail.digest", "SMTPServerDisconnected", "Connection unexpectedly closed", 9, 900),
        ("shop.remind", "CustomerGone", "customer 7311 was deleted", 3, 2000),
    ]
    kept: list[Failure] = []
    for task, exception, text, count, since in rows:
        for number in range(count):
            id_ = f"{task.rpartition('.')[2]}-{number}"
            file = task.partition(".")[0]
            kept.append(
                Failure(
                    id_,
                    task,
                    file,
                    "worker-1@shop",
                    _ago(minutes=since * chance.random()),
                    exception=exception,
                    message=text,
                    traceback="Traceback (most recent call last):\n"
                    f'  File "/srv/shop/{file}/tasks.py", line 42, in {task.rpartition(".")[2]}\n'
                    f"    send(order, timeout=30)\n{file}.errors.{exception}: {text}\n",
                    args=f"({1000 + number},)",
                    kwargs=f"{{'customer': {7000 + number}}}",
                    seconds=0.4,
                    body=_message(id_, task, 1000 + number),
                )
            )
    kept.sort(key=lambda failure: failure.failed_at)
    # The second step of a chain, whose third one was never sent.
    step: dict[str, object] = {
        "task": "shop.ship",
        "args": [1041],
        "kwargs": {},
        "options": {"task_id": "ship-1041", "queue": "shop"},
    }
    body = _message("charge-1041", "billing.charge", 1041, chain=[step])
    found = replace(kept[-1], id="charge-1041", task="billing.charge", queue="billing", args="(1041,)", body=body)
    kept.append(
        replace(found, exception="CardExpired", message="the card expired in 10/26", failed_at=_ago(seconds=40))
    )
    failures = Failures(client, PREFIX)
    for start in range(0, len(kept), 50):
        failures.keep(kept[start : start + 50], 1000, 7)


def _message(id_: str, task: str, number: int, chain: list[dict[str, object]] | None = None) -> bytes:
    headers = {"lang": "py", "task": task, "id": id_, "root_id": id_, "retries": 0}
    embed = {"callbacks": None, "errbacks": None, "chain": chain, "chord": None}
    body = json.dumps([[number], {}, embed]).encode()
    return Envelope(body, "application/json", "utf-8", headers, {}, "", task.partition(".")[0]).pack("")


def _report(client: redis.Redis, chance: random.Random) -> None:
    """Write two hours of counts, the runs of a chain, and what three workers report now."""
    now = round(time.time() * 1000)
    for minute in range(MINUTES):
        ago = MINUTES - 1 - minute
        reports = Reports(client, PREFIX, partial(int, now - ago * 60_000))
        reports.write(tallies={_series(load): _tally(chance, load, ago) for load in LOADS})
        if release := {MINUTES - 1: BEFORE, DEPLOYED: RELEASE}.get(ago):
            reports.write(replace(_worker("worker-1@shop", _ago(minutes=ago)), release=release))
    Reports(client, PREFIX).write(ended=_runs(datetime.now(timezone.utc)))
    report_workers(client)


def fill_schedules(app: Celery) -> None:
    """Store the schedules of the shop, with the runs and events of the last hours."""
    chance, schedules = random.Random(11), AppAccess(app).schedules
    for name, rules, task, options in SCHEDULES:
        schedules.put(name, rules, task, timezone="Europe/Berlin", **options)
    schedules.pause("stock-sync", reason="stocktaking", until=_ago(hours=-3))
    store, now = schedules.store, schedules.store.now()
    changes = []
    for stored in filter(None, store.get([name for name, *_ in SCHEDULES])):
        assert stored.state is not None
        assert stored.definition is not None
        events = list[Event]()
        for due in calendar_of(stored.definition).occurrences(now - 86_400_000, now, 1000)[-12:]:
            failed, id_ = stored.name == "charge-open-invoices" and not events, store.run_id(stored.name, due)
            sent = stored.definition.fire_ms(due) + chance.randint(2, 60)
            outcome = "failed" if failed else "succeeded"
            events += [
                Event("sent", sent, id_, due),
                Event("ended", sent + chance.randint(400, 9000), id_, text=outcome),
            ]
        is_slow = stored.name == "reindex"
        if is_slow:
            events.append(Event("skipped", now - 4000, due=now - 65_000, until=now - 65_000, count=1, text="overlap"))
        state = replace(stored.state, runs=chance.randint(300, 9000), failed=chance.randint(0, 3), overlap=int(is_slow))
        changes.append(Change(stored.name, stored.state_text, state, look=stored.look, events=events))
    assert all(store.change(changes))


def report_workers(client: redis.Redis) -> None:
    """Write what three workers report now; call it again after five seconds, or they are silent."""
    reports, at = Reports(client, PREFIX), datetime.now(timezone.utc)
    running = [
        RunningTask("reindex-7", "search.reindex", "search", "worker-1@shop", at - timedelta(minutes=48), "('all',)"),
        RunningTask("mail-900", "mail.digest", "mail", "worker-1@shop", at - timedelta(seconds=3), "(900,)"),
    ]
    reports.write(_worker("worker-1@shop", at), running)
    reports.write(_worker("worker-2@shop", at))
    reports.write(replace(_worker("worker-3@shop", at), loop_age=900.0, settled_age=912.0, busy=0))


def _series(load: Load) -> Series:
    return Series(load.task, load.task.partition(".")[0])


def _tally(chance: random.Random, load: Load, ago: int) -> Tally:
    noon = 1 + 0.4 * math.sin(ago / 20)
    runs = max(1, round(load.runs * noon * chance.uniform(0.85, 1.15)))
    failing = 0.31 if load.task == "billing.charge" and ago < DEPLOYED else load.failing
    failed = sum(chance.random() < failing for _ in range(runs))

    def times(usual: float) -> Histogram:
        return Histogram.of([usual * math.exp(chance.gauss(0, 0.6)) for _ in range(runs)])

    return Tally(runs, failed, failed // 3 if failed > 3 else 0, 0, times(load.run), times(load.wait), times(4))


def _worker(name: str, at: datetime) -> WorkerRow:
    return WorkerRow(
        name,
        at,
        at - timedelta(days=3),
        host=name.rpartition("@")[2],
        pid=4711,
        pool="prefork",
        concurrency=8,
        busy=2 if name.startswith("worker-1") else 0,
        prefetched=4,
        queues=("shop", "mail", "billing", "search"),
        executed=1_204_331,
        failed=612,
        executed_per_minute=218,
        failed_per_minute=9,
        memory=86_000_000,
        versions={"redis_queue": "0.1.0", "celery": "5.7.0", "python": "3.13.9"},
        loop_age=0.2,
        settled_age=0.4,
        keeper=True,
        release=RELEASE,
    )


def _runs(at: datetime) -> Sequence[Run]:
    """Return the runs of the chain that charged order 1040: invoice, then charge, then two mails of a group."""
    root = "invoice-1040"
    chain = [
        (root, "billing.invoice", "", "", 40),
        ("charge-1040", "billing.charge", root, "", 30),
        ("mail-1040", "mail.receipt", "charge-1040", "mails-1040", 20),
        ("mail-1040-shop", "mail.notify_shop", "charge-1040", "mails-1040", 19),
    ]
    return [
        Run(
            id_,
            task,
            task.partition(".")[0],
            "worker-2@shop",
            "succeeded",
            at - timedelta(seconds=ago),
            at - timedelta(seconds=ago + 1),
            at - timedelta(seconds=ago + 1.2),
            parent=parent,
            root=root,
            group=group,
        )
        for id_, task, parent, group, ago in chain
    ]
