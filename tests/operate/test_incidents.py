"""Incidents: causes of situations that are given as data, and of a fleet with faults."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from redis_queue import Flow, RedisQueue
from redis_queue.admission.rules import FlowLimits, FlowState, KeyState
from redis_queue.basics.histogram import Histogram
from redis_queue.cli.celery import group
from redis_queue.cli.output import FAILED
from redis_queue.doctor.finding import Finding
from redis_queue.errors import StoreUnavailableError
from redis_queue.model import DeadLetter
from redis_queue.monitor.model import ReleaseRow, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import OTHER
from redis_queue.operate.access import AppAccess, access_to
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.operate.incidents import queues
from redis_queue.operate.incidents.registry import MAX_CAUSE, MAX_OF_KIND, RULES, current, incidents
from redis_queue.operate.incidents.situation import MAX_QUEUES, MINUTES, Incident, Situation, look
from redis_queue.operate.items import Letter
from redis_queue.operate.liveness import WorkerState, state_of
from redis_queue.operate.metrics import Collector
from redis_queue.operate.queue_row import CeleryQueueRow, QueueRow
from redis_queue.store.keys import MonitorKeys
from redis_queue.web import dashboard
from tests.support.celery.observed_names import GATE
from tests.support.celery.observing import Observed, observed_on_one_redis
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import wait_until
from tests.support.web.browser import Browser, Page
from tests.support.web.contents import KEY

NOW = datetime(2026, 11, 26, 12, 0, 30, tzinfo=timezone.utc)
NONE = Tally()
SERIES = Series("shop.hang", "web")
USUAL = {SERIES: Tally(100, duration=Histogram.of([200.0] * 100))}


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


CALL = {"task": "shop.mail", "args": [], "kwargs": {}, "options": {"queue": "mail"}}


def letter(body: Any) -> Letter:
    """Return a dead letter that died a minute ago."""
    return Letter(cast("Any", None), DeadLetter("id", body, {}, ago(60), 3, "its worker died 3 times", 100))


def worker(name: str = "web@a", *, busy: int = 2, age: float = 1.0, **fields: Any) -> WorkerState:
    """Return the state of a worker with two processes, which reported *age* seconds ago."""
    known: dict[str, Any] = {"concurrency": 2, "queues": ("web",), "loop_age": 0.5, "keeper": True, **fields}
    row = WorkerRow(name, ago(age), ago(9000), pool="prefork", busy=busy, **known)
    return WorkerState(row, age, *state_of(row, age))


def running(seconds: float, task: str = "shop.hang", worker: str = "web@a") -> RunningTask:
    return RunningTask(f"id-{seconds:.0f}", task, "web", worker, ago(seconds))


def queue(**fields: Any) -> CeleryQueueRow:
    """Return a Celery queue with 1,204 messages, the oldest of which has waited for four minutes."""
    return CeleryQueueRow(**{"name": "web", "ready": 1204, "consumers": 1, "oldest_age": 240.0, **fields})


def minutes(*latest: Tally, before: Tally = NONE) -> list[Tally]:
    return [*[before] * (MINUTES - len(latest)), *latest]


HUNG = Situation(NOW, celery_queues=[queue()], workers=[worker()], running=[running(240), running(200)], usual=USUAL)
BROKEN = {SERIES: minutes(*[Tally(10, 8)] * 10, before=Tally(10))}
PAUSED = FlowState("queue:web", FlowLimits(), FlowLimits(), "", True, 0, 0)

CASES: dict[str, tuple[Situation, list[str]]] = {
    "nothing": (Situation(NOW), []),
    "a fleet at work": (
        Situation(NOW, [queue(oldest_age=2.0)], workers=[worker()], ended={SERIES: minutes(before=Tally(50, 1))}),
        [],
    ),
    "all processes hang": (
        HUNG,
        [
            "error: stuck queues: Celery queue web: 1,204 messages wait for up to 4 min, and none ends: both "
            "processes of web@a are busy: 2 x shop.hang for up to 4 min, usually 200 ms",
            "warning: slow tasks: shop.hang has run for 4 min on web@a (task id-240), and half of its runs take at "
            "most 200 ms; others that take far too long: 1",
        ],
    ),
    "messages of producers without the extension": (
        replace(HUNG, celery_queues=[queue(oldest_age=None)], usual={}),
        [
            "error: stuck queues: Celery queue web: 1,204 messages wait for up to 4 min, and none ends: both "
            "processes of web@a are busy: 2 x shop.hang for up to 4 min"
        ],
    ),
    "tasks end, but too few": (
        replace(HUNG, usual={}, ended={SERIES: minutes(Tally(3))}, celery_queues=[queue(executed_per_minute=2.5)]),
        [
            "warning: slow queues: Celery queue web: the oldest of 1,204 messages has waited for 4 min; 2 tasks end "
            "per minute; both processes of web@a are busy: 2 x shop.hang for up to 4 min"
        ],
    ),
    "long tasks that take no longer than usual": (
        replace(HUNG, usual={SERIES: Tally(100, duration=Histogram.of([600_000.0] * 100))}),
        [
            "warning: slow queues: Celery queue web: the oldest of 1,204 messages has waited for 4 min; both processes "
            "of web@a are busy: 2 x shop.hang for up to 4 min, usually 10 min"
        ],
    ),
    "an empty queue of workers that hold messages of another": (
        Situation(
            NOW,
            [queue(oldest_age=2.0), queue(name="mail", ready=0, oldest_age=None)],
            workers=[worker(queues=("web", "mail"), prefetched=4, held={"web": 6})],
            running=[running(240), running(200)],
        ),
        [],
    ),
    "messages at workers, of a queue whose list is empty": (
        Situation(
            NOW,
            [queue(ready=0, oldest_age=None)],
            workers=[worker(queues=("web", "mail"), prefetched=4, held={"web": 5, "mail": 1})],
            running=[running(240), running(200)],
        ),
        [
            "error: stuck queues: Celery queue web: 3 messages wait for up to 4 min, and none ends: both processes "
            "of web@a are busy: 2 x shop.hang for up to 4 min"
        ],
    ),
    "runs that are counted with those of other queues": (
        Situation(
            NOW,
            [queue(), queue(name="mail")],
            workers=[worker(executed_per_minute=9), worker("mail@a", queues=("mail",))],
            ended={OTHER: minutes(Tally(50))},
        ),
        [
            "error: stuck queues: Celery queue mail: 1,204 messages wait for up to 4 min, and none ends: both "
            "processes of mail@a are busy",
            "warning: slow queues: Celery queue web: the oldest of 1,204 messages has waited for 4 min; both processes "
            "of web@a are busy",
        ],
    ),
    "a free process and a rate limit": (
        Situation(
            NOW, [queue(oldest_age=400.0)], workers=[worker(busy=0, limited=7)], ended={SERIES: minutes(Tally(1))}
        ),
        [
            "warning: slow queues: Celery queue web: the oldest of 1,204 messages has waited for 6 min; 0 of 2 "
            "processes of web@a are busy, and rate limits hold 7 tasks back"
        ],
    ),
    "nobody reads it": (
        Situation(NOW, [queue(consumers=0), queue(name="webs", ready=0)]),
        [
            "error: unread queues: Celery queue web: 1,204 messages wait, and no worker that reports consumes it; "
            "workers consume webs, which has a similar name"
        ],
    ),
    "messages and workers may both be without the extension": (
        Situation(NOW, [queue(consumers=0, ready=1, oldest_age=None)]),
        ["warning: unread queues: Celery queue web: 1 message waits, and no worker that reports consumes it"],
    ),
    "workers without reports read it": (Situation(NOW, [queue(consumers=0, oldest_age=5.0)]), []),
    "by their answers": (Situation(NOW, [queue(consumers=0)], read_elsewhere=frozenset({"web"})), []),
    "an event loop that hangs": (
        Situation(NOW, [queue()], workers=[worker(busy=0, loop_age=200.0)]),
        [
            "error: stuck queues: Celery queue web: 1,204 messages wait for up to 4 min, and none ends: web@a is "
            "stuck (its event loop has not turned for 3 min 21 s)",
            "error: workers: worker web@a is stuck: its event loop has not turned for 3 min 21 s",
        ],
    ),
    "a worker that does not report": (
        Situation(NOW, workers=[worker(age=7.0), worker("b@a", age=20.0, busy=0), worker("c@a", age=200.0, busy=1)]),
        [
            "error: workers: worker b@a is silent for 20 s",
            "warning: workers: worker web@a is silent for 7 s",
            "warning: workers: worker c@a is lost: last seen 3 min 20 s ago; it ran 1 task",
        ],
    ),
    "failures since a deploy": (
        Situation(
            NOW, ended=BROKEN, releases=[ReleaseRow("v2", ago(570), NOW), ReleaseRow("v1", ago(90_000), ago(570))]
        ),
        [
            "error: failing tasks: shop.hang failed 80 of 100 times since release v2 began 9 min ago, and 0 of 500 "
            "times in the 50 min before"
        ],
    ),
    "failures since a deploy in the minute before": (
        Situation(
            NOW,
            ended={SERIES: minutes(*[Tally(10, 8)] * 2, before=Tally(10))},
            releases=[ReleaseRow("v2", ago(45), NOW)],
        ),
        [
            "error: failing tasks: shop.hang failed 16 of 20 times since release v2 began 45 s ago, and 0 of 580 times "
            "in the 58 min before"
        ],
    ),
    "a deploy without failures": (
        Situation(NOW, ended={SERIES: minutes(before=Tally(10))}, releases=[ReleaseRow("v2", ago(590), NOW)]),
        [],
    ),
    "failures since ten minutes": (
        Situation(NOW, ended=BROKEN),
        [
            "error: failing tasks: shop.hang failed 80 of 150 times in the last 15 min, and 0 of 450 times in the "
            "45 min before"
        ],
    ),
    "failures without data from before": (Situation(NOW, ended={SERIES: minutes(*[Tally(3, 2)] * 5)}), []),
    "few failures of very many": (
        Situation(NOW, ended={SERIES: minutes(*[Tally(7000, 13)] * 5, before=Tally(7000))}),
        [],
    ),
    "many failures of very many": (
        Situation(NOW, ended={SERIES: minutes(*[Tally(7000, 20)] * 5, before=Tally(7000))}),
        [
            "warning: failing tasks: shop.hang failed 100 of 105,000 times in the last 15 min, and 0 of 315,000 "
            "times in the 45 min before"
        ],
    ),
    "as many failures as before": (Situation(NOW, ended={SERIES: minutes(before=Tally(10, 2))}), []),
    "a task that always fails": (
        Situation(NOW, ended={SERIES: minutes(before=Tally(2, 2))}),
        ["warning: failing tasks: shop.hang failed 120 of 120 times in the last hour"],
    ),
    "a retry storm": (
        Situation(NOW, ended={SERIES: minutes(*[Tally(20, 0, 18)] * 5)}),
        ["warning: retry storms: shop.hang was retried 90 times in the last 15 min, and only 10 of its tasks ended"],
    ),
    "dead letters": (
        Situation(
            NOW, queues=[QueueRow("queue", "orders", dead=3)], dead={("queue", "orders"): (ago(7200), letter({}))}
        ),
        ["warning: dead letters: queue orders: 3 dead letters; the last one died 1 min ago"],
    ),
    "a dead letter of a task": (
        Situation(NOW, queues=[QueueRow("delay", "tasks", dead=1)], dead={("delay", "tasks"): (ago(60), letter(CALL))}),
        [
            "warning: dead letters: delay tasks: 1 dead letter; the last one, shop.mail of queue mail, died 1 min ago: "
            "its worker died 3 times"
        ],
    ),
    "a pause": (
        Situation(
            NOW,
            [queue(consumers=0)],
            flows=[PAUSED],
            pauses={"queue:web": AuditLine(ago(7200), "ann", "flow-pause", "queue:web", 1)},
        ),
        ["warning: flow stops: flow queue:web is paused, and 1,204 tasks wait; set by ann 2 h ago"],
    ),
    "a paused key of a queue that has nothing else to do": (
        Situation(
            NOW,
            [queue(ready=714, waiting_for_place=714)],
            workers=[worker(busy=0)],
            flows=[replace(PAUSED, paused=False, kind="fair", waiting=714)],
            stopped_keys=[("queue:web", KeyState("acme", 0, 714, paused=True))],
        ),
        ["warning: key stops: key acme of flow queue:web is paused, and 714 tasks wait"],
    ),
    "a paused task of a queue whose other tasks end": (
        Situation(
            NOW,
            [queue(ready=8, waiting_for_place=7, oldest_age=9000.0)],
            workers=[worker()],
            flows=[FlowState("shop.sync", FlowLimits(), FlowLimits(), "", True, 0, 7)],
            ended={SERIES: minutes(Tally(50))},
        ),
        ["warning: flow stops: flow shop.sync is paused, and 7 tasks wait"],
    ),
    "a low rate": (
        Situation(
            NOW,
            [queue(ready=7, waiting_for_place=7, oldest_age=9000.0)],
            workers=[worker(busy=0)],
            flows=[FlowState("queue:web", FlowLimits(rate_ms=3.6e6), FlowLimits(), "", False, 0, 7)],
        ),
        [
            "warning: slow queues: Celery queue web: the oldest of 7 messages has waited for 2 h; 0 of 2 processes of "
            "web@a are busy"
        ],
    ),
    "a pause of an empty queue": (Situation(NOW, [queue(ready=0)], flows=[PAUSED]), []),
    "a paused key": (
        Situation(NOW, stopped_keys=[("queue:web", KeyState("acme", 1, 714, paused=True)), ("q", KeyState("b", 0, 0))]),
        ["warning: key stops: key acme of flow queue:web is paused, and 714 tasks wait"],
    ),
    "late entries": (
        Situation(
            NOW,
            queues=[QueueRow("delay", "scheduled", ready=5, oldest_at=ago(90)), QueueRow("delay", "own", ready=1)],
            dispatchers={"scheduled": 0, "own": None},
        ),
        ["error: late entries: delay scheduled: 5 of 5 entries due, the first one for 1 min, and nobody dispatches"],
    ),
    "nobody dispatches what is not due yet": (
        Situation(NOW, queues=[QueueRow("delay", "scheduled", delayed=5)], dispatchers={"scheduled": 0}),
        ["error: late entries: delay scheduled: 0 of 5 entries due, and nobody dispatches"],
    ),
    "a full Redis": (
        Situation(NOW, pressure=[Finding("memory", "error", "97% of maxmemory is used", "make room")]),
        ["error: servers: 97% of maxmemory is used"],
    ),
    "keys of another program": (
        Situation(NOW, unread={"flows": "wrong type"}),
        ["warning: unreadable: flows cannot be read: wrong type"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_causes(case: str) -> None:
    situation, expected = CASES[case]
    assert [f"{one.severity}: {one.kind}: {one.cause}" for one in incidents(situation)] == expected


HOSTILE = "x; $(reboot) 'y"


@pytest.mark.parametrize(
    "situation",
    [
        Situation(NOW, [queue(name=HOSTILE, consumers=0), queue(name=f"{HOSTILE}s", ready=0)]),
        Situation(
            NOW,
            [queue(name=HOSTILE)],
            workers=[worker(queues=(HOSTILE,))],
            ended={Series("t", HOSTILE): minutes(Tally(3))},
        ),
        Situation(NOW, backlog={f"queue:{HOSTILE}": 3}),
        Situation(NOW, flows=[replace(PAUSED, name=HOSTILE, waiting=3)]),
        Situation(NOW, flows=[FlowState(HOSTILE, FlowLimits(limit=0), FlowLimits(), "", False, 0, 3)]),
        Situation(NOW, stopped_keys=[(HOSTILE, KeyState("acme", 0, 3, paused=True))]),
        Situation(NOW, stopped_keys=[("queue:mail", KeyState(HOSTILE, 0, 3, paused=True))]),
        Situation(NOW, ended={Series(HOSTILE, "web"): minutes(before=Tally(2, 2))}),
    ],
)
def test_names_in_commands_are_single_words_of_a_shell(situation: Situation) -> None:
    (incident,) = incidents(situation)
    assert shlex.quote(HOSTILE) in incident.advice
    assert HOSTILE not in incident.advice.replace(shlex.quote(HOSTILE), "").replace(shlex.quote(f"{HOSTILE}s"), "")


def found(situation: Situation) -> Incident:
    return incidents(situation)[0]


@pytest.mark.parametrize(
    ("situation", "page"),
    [
        (Situation(NOW, [queue(name="web\n", consumers=0)]), "queues"),
        (Situation(NOW, backlog={"queue:web\udcff": 3}), "flows"),
        (Situation(NOW, ended={Series("\u202e", "web"): minutes(before=Tally(2, 2))}), "failures"),
    ],
)
def test_a_name_that_a_page_refuses_leads_to_its_list(situation: Situation, page: str) -> None:
    assert found(situation).page == page


def test_each_says_since_when_what_it_hits_and_where_it_is_mended() -> None:
    stuck, failing = found(HUNG), found(CASES["failures since ten minutes"][0])
    assert (stuck.since, stuck.hits, stuck.page) == (ago(240), 1204, "celery-queue?name=web")
    # The minute in which the first one failed began nine minutes before the current one.
    assert (failing.since, failing.hits) == (ago(570), 80)
    assert failing.page == "failures?task=shop.hang"
    # Those that have always failed now and then are not part of it.
    seldom = replace(
        CASES["failures since a deploy"][0], ended={SERIES: minutes(*[Tally(10, 8)] * 10, before=Tally(10, 1))}
    )
    assert (found(seldom).since, found(seldom).hits) == (ago(570), 80)
    assert found(CASES["a pause"][0]).since == ago(7200)
    assert found(CASES["dead letters"][0]).since == ago(7200)


def test_errors_come_first_and_then_what_hits_most() -> None:
    several = replace(
        HUNG,
        celery_queues=[queue(), queue(name="mail", consumers=0), queue(name="bulk", consumers=0, ready=9000)],
        queues=[QueueRow("queue", "orders", dead=99_999)],
        pressure=[Finding("memory", "warning", "85% of maxmemory is used", "make room")],
    )
    assert [(one.kind, one.subject) for one in incidents(several)] == [
        ("stuck queues", "web"),
        ("unread queues", "bulk"),
        ("unread queues", "mail"),
        ("servers", "memory"),
        ("slow tasks", "shop.hang"),
        ("dead letters", "orders"),
    ]


def test_metrics_have_each_set_of_labels_once(client: redis.Redis) -> None:
    rows = [QueueRow(kind, "orders", dead=3) for kind in ("queue", "delay")]
    both = incidents(Situation(NOW, queues=rows))
    (metric,) = (
        metric
        for metric in Collector(access_to(client, "redis_queue").inspector, incidents=lambda: both).collect()
        if metric.name == "redis_queue_incident"
    )
    assert [sample.labels["subject"] for sample in metric.samples] == ["orders"]


def test_the_page_lists_every_kind_in_its_order() -> None:
    page = (ROOT / "docs" / "incidents.md").read_text()
    assert re.findall(r"^\| ([a-z ]+) \| (?!what)", page, re.MULTILINE) == list(RULES)


def test_a_large_fleet() -> None:
    many = Situation(
        NOW,
        celery_queues=[queue(name=f"q{number}") for number in range(300)],
        workers=[
            worker(f"w{number}@a", queues=tuple(f"q{n}" for n in range(number % 300, 300, 10)))
            for number in range(10_000)
        ],
        running=[running(90, worker=f"w{number}@a") for number in range(10_000)],
        ended={Series(f"t{number}", f"q{number}"): minutes(before=Tally(10, 9)) for number in range(200)},
        usual=USUAL,
        releases=[ReleaseRow(f"v{number}", ago(5000 + number), NOW) for number in range(100)],
    )
    kinds = Counter(one.kind for one in incidents(many))
    assert kinds == dict.fromkeys(("stuck queues", "slow queues", "failing tasks"), MAX_OF_KIND + 1)
    rest = next(one for one in incidents(many) if one.subject == "(other)" and one.kind == "failing tasks")
    assert (rest.cause, rest.page) == ("180 more failing tasks", "failures")


def test_four_times_as_many_queues_cost_four_times_as_much() -> None:
    def cost(count: int) -> float:
        many = Situation(
            NOW,
            celery_queues=[queue(name=f"q{number}", consumers=number % 2) for number in range(count)],
            backlog={f"queue:{letter}{number}": 1 for letter in "pr" for number in range(count)},
            flows=[replace(PAUSED, name=f"queue:p{number}", waiting=1) for number in range(count)],
        )
        began = time.process_time()
        kinds = Counter(one.kind for one in incidents(many))
        assert kinds == dict.fromkeys(("unread queues", "flow workers", "flow stops"), MAX_OF_KIND + 1)
        return time.process_time() - began

    assert min(cost(4000) for _ in range(3)) < 8 * min(cost(1000) for _ in range(3))


class TestLook:
    def test_a_part_that_cannot_be_read_hides_no_other(self, client: redis.Redis) -> None:
        RedisQueue("orders", client).put("x")
        keys = MonitorKeys("redis_queue")
        for key in (keys.workers, keys.series, "redis_queue:flow:config"):
            client.set(key, "of another program")
        situation = look(access_to(client, "redis_queue"))
        assert [row.name for row in situation.queues] == ["orders"]
        assert {"the reports of workers", "the history"} <= situation.unread.keys()
        assert {one.kind for one in current(access_to(client, "redis_queue"))} == {"unreadable"}

    def test_the_last_of_many_queues_is_counted(self, client: redis.Redis) -> None:
        for number in range(MAX_QUEUES):
            RedisQueue(f"orders-{number:03}", client).put("x")
        assert look(access_to(client, "redis_queue")).queues[-1].name == "orders-299"

    @pytest.mark.parametrize("name", [b"\xff\xfe", b"\xed\xa0\x80", b"a\0b\n", b"x" * 100_000])
    def test_a_flow_of_another_program_hides_no_incident(self, client: redis.Redis, name: bytes) -> None:
        access = access_to(client, "redis_queue")
        keys = access.flows.redis_keys
        client.hset(keys.backlog, mapping={b"queue:" + name: 7, name: 7})
        access.flows.declare({"shop.sync": Flow(fair="{tenant}", limit=0)})
        client.hset(keys.config, name, client.hget(keys.config, "shop.sync") or "")
        client.hset(keys.rules("shop.sync"), name, "= = = 1")
        client.zadd(keys.keys("shop.sync"), {name: 3})
        registry = CollectorRegistry()
        registry.register(Collector(access.inspector, incidents=lambda: current(access)))
        incidents = current(access)
        assert [one.kind for one in incidents] == ["flow workers", "flow stops", "key stops"]
        assert max(len(one.cause) for one in incidents) <= MAX_CAUSE
        assert generate_latest(registry).count(b"\nredis_queue_incident{") == len(incidents)

    @pytest.mark.parametrize("paused", [True, False])
    def test_who_stopped_a_flow_did_not_stop_a_key_of_it(self, client: redis.Redis, *, paused: bool) -> None:
        access = access_to(client, "redis_queue")
        access.flows.declare({"shop.sync": Flow(fair="{tenant}", limit=None if paused else 0, limit_each=1)})
        if paused:
            access.flows.pause("shop.sync")
        for user, verb, detail in (
            ("ann", "flow-pause" if paused else "flow-set", "" if paused else "limit 0"),
            ("ben", "flow-pause", "key acme"),
            ("cid", "flow-set", "key acme, limit 0"),
            ("dan", "flow-set" if paused else "flow-pause", "rate 5/s"),
        ):
            Audit(client, "redis_queue").record(AuditLine(NOW, user, verb, "shop.sync", 1, detail))
        assert look(access).pauses["shop.sync"].user == "ann"

    def test_without_redis(self) -> None:
        with RedisServer() as server, server.client() as client:
            access = access_to(client, "redis_queue")
            server.stop()
            with pytest.raises(StoreUnavailableError):
                current(access)


@pytest.fixture
def hung() -> Iterator[Observed]:
    """A queue with three messages, whose worker runs two tasks that do not end."""
    with observed_on_one_redis() as observed, observed.worker(pool="prefork", name="web") as worker:
        for _ in range(5):
            observed.send(GATE, "gate")
        wait_until(lambda: len(observed.workers.running()) == 2, description="two running tasks")
        yield observed
        worker.kill()


def test_every_surface_shows_the_same_list(hung: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "WAITS", 1.0)
    monkeypatch.setattr(queues, "ENDED_MINUTES", 1)
    access = AppAccess(hung.app)
    stuck = wait_until(
        lambda: [one for one in current(access) if one.kind == "stuck queues"], timeout=90, description="it"
    )
    cause = stuck[0].cause
    assert "Celery queue celery: 3 messages wait for up to" in cause
    assert f"both processes of web@test are busy: 2 x {GATE} for up to" in cause
    browser = Browser(dashboard(access, secret_key=KEY))
    pages = [wait_until(partial(_page, browser, path), description="it on the page") for path in ("/incidents", "/")]
    assert all(page.source.count('href="/celery-queue?name=celery"') for page in pages)
    assert "<title>(1) " in pages[0].source
    result = CliRunner().invoke(group, ["incidents", "--json"], obj=SimpleNamespace(app=hung.app))
    shown = json.loads(result.stdout)["incidents"]
    assert [(one["kind"], one["severity"], one["hits"]) for one in shown] == [("stuck queues", "error", 3)]
    assert result.exit_code == FAILED
    collector = Collector(access.inspector, incidents=lambda: current(access))
    samples = [
        sample for metric in collector.collect() for sample in metric.samples if sample.name == "redis_queue_incident"
    ]
    labels = {"kind": "stuck queues", "subject": "celery", "severity": "error"}
    assert [(sample.labels, sample.value) for sample in samples] == [(labels, 1)]


def _page(browser: Browser, path: str) -> Page | None:
    page = browser.get(path)
    return page if "and none ends: both processes of web@test" in page.text else None
