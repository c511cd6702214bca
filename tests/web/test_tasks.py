"""Tasks: found by an argument wherever they are, by page, command and search box; filters, pages, hostile input."""

from __future__ import annotations

import base64
import json
import re
import time
import timeit
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue import DelayQueue, RedisQueue
from redis_queue.basics.options import Conditions
from redis_queue.cli import celery as celery_cli
from redis_queue.delay.model import Push
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Run, RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import AppAccess
from redis_queue.operate.tasks import STATES, TaskSearch
from redis_queue.store.keys import Keys, MonitorKeys
from redis_queue.web import dashboard
from tests.support.cli.commands import runner
from tests.support.web.browser import Browser
from tests.support.web.contents import KEY, delayed_of

ORDER = "ORD-55555"
ARGS = f"('{ORDER}',)"
DAY = timedelta(days=1)


def now() -> datetime:
    return datetime.now(timezone.utc)


class World:
    def __init__(self, client: redis.Redis, app: Celery) -> None:
        self.client, self.app = client, app
        self.reports = Reports(client, "redis_queue")

    def delay(self, id_: str, order: str = ORDER, task: str = "shop.ship", **options: Any) -> None:
        self.app.send_task(task, [order], {"token": "hunter2"}, task_id=id_, countdown=3600, **options)

    def wait(self, id_: str, order: str = ORDER, task: str = "shop.ship", queue: str = "ship", **options: Any) -> None:
        self.app.send_task(task, [order], {"token": "hunter2"}, task_id=id_, queue=queue, **options)

    def run(self, *ids: str, order: str = ORDER, task: str = "shop.ship") -> None:
        at = now()
        row = WorkerRow("one@host", at, at, queues=("ship",))
        rows = [RunningTask(id_, task, "ship", "one@host", at - timedelta(minutes=1), f"('{order}',)") for id_ in ids]
        self.reports.write(row, rows)

    def fetch(self, id_: str, order: str = ORDER, task: str = "shop.ship") -> None:
        """Send a task, and take its message as a worker does."""
        self.wait(id_, order, task)
        message = self.client.lpop("ship").decode()
        self.client.hset("unacked", id_, f'[{message}, "", "ship"]')
        self.client.zadd("unacked_index", {id_: now().timestamp()})

    def fail(self, id_: str, order: str = ORDER, task: str = "shop.ship", **fields: Any) -> None:
        known = {"failed_at": now(), "exception": "ValueError", "message": "broken", "args": f"('{order}',)"}
        failure = Failure(id_, task, "ship", "one@host", **{**known, **fields})
        Failures(self.client, "redis_queue").keep([failure], 1000, 7)

    def die(self, id_: str, order: str = ORDER, task: str = "shop.ship") -> None:
        queue = DelayQueue("scheduled", self.client)
        call = {"task": task, "args": [order], "kwargs": {}, "options": {"queue": "ship"}}
        queue.push(call, due_at=now() - DAY, id=id_)
        (lease,) = queue.claim(1)
        queue.nack(lease, dead=True, reason="crashed")

    def end(self, id_: str, order: str = ORDER, task: str = "shop.ship", **fields: Any) -> None:
        at = now()
        known = {"outcome": "succeeded", "ended_at": at, "started_at": at - timedelta(seconds=2), "release": "2.0"}
        self.reports.write(ended=[Run(id_, task, "ship", "one@host", **{**known, "args": f"('{order}',)", **fields})])


@pytest.fixture
def world(client: redis.Redis, app: Celery) -> World:
    """Nothing yet."""
    app.conf.task_queues = [Queue("ship"), Queue("mail")]
    delayed_of(app, client)
    return World(client, app)


@pytest.fixture
def browser(app: Celery, world: World) -> Browser:
    return Browser(dashboard(app, secret_key=KEY))


def command(app: Celery, *arguments: str) -> Any:
    result = runner().invoke(celery_cli.group, ["tasks", *arguments, "--json"], obj=SimpleNamespace(app=app))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


