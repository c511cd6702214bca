"""Hostile data in Redis is shown as text on every page and never executed."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.store.keys import FlowKeys, Keys
from redis_queue.web import dashboard
from tests.support.wait import must
from tests.support.web.browser import SCREENS, Browser, Page, crawl, is_own_script
from tests.support.web.contents import (
    KEY,
    fill_audit,
    fill_delayed,
    fill_failures,
    fill_flows,
    fill_queue,
    fill_reports,
    fill_schedules,
    fill_unique,
)

MARK = "zq1"
CORPUS = (
    "<script>zq1()</script>",
    '"><script src=//zq1></script>',
    "'><img src=x onerror=zq1()>",
    '" autofocus onfocus="zq1()',
    "' style='background:url(//zq1)",
    "</title></textarea></style></script><svg onload=zq1()>",
    "<!--zq1--><![CDATA[<a href=javascript:zq1()>",
    "javascript:zq1()//",
    "&lt;script&gt;zq1()&#60;/script&#62;",
    "{{7*191}}{%raw%}${7*191}zq1",
    "<base href=//zq1><meta http-equiv=refresh content=0;url=//zq1>",
    "`zq1`\\u003cscript\\u003e",
)
_TAGS = """
a b body button caption code datalist dd details div dl dt figcaption figure form h1 h2 head header html i input label
li link main meta nav ol option p path polygon polyline pre rect script section select small span strong summary svg
table tbody td th thead time title tr ul
"""
KNOWN = frozenset(_TAGS.split())
INVISIBLE = ("\u202e", "\u2066", "\x1b[2J", "\x00", "\r\nSet-Cookie: zq1=1\r\n", "\u200b", "\ud800", "\x7f", "\u2028")


def check(page: Page) -> None:
    """Raise AssertionError for a page that executes or is shaped by stored data."""
    assert page.status == 200, page.text
    for tag, attributes in page.tags:
        assert tag in KNOWN, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, attributes)
            assert name != "style"
            if name in ("href", "src", "action"):
                address = urlsplit(value)
                assert (address.scheme, address.netloc) == ("", ""), (tag, value)
                assert value.startswith(("/", "#")), (tag, value)
            if tag == "script":
                assert is_own_script(attributes)
            if tag == "meta":
                assert "http-equiv" not in attributes
    # The result of {{7*191}} in a template; the tokens of forms are hexadecimal.
    assert not re.search(r"(?<![0-9a-f])1337(?![0-9a-f])", page.source)
    for char in set(page.source):
        assert char.isprintable() or char in "\n\t", ascii(char)


def shown(text: str, page: Page) -> bool:
    """Return whether the page shows *text* as text."""
    return text in "".join(page.pieces)


def is_of(name: str, link: str) -> bool:
    """Return whether *link* is the page of the flow *name*."""
    address = urlsplit(link)
    return address.path == "/flow" and parse_qs(address.query) == {"name": [name]}


class TestMarkup:
    @pytest.mark.parametrize("text", CORPUS)
    def test_is_shown_and_not_executed(self, text: str, client: redis.Redis) -> None:
        fill_queue(client, f"orders{text}", text)
        fill_delayed(client, f"celery{text}", text, 2)
        fill_failures(client, text)
        fill_audit(client, text)
        fill_reports(client, text)
        fill_flows(client, text)
        fill_unique(client, text)
        fill_schedules(client, text)
        browser = Browser(dashboard(client, secret_key=KEY, allow_write=True))
        pages = crawl(browser, 2)
        for page in pages.values():
            check(page)

        everywhere = {path: pages[path] for path in SCREENS}
        for path in (
            "/",
            "/queues",
            "/flows",
            "/unique",
            "/schedules",
            "/dead",
            "/scheduled",
            "/forecast",
            "/workers",
            "/failures",
            "/running",
            "/history",
        ):
            assert shown(text, everywhere[path]), path
        audit = everywhere["/audit"]
        assert all(shown(f"{field}{text}", audit) for field in ("ann", "cancel", "celery", "to 2h"))
        assert all(shown(f"{field}{text}", everywhere["/unique"]) for field in ("shop.sync", "order:7", "task-0"))
        workers = everywhere["/workers"]
        assert all(shown(f"{field}{text}", workers) for field in ("worker", "1", "refused"))
        details = [page for path, page in pages.items() if path.startswith("/entry") and "body=1" in path]
        assert any(shown("Headers", page) and MARK in page.text for page in details)
        assert any(shown(f"broken{text}", page) for path, page in pages.items() if path.startswith("/failure?"))
        assert any(shown(f"ann{text}", page) for path, page in pages.items() if path.startswith("/flow?"))
        one = next(page for path, page in pages.items() if path.startswith("/schedule?") and "body=1" in path)
        for field in ("shop.report", "often", "stocktaking", "no broker"):
            assert shown(f"{field}{text}", one), field
        for field in ("Timeout", "no such queue"):
            assert shown(f"{field}{text}", everywhere["/dead"]), field

    @pytest.mark.parametrize("text", CORPUS)
    def test_forms_submit_it_unchanged(self, text: str, client: redis.Redis) -> None:
        queue = fill_delayed(client, f"celery{text}", text, 2)
        dead = fill_queue(client, f"orders{text}", text)
        browser = Browser(dashboard(client, secret_key=KEY, allow_write=True))
        for path, verb, changed in (("/scheduled", "cancel", queue), ("/dead", "redrive", dead)):
            listed = browser.get(path)
            form = listed.form("/preview")
            rows = [value for name, value in form.boxes if name == "row"]
            preview = browser.send(form, ("verb", verb), row=rows)
            check(preview)
            done = browser.send(preview.confirmation)
            check(done)
            assert f"{len(rows)} {'cancelled' if verb == 'cancel' else 'redriven'}." in done.text
            assert (changed.stats().waiting if isinstance(changed, DelayQueue) else changed.stats().dead) < len(rows)
        page = browser.get(
            f"/queue?kind=queue&name={dead.name.replace('%', '%25').replace('&', '%26').replace('#', '%23')}"
        )
        asked = browser.send(page.form("/actions/queue/preview"), ("verb", "pause"))
        check(asked)
        check(browser.send(asked.form("/queue")))
        assert dead.stats().paused
        flows = fill_flows(client, text)
        for name in (f"queue:bulk{text}", f"shop.sync{text}"):
            page = browser.get(next(link for link in browser.get("/flows").links if is_of(name, link)))
            asked = browser.send(page.form("/actions/flow/preview"), ("verb", "flow-pause"))
            check(asked)
            check(browser.send(asked.form("/flow")))
            assert must(flows.get(name)).paused
        schedules = fill_schedules(client, text)
        asked = browser.send(browser.get("/schedules").form("/actions/schedule/preview"), ("verb", "schedule-pause"))
        check(asked)
        check(browser.send(asked.form("/schedule")))
        assert schedules.events(f"often{text}")[0].kind == "paused"
        owners = fill_unique(client, text)
        asked = browser.send(browser.get("/unique").form("/actions/unique/preview"), ("verb", "unique-release"))
        check(asked)
        check(browser.send(asked.form("/unique")))
        assert [owner.key for owner in owners.list(f"shop.sync{text}")] == [f"order:8{text}"]
        failures = fill_failures(client, text)
        DelayQueue("scheduled", client).push("known")
        listed = browser.get("/failures").form("/preview")
        rows = [value for name, value in listed.boxes if name == "row"]
        asked = browser.send(listed, ("verb", "retry"), row=rows)
        check(asked)
        done = browser.send(asked.confirmation)
        check(done)
        assert "1 of 2 retried." in done.text
        assert failures.count() == 1
        check(browser.get("/audit"))

    @pytest.mark.parametrize("text", CORPUS)
    def test_parameters_are_not_executed(self, text: str, client: redis.Redis) -> None:
        fill_delayed(client, count=2)
        browser = Browser(dashboard(client, secret_key=KEY))
        for path, name in (
            ("/scheduled", "task"),
            ("/scheduled", "queue"),
            ("/scheduled", "after"),
            ("/scheduled", "due_before"),
            ("/dead", "reason"),
            ("/dead", "limit"),
            ("/queue", "name"),
            ("/failures", "task"),
            ("/failures", "since"),
            ("/failures", "after"),
            ("/failure", "id"),
            *(("/tasks", name) for name in ("text", "state", "tag", "since", "after", "release")),
            ("/flows", "name"),
            ("/flow", "name"),
            ("/unique", "task"),
            *(("/schedules", name) for name in ("name", "state", "sort", "after")),
            ("/schedule", "name"),
            ("/entry", "id"),
            ("/entry", "kind"),
            ("/", text),
        ):
            page = browser.open(path, query_string={name: text})
            assert page.status in (200, 400, 404)
            page.status = 200
            check(page)


class TestInvisible:
    @pytest.mark.parametrize("text", INVISIBLE, ids=ascii)
    def test_is_escaped(self, text: str, client: redis.Redis) -> None:
        queue = fill_delayed(client, count=2)
        raw = text.encode(errors="surrogatepass")
        keys = Keys("redis_queue", "delay", queue.name, 0)
        call = json.dumps(
            {"task": f"shop{text}remind", "args": [text], "kwargs": {text: text}, "options": {"queue": text}}
        )
        head = json.dumps({f"head{text}": text})
        record = f"v1 1 json {len(head)} {len(call)}\n{head}{call}".encode()
        client.hset(keys.records, b"id" + raw, record)
        client.zadd(keys.waiting, {b"id" + raw: 1})
        client.hset(keys.records, b"dead" + raw, record)
        client.hset(keys.errors, b"dead" + raw, b"why " + raw)
        client.zadd(keys.dead, {b"dead" + raw: 1})
        client.hset(keys.records, "known", record)
        client.zadd(keys.waiting, {"known": 2})
        client.hset(keys.dispatchers, b"name" + raw, b'9999999999999 {"leads":1,"version":"%s"}' % b"x")
        flows = FlowKeys("redis_queue")
        fill_flows(client)
        client.hset(flows.config.decode(), b"queue:flow" + raw, "1 - - - - - - f")
        client.zadd(flows.keys("queue:bulk"), {b"key" + raw: 9})
        client.hset(flows.owners.decode(), b"task" + raw + b"\0key" + raw, b"1a - w 1000 id" + raw)
        client.zadd(flows.owner_ends, {b"task" + raw + b"\0key" + raw: 2e12})
        client.hset("redis_queue:registry", b"queue:other" + raw, '{"max_deliveries": 1, "shards": 1}')
        client.lpush("redis_queue:audit", json.dumps({"at": 1, "user": text, "verb": text, "queue": text, "count": 1}))
        browser = Browser(dashboard(client, secret_key=KEY, allow_write=True))
        for path in (
            *SCREENS,
            "/scheduled?body=1",
            "/dead?body=1",
            "/entry?id=known&body=1",
            "/queue?kind=delay&name=scheduled",
            "/flow?name=queue:bulk",
        ):
            check(browser.get(path))
        for page in crawl(browser, 2).values():
            check(page)


BODIES = (
    '{"a": 1, "a": 2}',
    '{"a": NaN}',
    "[Infinity, -Infinity]",
    "[" * 900 + "]" * 900,
    "[" * 100_000,
    "1" * 5000,
    '{"task": ["no", "name"]}',
    '{"task": "x", "args": {"no": "list"}}',
    '{"task": "x", "args": [], "kwargs": [], "options": "x"}',
    '"\\ud800"',
    "",
    "\x00",
    "null",
)


@pytest.mark.parametrize("kind", ["json", "bytes", "pickle"])
def test_any_payload_is_shown_or_marked_as_unreadable(kind: str, client: redis.Redis) -> None:
    queue, delayed = RedisQueue("orders", client), DelayQueue("scheduled", client)
    queues = (Keys("redis_queue", "queue", "orders"), Keys("redis_queue", "delay", "scheduled", 0))
    for number, body in enumerate(BODIES):
        queue.put("x", dedupe_key=f"x{number}")
        delayed.push("x", id=f"x{number}", delay=60)
        for keys in queues:
            for id_ in (f"x{number}", f"died{number}"):
                client.hset(keys.records, id_, f"v1 1 {kind} 0 {len(body)}\n{body}")
            client.zadd(keys.dead, {f"died{number}": 1})
    browser = Browser(dashboard(client, secret_key=KEY))
    for path in ("/", "/scheduled?body=1", "/dead?body=1", "/forecast", "/queue?name=orders"):
        check(browser.get(path))
    for number in range(len(BODIES)):
        for place in (f"id=x{number}", f"id=died{number}", f"kind=queue&queue=orders&id=x{number}"):
            check(browser.get(f"/entry?body=1&{place}"))
