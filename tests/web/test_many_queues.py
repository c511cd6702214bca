"""A registry with many names, or with rows that claim many shards: pages and scrapes stay bounded."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest

from redis_queue import DelayQueue, RedisQueue
from redis_queue.catalog import MAX_ROWS
from redis_queue.delay.model import Push
from redis_queue.operate.inspector import MAX_SHARDS, Inspector
from redis_queue.operate.metrics import Collector
from redis_queue.store.keys import Keys
from redis_queue.store.registry import MAX_FIELDS
from redis_queue.web import dashboard
from redis_queue.web.context import EXTENSION
from tests.support.wait import must, wait_until
from tests.support.web.browser import SCREENS, Browser, Page
from tests.support.web.contents import KEY

NAMES = 5000


def register(client: redis.Redis, count: int, *, kind: str = "queue", shards: int = 1, name: str = "many") -> None:
    row = json.dumps({"max_deliveries": 20, "shards": shards})
    client.hset("redis_queue:registry", mapping={f"{kind}:{name}-{number:05}": row for number in range(count)})


def processed(client: redis.Redis) -> int:
    """Return the number of executed commands, including those of scripts."""
    return sum(int(row["calls"]) for row in client.info("commandstats").values())


@pytest.fixture
def crowded(client: redis.Redis) -> redis.Redis:
    """A Redis with many registered names, half of each kind, and two queues with entries."""
    register(client, NAMES // 2)
    register(client, NAMES // 2, kind="delay")
    RedisQueue("zz-last", client).put("x")
    DelayQueue("zz-last", client).push("x", delay=60)
    return client


def opened(client: redis.Redis, path: str) -> Browser:
    """Return a browser that has shown a page, once the look for incidents, in the background, has ended."""
    app = dashboard(client, secret_key=KEY)
    browser, watch = Browser(app), app.extensions[EXTENSION].incidents
    browser.get(path)
    wait_until(lambda: watch.last(again=False), description="the first look for incidents")
    return browser


SEEN = (*SCREENS, "/queues?offset=100", "/queues?name=zz", "/queue?kind=queue&name=zz-last")


@pytest.mark.parametrize("path", [path for path in SEEN if path != "/doctor"])
def test_a_page_reads_few_queues(path: str, crowded: redis.Redis) -> None:
    browser = opened(crowded, path)
    before = processed(crowded)
    browser.get(path)
    # Each queue takes eleven commands at most, those in its scripts among them.
    assert processed(crowded) - before < 4500 < NAMES


@pytest.mark.parametrize("limit", [5, 10])
def test_a_full_page_of_dead_letters_does_not_look_through_all_queues(limit: int, crowded: redis.Redis) -> None:
    queue = DelayQueue("aa-first", crowded)
    queue.push_many(Push("x", id=f"id-{number}") for number in range(10))
    queue.nack_many(queue.claim(10), dead=True, reason="broken")
    browser = opened(crowded, f"/dead?limit={limit}")
    before = processed(crowded)
    assert "broken" in browser.get(f"/dead?limit={limit}").text
    assert processed(crowded) - before < 4000


def test_queues_are_paged_and_searched(crowded: redis.Redis) -> None:
    browser = Browser(dashboard(crowded, secret_key=KEY))
    page = browser.get("/queues")
    assert f"{NAMES + 2:,} queues." in page.text
    seen = [link for link in page.links if "/queue?" in link]
    assert len(seen) == MAX_ROWS
    following = browser.get(page.link("offset=50"))
    assert len({*seen, *(link for link in following.links if "/queue?" in link)}) == 2 * MAX_ROWS
    found = browser.get("/queues?name=zz-")
    assert [link for link in found.links if "/queue?" in link] == [
        "/queue?kind=queue&name=zz-last",
        "/queue?kind=delay&name=zz-last",
    ]
    assert "2 queues found." in found.text
    overview = browser.get("/")
    assert f"All queues has {NAMES + 2 - 200:,} more." in overview.text


def test_queues_with_problems_come_first(client: redis.Redis) -> None:
    """Of 305 queues, the one with the oldest message; each column sorts, and pages follow each other."""
    register(client, 303)
    RedisQueue("zz-busy", client).put_many(range(3))
    RedisQueue("zz-old", client, clock=lambda: round(time.time() * 1000) - 60_000).put("x")
    browser = Browser(dashboard(client, secret_key=KEY))

    def names(page: Page) -> list[str]:
        return [link.rpartition("=")[2] for link in page.links if "/queue?" in link]

    page = browser.get("/queues")
    assert names(page)[:2] == ["zz-old", "zz-busy"]
    seen = []
    while True:
        seen += names(page)
        following = [link for link in page.links if "offset=" in link and "offset=0" not in link]
        if len(seen) >= 305 or not following:
            break
        page = browser.get(following[-1])
    assert len(seen) == len(set(seen)) == 305
    page = browser.get("/queues?sort=ready&name=zz")
    assert names(page) == ["zz-busy", "zz-old"]
    sorted_by = [found for tag, found in page.tags if tag == "th" and "aria-sort" in found]
    assert [found["aria-sort"] for found in sorted_by] == ["descending"]
    assert page.link("sort=oldest") == "/queues?sort=oldest&name=zz"
    assert names(browser.get("/queues?sort=name"))[0] == "many-00000"
    refused = browser.open("/queues?sort=size")
    assert (refused.status, "sort='size': must be one of problem, name" in refused.text) == (400, True)


def test_dead_letters_of_the_last_queue_are_found_page_by_page(crowded: redis.Redis) -> None:
    queue = RedisQueue("zz-last", crowded)
    message = must(queue.get(block=False))
    queue.nack(message, dead=True, reason="died at last")
    browser = Browser(dashboard(crowded, secret_key=KEY))
    assert "died at last" in browser.get("/dead?name=zz-last").text
    path, pages = "/dead", 0
    while "died at last" not in (page := browser.get(path)).text:
        path, pages = page.link("after="), pages + 1
    assert pages == NAMES // 200


def test_rows_with_many_shards_are_not_counted(client: redis.Redis) -> None:
    """Rows with too many shards are marked as not counted and do not hide others."""
    register(client, 20, kind="delay", shards=1024)
    RedisQueue("orders", client).put("x")
    DelayQueue("zz", client).push("x", delay=60)
    browser = Browser(dashboard(client, secret_key=KEY))
    browser.get("/queues")
    before = processed(client)
    page = browser.get("/queues")
    # Nine commands for each shard.
    assert processed(client) - before < 12 * MAX_SHARDS
    assert page.text.count("not counted: 1,024 shards") == 20 - MAX_SHARDS // 1024
    rows = {row.name: row for row in Inspector(client).queues()}
    assert (rows["orders"].ready, rows["zz"].delayed) == (1, 1)
    assert "not counted" not in browser.get("/queue?kind=delay&name=many-00019").text


def scraped(collector: Collector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def test_a_scrape_reads_few_queues_and_exports_how_many_it_left_out(crowded: redis.Redis) -> None:
    collector = Collector(Inspector(crowded), most_queues=10, most_read=100)
    scraped(collector)
    before = processed(crowded)
    text = scraped(collector)
    assert processed(crowded) - before < 2500
    assert f"redis_queue_left_out_queues {NAMES + 2 - 100:.1f}" in text
    # Without a limit all are counted, and labels are kept.
    assert "redis_queue_left_out_queues 0.0" in scraped(Collector(Inspector(crowded), most_read=NAMES + 2))


def test_queues_keep_their_label_when_others_come(client: redis.Redis) -> None:
    collector = Collector(Inspector(client), most_queues=1, most_read=5)
    RedisQueue("zz-last", client).put("x")
    assert 'redis_queue_ready{kind="queue",queue="zz-last"} 1.0' in scraped(collector)
    register(client, 50)
    text = scraped(collector)
    assert 'redis_queue_ready{kind="queue",queue="zz-last"} 1.0' in text
    assert "redis_queue_left_out_queues 46.0" in text


def test_counts_take_few_round_trips(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    register(client, 300)
    inspector = Inspector(client)
    inspector.overview()
    sent: list[Any] = []
    link = inspector._scripts._link
    for name in ("send", "send_many"):
        one: Any = getattr(link, name)
        monkeypatch.setattr(link, name, lambda *a, one=one: (sent.append(a), one(*a))[1])
    known = inspector.catalog.known()
    sent.clear()
    assert len(inspector.queues(known)) == 300
    assert len(sent) <= 2


def test_more_names_than_are_listed(client: redis.Redis) -> None:
    register(client, MAX_FIELDS + 500)
    listing = Inspector(client).catalog.listing()
    assert (len(listing.known), listing.total, listing.unseen) == (MAX_ROWS, MAX_FIELDS, 500)
    page = Browser(dashboard(client, secret_key=KEY)).get("/queues")
    assert "Not listed: 500 more" in page.text


def test_a_broken_queue_does_not_hide_others(client: redis.Redis) -> None:
    """Although all are counted in one round trip."""
    for name in ("a", "b", "c"):
        RedisQueue(name, client).put("x")
    client.set(Keys("redis_queue", "queue", "b").dead, "no sorted set")
    rows = Inspector(client).queues()
    assert [(row.name, row.ready, bool(row.error)) for row in rows] == [
        ("a", 1, False),
        ("b", 0, True),
        ("c", 1, False),
    ]