PUT: dict[str, Callable[[World], None]] = {
    "running": lambda world: world.run("found"),
    "fetched": lambda world: world.fetch("found"),
    "waiting": lambda world: world.wait("found"),
    "delayed": lambda world: world.delay("found"),
    "failed": lambda world: world.fail("found"),
    "dead letter": lambda world: world.die("found"),
    "succeeded": lambda world: world.end("found"),
}


def fill(world: World, leave_out: str = "") -> None:
    """Put a task of another order into each place."""
    for number, put in enumerate((world.delay, world.wait, world.fail, world.die, world.end)):
        put(f"other-{number}", "ORD-1")
    if leave_out != "running":
        world.run("other-5", order="ORD-1")


@pytest.mark.parametrize("state", PUT)
def test_an_argument_is_found_in_each_place(state: str, world: World, app: Celery, browser: Browser) -> None:
    fill(world, state)
    PUT[state](world)
    page = browser.get(f"/tasks?text={ORDER}")
    assert [link for link in page.links if link.startswith("/task?")] == ["/task?id=found"]
    assert re.search(rf"{state} shop.ship found", page.text)
    assert [(row["state"], row["id"]) for row in command(app, "--text", ORDER)["tasks"]] == [(state, "found")]
    response = browser.raw(f"/search?q={ORDER}")
    assert (response.status_code, response.location) == (302, f"/tasks?text={ORDER}")
    assert "ORD-55555" not in page.source.replace(f'value="{ORDER}"', "").replace(f"text={ORDER}", "")
    shown = browser.get(f"/tasks?text={ORDER}&body=1")
    assert [f"{ORDER}'" in shown.text, "hunter2" in shown.source] == [True, False]


def found(app: Celery, states: tuple[str, ...] = (), **conditions: Any) -> list[tuple[str, str]]:
    rows, more, _ = TaskSearch(AppAccess(app), Conditions(**conditions), states).first(100)
    assert not more
    return [(row.state, row.id) for row in rows]


EACH = [
    ("running", "other-5"),
    ("failed", "other-2"),
    ("dead letter", "other-3"),
    ("waiting", "other-1"),
    ("delayed", "other-0"),
    ("succeeded", "other-4"),
]


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ({}, range(6)),
        ({"task_part": "hop.sh"}, range(6)),
        ({"task_part": "mail"}, []),
        ({"queue": "ship"}, [0, 1, 2, 3, 5]),
        ({"id_prefix": "other-"}, range(6)),
        ({"id_prefix": "other-3"}, [2]),
        ({"text": "other-3"}, [2]),
        ({"text": "broken"}, [1]),
        ({"text": "crashed"}, [2]),
        ({"worker": "one@host"}, [0, 1, 5]),
        ({"release": "2.0"}, [5]),
        ({"stamp": {"order": ["7"]}}, []),
        ({"due_after": timedelta(minutes=10)}, range(6)),
        ({"due_before": timedelta(seconds=30)}, [0]),
        ({"due_after": datetime(2035, 1, 1, tzinfo=timezone.utc)}, []),
    ],
    ids=str,
)
def test_filters(conditions: dict[str, Any], numbers: list[int], world: World, app: Celery) -> None:
    fill(world)
    assert found(app, **conditions) == [EACH[number] for number in numbers]


@pytest.mark.parametrize("state", STATES)
def test_states(state: str, world: World, app: Celery) -> None:
    fill(world)
    world.end("retries", outcome="retried")
    world.end("revoked", outcome="revoked")
    world.end("failed-unkept", outcome="failed", error="KeyError: gone")
    expected = [*EACH, ("retried", "retries"), ("revoked", "revoked"), ("failed", "failed-unkept")]
    assert found(app, (state,)) == [row for row in expected if row[0] == state]


def test_a_tag_is_found_where_it_is_known(world: World, app: Celery, browser: Browser) -> None:
    for number, put in enumerate((world.wait, world.delay)):
        put(f"tagged-{number}", headers={"stamps": {"order": "7"}, "stamped_headers": ["order"]})
    fill(world)
    page = browser.get("/tasks?tag=order%3D7")
    assert [link for link in page.links if link.startswith("/task?")] == ["/task?id=tagged-0", "/task?id=tagged-1"]
    assert "failed: not searched: they have no stamp; kept runs: not searched" in page.text


