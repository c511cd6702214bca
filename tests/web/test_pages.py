"""The content of every page; reading changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue, RedisQueue
from redis_queue.delay.model import Dispatched, Push
from redis_queue.operate.incidents.situation import Incident
from redis_queue.store.keys import Keys, PrefixKeys
from redis_queue.web import dashboard
from redis_queue.web.context import CHECK_EVERY, EXTENSION, Watch
from tests.support.wait import must
from tests.support.web.browser import SCREENS, Browser, Page, crawl, pages_from
from tests.support.web.contents import KEY, TASK, Open, delayed_of, everything, fill_delayed

BROKEN = "another Redis type"


class TestReading:
    @pytest.mark.parametrize("allow_write", [False, True])
    def test_every_link_works_and_changes_nothing(
        self, allow_write: bool, open_dashboard: Open, filled: redis.Redis
    ) -> None:
        browser = open_dashboard(allow_write=allow_write)
        before = everything(filled)
        pages = crawl(browser)

        assert [address for address, page in pages.items() if page.status != 200] == []
        assert {urlsplit(address).path for address in pages} == {
            *SCREENS,
            "/queue",
            "/celery-queue",
            "/flow",
            "/flow/key",
            "/entry",
            "/task",
            "/search",
            "/failure",
        }
        assert everything(filled) == before
        for address, page in pages.items():
            names = [attributes.get("aria-label") for tag, attributes in page.tags if tag == "nav"]
            assert len(set(names)) == len(names), (address, names)

    def test_a_get_cannot_act(self, writer: Browser, filled: redis.Redis) -> None:
        before = everything(filled)
        for path in (
            "/actions/dead/preview",
            "/actions/dead",
            "/actions/queue?verb=pause&kind=queue&name=orders&token=x",
        ):
            assert writer.raw(path).status_code in (400, 405)
        assert everything(filled) == before

    def test_works_without_a_celery_app(self, filled: redis.Redis) -> None:
        pages = crawl(Browser(dashboard(filled, secret_key=KEY)))
        assert [address for address, page in pages.items() if page.status != 200] == []

    def test_an_empty_redis(self, client: redis.Redis, app: Celery) -> None:
        client.flushall()
        browser = Browser(dashboard(app, secret_key=KEY))
        assert {path: browser.open(path).status for path in SCREENS} == dict.fromkeys(SCREENS, 200)
        assert "There is no queue under this prefix yet" in browser.get().text
        assert client.dbsize() == 0

    def test_one_of_everything_is_no_plural(self, client: redis.Redis, app: Celery) -> None:
        client.flushall()
        RedisQueue("orders", client).put("x", dedupe_key="x")
        waiting = DelayQueue("scheduled", client)
        waiting.push_many([Push("x", id="dead"), Push("x", id="x", delay=60)])
        waiting.nack_many(waiting.claim(2), dead=True)
        delayed_of(app, client).schedules.put("one", 60, "t")
        client.hset(Keys("redis_queue", "queue", "orders").records, "stray", "x")
        browser = Browser(dashboard(app, secret_key=KEY))
        paths = [*SCREENS, "/queues?name=orders", "/scheduled?task=x", "/dead?task=x", "/schedules?name=x"]
        text = "\n".join(browser.open(path).text for path in paths)
        assert re.findall(r"\b1 (?:[a-z]+ )?(?:are|have|were|match|[a-z]+(?:ues|ies|[deghklmnprt]s))\b.*", text) == []
        assert "1 dead letter" in text

    def test_an_empty_redis_without_an_app(self, client: redis.Redis) -> None:
        browser = Browser(dashboard(client))
        assert {path: browser.open(path).status for path in SCREENS} == dict.fromkeys(SCREENS, 200)
        assert "No entries wait." in browser.get("/scheduled").text
        assert "Due within the next day: 0," in browser.get("/forecast").text
        assert client.dbsize() == 0

    def test_each_page_marks_its_link(self, reader: Browser) -> None:
        for path in SCREENS:
            page = reader.get(path)
            here = [attributes["href"] for tag, attributes in page.tags if attributes.get("aria-current") == "page"]
            assert here == [path]
            assert [attributes["id"] for tag, attributes in page.tags if tag == "main"] == ["main"]
            assert sum(tag == "h1" for tag, _ in page.tags) == 1

    def test_incidents_are_counted_in_title_and_icon(self, app: Celery) -> None:
        incident = Incident(
            "mail", "error", "Celery queue mail is stuck", "restart its workers", "celery-queue?name=mail"
        )

        def show(*found: Incident) -> Page:
            made = dashboard(app, secret_key=KEY)
            made.extensions[EXTENSION].incidents = Watch(lambda: found, CHECK_EVERY)
            return Browser(made).get()

        calm, page = show(), show(incident, incident, incident)
        icons = [found["href"] for seen in (calm, page) for tag, found in seen.tags if found.get("rel") == "icon"]
        assert ["icon.svg" in icons[0], "alert.svg" in icons[1]] == [True, True]
        assert (calm.text.startswith("Overview"), page.text.startswith("(3) Overview")) == (True, True)
        assert [found.get("data-incidents") for tag, found in page.tags if tag == "main"] == ["3"]

    def test_the_label_and_another_prefix_are_on_every_page(self, client: redis.Redis) -> None:
        browser = Browser(dashboard(client, prefix="shop", label="production"))
        page = browser.get("/queues")
        assert "production" in page.text
        assert "shop" in page.text


class TestOverview:
    def test_has_totals(self, reader: Browser) -> None:
        text = reader.get().text
        for fact in ("Delayed 65", "In flight 2", "Dead 2", "Quarantined 2", "no such queue", "Timeout"):
            assert fact in text, fact

    def test_plots_dispatches(self, reader: Browser) -> None:
        page = reader.get()
        charts = [json.loads(found["data-chart"]) for _, found in page.tags if "data-chart" in found]
        sent, late = [chart for chart in charts if chart["series"][0]["name"] in ("sent", "worst")]
        assert (len(sent["times"]), len(late["times"])) == (60, 60)
        assert (sum(sent["series"][0]["values"]), sum(sent["series"][1]["values"])) == (9, 1)
        assert late["series"][0]["values"][-1] == 0.4
        assert "9 sent, 1 refused" in page.text

    def test_a_queue_with_only_refused_dispatches(self, reader: Browser, filled: redis.Redis) -> None:
        DelayQueue("unlucky", filled).push("x")
        DelayQueue("unlucky", filled).dispatch_log.note(Dispatched(0, 3))
        assert "0 sent, 3 refused; lateness p50 -" in reader.get().text

    def test_a_broken_queue_does_not_hide_others(self, reader: Browser) -> None:
        text = reader.get().text
        assert BROKEN in text
        assert "orders" in text


KEYS = Keys("redis_queue", "delay", "torn", 0)
SHARDLESS = '{"max_deliveries": 5, "shards": 0}'
DAMAGES: list[tuple[str, Callable[[redis.Redis], Any]]] = [
    ("no shards", lambda client: client.hset(PrefixKeys("redis_queue").registry, "delay:torn", SHARDLESS)),
    ("no number", lambda client: client.hset(KEYS.meta, "put", "abc")),
    ("errors", lambda client: client.set(KEYS.errors, "x")),
    ("leases", lambda client: (client.delete(KEYS.leases), client.set(KEYS.leases, "x"))),
]


@pytest.mark.parametrize(("what", "damage"), DAMAGES, ids=[what for what, _ in DAMAGES])
def test_broken_data_does_not_hide_other_data(
    what: str, damage: Callable[[redis.Redis], Any], reader: Browser, filled: redis.Redis
) -> None:
    torn = DelayQueue("torn", filled)
    torn.push_many("xy")
    torn.nack(torn.claim(1)[0], dead=True, reason="x")
    filled.delete(KEYS.errors)
    damage(filled)
    assert "Timeout" in reader.get("/").text
    assert "Timeout" in reader.get("/dead").text
    assert "leads" in reader.get("/workers").text
    assert "torn" in reader.get("/queues").text
    assert "torn" in reader.get("/doctor").text
    if what in ("no shards", "no number"):
        assert reader.get("/queue?kind=delay&name=torn").text.count("torn") > 1


class TestForecast:
    @pytest.mark.parametrize(("span", "count"), [("hour", 3), ("day", 64), ("week", 64), ("month", 64)])
    def test_counts_within_its_span(self, span: str, count: int, reader: Browser) -> None:
        page = reader.get(f"/forecast?span={span}")
        found = must(re.search(r"Due within .*?: ([\d,]+), later: ([\d,]+)", page.text))
        assert int(found[1]) == count
        assert int(found[1]) + int(found[2]) == 65

    def test_a_cell_links_to_its_entries(self, reader: Browser) -> None:
        page = reader.get("/forecast?span=day")
        cells = [link for link in page.links if "due_before" in link]
        counted = [int(text) for text in re.findall(r"due_before[^>]*>([\d,]+)</a>", page.source)]
        assert len(counted) == len(cells) > 1
        for link, count in zip(cells, counted, strict=True):
            noun = "waiting entry" if count == 1 else "waiting entries"
            assert f"{count:,} {noun}." in reader.get(link).text

    def test_counts_by_task(self, reader: Browser) -> None:
        page = reader.get("/forecast")
        rows = dict(
            re.findall(r'<th scope="row">(?:<a [^>]*>)?([^<]*)(?:</a>)?</th><td class="number">~?(\d+)', page.source)
        )
        assert rows == {"shop.remind": "62", "shop.cancel": "1", "(data)": "1"}


class TestScheduled:
    def rows(self, page: Page) -> list[str]:
        return re.findall(r'<th scope="row"[^>]*><a [^>]*><span[^>]*>([^<]*)</span></a>', page.source)

    def test_all_pages_can_be_visited(self, reader: Browser) -> None:
        seen = [row for page in pages_from(reader, "/scheduled?limit=10") for row in self.rows(page)]
        assert len(seen) == len(set(seen)) == 65
        assert seen[:2] == ["overdue", "data"]

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("task=shop.cancel", ["task-of-app"]),
            ("to=slow&task=shop.cancel", ["task-of-app"]),
            ("to=nowhere", []),
            ("id_prefix=task-5&due_before=1h5s", ["task-5"]),
            ("due_after=1d", ["far"]),
            ("due_before=1m", ["overdue", "data"]),
            ("id_prefix=%C3%A4", []),
        ],
    )
    def test_filters(self, query: str, found: list[str], reader: Browser) -> None:
        page = reader.get(f"/scheduled?{query}")
        assert self.rows(page) == found
        assert ("No match among " in page.text) == (not found)

    @pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
    def test_a_time_of_the_page_is_a_filter(self, zone: str | None, open_dashboard: Open) -> None:
        reader = open_dashboard(timezone=zone)
        shown = re.search(r"<time[^>]*>([^<]*)", reader.get("/scheduled?due_after=1d").source)
        assert shown
        assert self.rows(reader.get(f"/scheduled?due_after={shown[1]}")) == ["far"]
        assert "far" not in self.rows(reader.get(f"/scheduled?limit=100&due_before={shown[1]}"))

    def test_a_part_of_a_task_name_is_found_and_a_near_name_suggested(self, reader: Browser) -> None:
        assert self.rows(reader.get("/scheduled?task=canc")) == ["task-of-app"]
        said = reader.get("/scheduled?task=cancle").text
        assert re.search(r"No match among \d+ entries; did you mean 'shop\.cancel'\?", said)
        assert "No match among 2 dead letters; did you mean 'shop.remind'?" in reader.get("/dead?task=remnd").text

    def test_arguments_are_hidden_by_default_and_secrets_always(self, reader: Browser) -> None:
        for path in ("/scheduled?", f"/entry?queue=scheduled&id={TASK}", "/dead?", "/entry?queue=scheduled&id=task-1"):
            assert "secret" not in reader.get(path).text
            assert "argument" not in reader.get(path).text.replace("Show arguments", "")
        assert "['secret']" in reader.get(f"/entry?queue=scheduled&id={TASK}&body=1").text
        shown = reader.get("/scheduled?body=1").text
        assert "argument" in shown
        assert "hunter2" not in shown

    def test_invalid_ids_do_not_end_the_list(self, reader: Browser, filled: redis.Redis) -> None:
        keys = Keys("redis_queue", "delay", "scheduled", 0)
        for id_ in (b"\xff\xfe", b"with space ", b"\x1b[2J", b"line\nfeed", b"x" * 400):
            filled.hset(keys.records, id_, filled.hget(keys.records, "far"))
            filled.zadd(keys.waiting, {id_: 1})
        page, pages = reader.get("/scheduled?limit=1"), 1
        while following := [link for link in page.links if "after=" in link]:
            page, pages = reader.get(following[0]), pages + 1
        assert pages == 70

    def test_another_delay_queue(self, reader: Browser, filled: redis.Redis) -> None:
        fill_delayed(filled, " odd name: {x}? ")
        page = reader.get("/scheduled")
        name = next(
            attributes["value"] for tag, attributes in page.tags if tag == "option" and "odd" in attributes["value"]
        )
        assert "63 waiting entries." in reader.send(page.form("/scheduled"), queue=name).text


class TestQueue:
    def test_shows_messages_in_flight_and_the_next_ones(self, reader: Browser) -> None:
        text = reader.get("/queue?kind=queue&name=orders").text
        for fact in ("Ready 2", "Delayed 1", "In flight 1", "Dead 1", "Quarantined 1", "held", "first", "second"):
            assert fact in text, fact

    def test_of_delayed_entries(self, reader: Browser) -> None:
        text = reader.get("/queue?kind=delay&name=scheduled").text
        for fact in ("Due 1", "Delayed 64", "held", "overdue", "not a whole record"):
            assert fact in text, fact

    def test_messages_in_flight_are_paged(self, reader: Browser, filled: redis.Redis) -> None:
        busy = RedisQueue("busy", filled)
        busy.put_many(range(120))
        busy.get_many(120)
        page, seen = reader.get("/queue?kind=queue&name=busy"), 0
        while True:
            seen += sum("/entry?" in link for link in page.links)
            following = [link for link in page.links if "offset=" in link]
            if not following:
                break
            page = reader.get(following[0])
        assert seen == 120

    def test_a_delay_queue_shows_dispatched_instead_of_acked(self, reader: Browser) -> None:
        page = reader.get("/queue?kind=delay&name=scheduled").text
        assert ("Dispatched 9" in page, "Acked" in page) == (True, False)
        assert "Acked 0" in reader.get("/queue?kind=queue&name=orders").text

    def test_a_broken_queue_shows_its_error(self, reader: Browser) -> None:
        page = reader.get("/queue?kind=queue&name=broken")
        assert BROKEN in page.text

    @pytest.mark.parametrize("query", ["", "kind=queue", "kind=queue&name=nosuch", "kind=delay&name=orders"])
    def test_an_unknown_queue(self, query: str, reader: Browser) -> None:
        page = reader.open(f"/queue?{query}")
        assert page.status == 404
        assert "name is missing" in page.text or "no RedisQueue" in page.text or "no DelayQueue" in page.text


class TestDead:
    def test_filters(self, reader: Browser) -> None:
        assert "2 dead letters." in reader.get("/dead").text
        for query, count in (("reason=Timeout", 1), ("task=shop.remind", 1), ("id_prefix=dead", 2), ("name=orders", 1)):
            page = reader.get(f"/dead?{query}")
            assert sum("/entry?" in link for link in page.links) == count, query

    def test_a_broken_queue_does_not_hide_others_and_shows_its_error(self, reader: Browser) -> None:
        page = reader.get("/dead")
        assert "broken" in page.text
        assert BROKEN in page.text
        assert "Timeout" in page.text

    def test_all_pages_can_be_visited(self, reader: Browser, filled: redis.Redis) -> None:
        queue = RedisQueue("failing", filled)
        queue.put_many(range(55))
        queue.nack_many(queue.get_many(55), dead=True, reason="again")
        pages = pages_from(reader, "/dead?limit=20&id_prefix=&reason=")
        assert sum("/entry?" in link for page in pages for link in page.links) == 57

    def test_invalid_ids(self, reader: Browser, filled: redis.Redis) -> None:
        keys = Keys("redis_queue", "queue", "orders")
        for id_ in (b"\xff\xfe", b"\x1b[2J"):
            filled.zadd(keys.dead, {id_: 1})
        for path in ("/dead", "/", "/dead?body=1"):
            text = reader.get(path).text
            assert r"\udcff" in text
            assert r"\x1b[2J" in text


class TestEntry:
    @pytest.mark.parametrize(
        ("query", "facts"),
        [
            (f"queue=scheduled&id={TASK}", ("State delayed", "Task shop.remind", "Celery queue celery", "Retries 0")),
            ("queue=scheduled&id=held", ("State in flight", "delivered once", "its lease ends")),
            ("queue=scheduled&id=dead", ("State dead", "last given back: no such queue", "died")),
            ("kind=queue&queue=orders&id=first", ("State ready", "ready to be claimed")),
            ("kind=queue&queue=orders&id=later", ("State delayed", "Deliveries 0")),
            ("kind=queue&queue=orders&id=held", ("State in flight", "delivered once")),
            ("kind=queue&queue=orders&id=dead", ("State dead", "Last reason Timeout")),
        ],
    )
    def test_shows_all_attributes(self, query: str, facts: tuple[str, ...], reader: Browser) -> None:
        for body in ("", "&body=1"):
            text = reader.get(f"/entry?{query}{body}").text
            for fact in facts:
                assert fact in text, fact

    def test_an_unreadable_entry(self, reader: Browser, filled: redis.Redis) -> None:
        filled.hset(Keys("redis_queue", "queue", "orders").records, "first", "v9 from the future")
        for body in ("", "&body=1"):
            assert "cannot be read: " in reader.get(f"/entry?kind=queue&queue=orders&id=first{body}").text

    def test_an_unknown_entry(self, reader: Browser) -> None:
        page = reader.open("/entry?queue=scheduled&id=gone")
        assert (page.status, "it has run, was cancelled, or never existed" in page.text) == (404, True)

    def test_headers_are_redacted(self, reader: Browser) -> None:
        text = reader.get("/entry?queue=scheduled&id=task-1&body=1").text
        assert "authorization" in text
        assert "abcdefghijkl" not in text


class TestOthers:
    def test_dispatchers(self, reader: Browser) -> None:
        text = reader.get("/workers").text
        for fact in ("worker", "leads", "refused"):
            assert fact in text

    def test_a_broken_delay_queue_does_not_hide_dispatchers(self, reader: Browser, filled: redis.Redis) -> None:
        DelayQueue("torn", filled).push("x")
        filled.set(Keys("redis_queue", "delay", "torn", 0).dispatchers, "x")
        text = reader.get("/workers").text
        assert "leads" in text
        assert BROKEN in text

    def test_the_doctor(self, reader: Browser) -> None:
        text = reader.get("/doctor").text
        assert re.search(r"\d+ errors?, \d+ warnings?", text)
        assert re.search(r"\d+ checks? without a finding", text)

    def test_the_audit_log_leaves_out_unreadable_rows(self, reader: Browser) -> None:
        page = reader.get("/audit")
        assert "cancel" in page.text
        assert page.source.count("<tr>") == 2