def test_a_kept_failure_is_one_row(world: World, app: Celery) -> None:
    world.fail("twice")
    world.end("twice", outcome="failed")
    assert found(app) == [("failed", "twice")]


def test_a_row_leads_to_its_task_also_if_its_retry_waits_under_another_id(world: World, app: Celery) -> None:
    world.delay("order-1")
    queue = DelayQueue("scheduled", world.client)
    (entry,) = queue.list()
    queue.push(entry.payload, delay=60, id="order-1~retry", headers=entry.headers)
    assert found(app, ("delayed",)) == [("delayed", "order-1")] * 2


def pages(app: Celery, limit: int, states: tuple[str, ...] = (), **conditions: Any) -> list[Any]:
    search, after = TaskSearch(AppAccess(app), Conditions(**conditions), states), None
    shown = []
    while not shown or after is not None:
        page = search.page(after, limit)
        shown.append(page)
        after = page.next
    return shown


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_pages_show_each_task_once(limit: int, world: World, app: Celery) -> None:
    world.run(*(f"running-{number}" for number in range(9)))
    for number in range(9):
        for name in ("delay", "fail", "die", "end"):
            getattr(world, name)(f"{name}-{number}")
        world.fetch(f"fetch-{number}")
        world.wait(f"wait-{number}", queue="mail" if number % 2 else "ship", priority=number)
    shown = pages(app, limit)
    rows = [(row.state, row.id) for page in shown for row in page.rows]
    assert len(rows) == len(set(rows)) == 63
    assert all(len(page.rows) <= limit for page in shown)
    # The first page has something of each place.
    assert {row.state for row in shown[0].rows} == ({"running"} if limit == 1 else set(PUT))


def test_a_page_continues_after_rows_that_have_gone(world: World, app: Celery) -> None:
    for number in range(6):
        world.end(f"end-{number}")
        world.delay(f"delay-{number}")
    search = TaskSearch(AppAccess(app), Conditions())
    first = search.page(None, 4)
    for row in first.rows:
        world.client.zrem(MonitorKeys("redis_queue").runs_order, row.id)
        world.client.zrem(Keys("redis_queue", "delay", "scheduled", 0).waiting, row.id)
    later = {row.id for page in [search.page(first.next, 50)] for row in page.rows}
    assert later | {row.id for row in first.rows} == {f"{name}-{n}" for name in ("end", "delay") for n in range(6)}


def test_a_page_continues_with_the_next_queue_if_its_own_is_empty(world: World, app: Celery) -> None:
    for number in range(3):
        world.wait(f"mail-{number}", queue="mail")
        world.wait(f"ship-{number}", queue="ship")
    search = TaskSearch(AppAccess(app), Conditions(), ("waiting",))
    first = search.page(None, 2)
    assert [row.id for row in first.rows] == ["mail-0", "mail-1"]
    world.client.delete("mail")
    later = search.page(first.next, 5)
    assert ([row.id for row in later.rows], later.next) == (["ship-0", "ship-1", "ship-2"], None)


def test_a_page_says_how_far_it_looked_and_the_next_one_goes_on(
    world: World, app: Celery, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_queue.operate.tasks.MAX_SEARCHED", 500)
    DelayQueue("scheduled", world.client).push_many(
        Push({"task": "shop.ship", "args": [number], "kwargs": {}, "options": {}}, delay=60 + number, id=f"n{number}")
        for number in range(1200)
    )
    world.fail("failed", order="1150")
    page = browser.get("/tasks?text=1150")
    assert "Looked at 500 of 1,200 delayed; the next page goes on from there." in page.text
    assert [link for link in page.links if link.startswith("/task?")] == ["/task?id=failed"]
    page = browser.get(page.link("after="))
    assert ["Looked at 1,000 of 1,200 delayed" in page.text, "so far" in page.text] == [True, True]
    page = browser.get(page.link("after="))
    assert [link for link in page.links if link.startswith("/task?")] == ["/task?id=n1150"]
    assert "Looked at" not in page.text
    monkeypatch.setattr("redis_queue.operate.tasks.MAX_LOOKED_AT_TO_ACT", 500)
    told = command(app, "--text", "1150")
    assert ([row["id"] for row in told["tasks"]], told["more"]) == (["failed"], True)
    assert told["places"]["delayed"] == {"looked": 500, "total": 1200, "note": "looked at 500 of 1,200 delayed"}
    shown = runner().invoke(celery_cli.group, ["tasks", "--text", "x1"], obj=SimpleNamespace(app=app))
    assert "looked at 500 of 1,200 delayed" in shown.stdout


def test_a_page_says_which_queues_it_leaves_out(
    world: World, app: Celery, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.wait("m1", queue="mail")
    world.delay("d1")
    assert "only those of" not in browser.get("/tasks").text
    monkeypatch.setattr("redis_queue.operate.task_rows.MAX_QUEUES", 1)
    assert "only those of" not in browser.get("/tasks").text
    world.wait("s1")
    world.wait("s2")
    DelayQueue("later", world.client).push("x", delay=60)
    page = browser.get(f"/tasks?text={ORDER}")
    assert [link for link in page.links if link.startswith("/task?")] == ["/task?id=s1", "/task?id=s2"]
    assert "Waiting: only those of the 1 longest queue; delayed: only those of the first 1 queue by name" in page.text


def test_messages_that_wait_for_a_place_are_counted_once(world: World, app: Celery) -> None:
    app.conf.redis_queue_flow = {"queue:ship": {"limit": 1}}
    for number in range(3):
        world.wait(f"s{number}")
    (look,) = TaskSearch(AppAccess(app), Conditions(), ["waiting"]).page(None, 2).looks
    assert (look.looked, look.total) == (2, 3)


def cursor(parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.parametrize(
    "after",
    [
        "x",
        "ééé",
        cursor([]),
        cursor(7),
        cursor({"nowhere": [None, 0]}),
        cursor({"delayed": [["scheduled"], 0]}),
        cursor({"delayed": ["x", 0]}),
        cursor({"delayed": [["scheduled", "x"], 0]}),
        cursor({"delayed": [["scheduled", ["x"]], 0]}),
        cursor({"delayed": [None, -1]}),
        cursor({"delayed": [None, True]}),
        cursor({"delayed": None}),
        cursor({"running": [-1, 0]}),
        cursor({"running": [10**10, 0]}),
        cursor({"failed": ["x", 0]}),
        cursor({"failed": ["1." + "x" * 1000, 0]}),
        cursor({"kept runs": ["x", 0]}),
        cursor({"dead letters": [[0], 0]}),
        cursor({"dead letters": [[0, -1], 0]}),
        cursor({"waiting": [["mail", [-1, 0]], 0]}),
        cursor({"waiting": [[7, [0, 0]], 0]}),
        "W" * 4000,
    ],
)
def test_invalid_cursors_are_refused(after: str, world: World, app: Celery, browser: Browser) -> None:
    fill(world)
    with pytest.raises(InvalidValueError, match=r"must be|cursor"):
        TaskSearch(AppAccess(app), Conditions()).page(after, 10)
    assert browser.open(f"/tasks?after={after}").status == 400


@pytest.mark.parametrize(
    "query",
    [
        "state=eaten",
        "state=failed&state=dead",
        "tag=x",
        "tag==x",
        "since=tomorrow",
        "until=99999999999d",
        "text=%00",
        "text=" + "x" * 301,
        "limit=101",
        "release=%07",
        "nosuch=1",
        "body=yes",
        "after=" + "x" * 8001,
    ],
)
def test_invalid_parameters_are_refused(query: str, browser: Browser) -> None:
    assert browser.open(f"/tasks?{query}").status == 400


def test_a_place_that_cannot_be_read_does_not_hide_the_others(world: World, app: Celery, browser: Browser) -> None:
    fill(world)
    keys = MonitorKeys("redis_queue")
    for key in (keys.runs_order, keys.failed_at):
        world.client.delete(key)
        world.client.set(key, "x")
    RedisQueue("broken", world.client).put("x")
    world.client.set(Keys("redis_queue", "queue", "broken").dead, "x")
    shown = command(app)
    assert [row["id"] for row in shown["tasks"]] == ["other-5", "other-3", "other-1", "other-0"]
    for place in ("failed", "kept runs", "dead letters"):
        assert shown["places"][place]["note"], place


def test_hostile_rows_are_shown_or_left_out(world: World, app: Celery, browser: Browser) -> None:
    fill(world)
    keys, text = MonitorKeys("redis_queue"), "<b>\x1b[2J\u202e"
    client = world.client
    for number, raw in enumerate((b"", b"\xff", b"root\0[]", b'r\0{"outcome": "succeeded"}', b"r\0" + b"[" * 10_000)):
        client.hset(keys.runs, f"bad-{number}", raw)
        client.zadd(keys.runs_order, {f"bad-{number}": 10**15})
    client.zadd(keys.runs_order, {b"\xff\xfe": 10**17})
    client.lpush("ship", b"\xff", b"{}", b'{"headers": []}', json.dumps({"headers": {"task": text, "id": text}}))
    client.lpush("ship", json.dumps({"headers": {"task": "t", "id": 7, "argsrepr": 7, "stamps": [1]}}))
    delayed = Keys("redis_queue", "delay", "scheduled", 0)
    client.zadd(delayed.waiting, {b"\xff\x00": 1, "unreadable": 2})
    client.hset(delayed.records, "unreadable", b"\xff")
    client.hset(keys.running, "one@host", b'[["x"], 7, null]')
    shown = command(app)
    assert [row["state"] for row in shown["tasks"]].count("waiting") == 3
    for query in ("", "?text=b", f"?body=1&text={ORDER}", "?state=succeeded", "?limit=1"):
        page = browser.get(f"/tasks{query}")
        assert ["<b>" in page.source, "\x1b" in page.source, "\u202e" in page.source] == [False, False, False]
        while page.status == 200 and any("after=" in link for link in page.links):
            page = browser.get(page.link("after="))


def test_without_an_app_messages_are_not_searched(world: World, client: redis.Redis) -> None:
    fill(world)
    page = Browser(dashboard(client)).get("/tasks")
    assert "waiting: not searched: needs the celery app" in page.text.lower()
    assert "in flight: not searched: needs the celery app" in page.text.lower()
    assert "other-0" in page.text


def test_messages_in_flight_are_read_within_a_bound(world: World, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_queue.operate.task_rows.LOOK_BYTES", 8000)
    for number in range(30):
        world.fetch(f"fetch-{number}")
    world.client.hset("unacked", mapping={"fetch-3": "x" * 9000, "fetch-4": "not JSON", "fetch-5": "[]"})
    world.client.zadd("unacked_index", {"settled": now().timestamp()})
    assert sorted(found(app, task_part="ship")) == sorted(
        ("fetched", f"fetch-{number}") for number in range(30) if number not in (3, 4, 5)
    )
    (page,) = pages(app, 100, ("fetched",), text=ORDER)
    assert [look.text for look in page.looks if look.text] == ["in flight: too large to search: 1"]


def test_a_running_task_is_found_by_what_only_its_message_tells(world: World, app: Celery) -> None:
    world.fetch("both")
    world.run("both", order="ORD-1")
    assert found(app) == [("running", "both")]
    assert found(app, text=ORDER) == [("running", "both")]
    assert found(app, text="ORD-1'") == [("running", "both")]


@pytest.mark.parametrize("chosen", ["ticked", "matching", "state"])
def test_tasks_are_stopped_on_their_page(chosen: str, world: World, app: Celery) -> None:
    browser = Browser(dashboard(app, secret_key=KEY, allow_write=True))
    fill(world)
    for put in (world.delay, world.wait, world.fetch):
        put(f"stop-{put.__name__}")
    world.fail("failed")
    form = browser.get(f"/tasks?text={ORDER}{'&state=waiting' if chosen == 'state' else ''}").form("/preview")
    ticks = [value for name, value in form.boxes if name == "row"]
    # A task that has ended cannot be stopped.
    assert len(ticks) == (1 if chosen == "state" else 3)
    choice: dict[str, Any] = {"row": ticks} if chosen == "ticked" else {"matching": "1"}
    asked = browser.send(form, ("verb", "stop"), **choice)
    assert ("Waiting 1 0" in asked.text, "Delayed 1 0" in asked.text) == (True, chosen != "state")
    done = browser.send(asked.confirmation)
    assert f"{len(ticks)} stopped." in done.text
    left = {id_ for _, id_ in found(app, ("delayed", "waiting"))}
    gone = {"stop-wait"} if chosen == "state" else {"stop-wait", "stop-delay"}
    assert {"other-0", "other-1", "stop-wait", "stop-delay"} - left == gone
    revoked = {id_.decode() for id_ in world.client.zrange("{redis_queue:delay:scheduled:0}:discarded", 0, -1)}
    assert revoked >= ({"stop-wait"} if chosen == "state" else {"stop-wait", "stop-fetch"})


@pytest.mark.parametrize(
    "row",
    ["x", "failed:ship:a::", "running:ship:a::one@host", "running:ship:a:7:", "waiting:ship::1.a:", "delayed:::::"],
)
def test_a_bad_row_stops_nothing(row: str, world: World, app: Celery) -> None:
    browser = Browser(dashboard(app, secret_key=KEY, allow_write=True))
    world.delay("other")
    form = browser.get("/tasks").form("/preview")
    assert browser.send(form, ("verb", "stop"), row=row).status == 400
    assert browser.send(form, ("verb", "stop"), matching="1").status == 400
    assert found(app) == [("delayed", "other")]


def test_an_entry_that_came_due_leads_to_its_task(world: World, browser: Browser) -> None:
    world.delay("later")
    DelayQueue("scheduled", world.client).cancel("later")
    world.end("later")
    for id_ in ("later", "later~retry"):
        response = browser.raw(f"/entry?kind=delay&id={id_}")
        assert (response.status_code, response.location) == (302, "/task?id=later")
    assert browser.open("/entry?kind=delay&id=nosuch").status == 404


MANY = 100_000


@pytest.mark.timeout(120)
def test_a_page_of_many_tasks_costs_few_reads(world: World, monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    client = world.client
    monkeypatch.setattr("redis_queue.web.context.current", lambda _: [])  # Looks meanwhile, every five seconds.
    world.wait("first", order="1")
    message = client.lindex("ship", 0)
    world.delay("later", order="1")
    keys, monitor = Keys("redis_queue", "delay", "scheduled", 0), MonitorKeys("redis_queue")
    record = client.hget(keys.records, "later")
    world.end("end")
    run = client.hget(monitor.runs, "end")
    for first in range(0, MANY, 10_000):
        with client.pipeline(transaction=False) as pipe:
            ids = [f"m{number:06}" for number in range(first, first + 10_000)]
            pipe.hset(keys.records, mapping=dict.fromkeys(ids, record))
            pipe.zadd(keys.waiting, {id_: 4e12 + number for number, id_ in enumerate(ids)})
            pipe.zadd(keys.dead, {id_: number for number, id_ in enumerate(ids)})
            pipe.lpush("ship", *[message] * 10_000)
            if first < 20_000:
                pipe.hset(monitor.runs, mapping=dict.fromkeys(ids, run))
                pipe.zadd(monitor.runs_order, {id_: number for number, id_ in enumerate(ids)})
            pipe.execute()
    for query, most in (("", 100), (f"?text={ORDER}", 200)):
        browser.get(f"/tasks{query}")
        before, began = client.info("stats"), time.process_time()
        page = browser.get(f"/tasks{query}")
        after = client.info("stats")
        assert after["total_reads_processed"] - before["total_reads_processed"] < most
        # Five seconds of a core that takes 90 ms for the loop.
        assert time.process_time() - began < 55 * timeit.timeit("sum(range(10**7))", timer=time.process_time, number=1)
        assert "the next page goes on" in page.text or not query
