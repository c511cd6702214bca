"""Large bodies: each page has a limit for the bytes that it reads from Redis."""

from __future__ import annotations

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.basics.options import Conditions
from redis_queue.delay.model import Push
from redis_queue.model import Unread
from redis_queue.operate import forecast
from redis_queue.operate import listing as pages
from redis_queue.operate.access import Access
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.items import Entries
from redis_queue.store.keys import Keys
from redis_queue.web import dashboard, entries, queues
from tests.support.web.browser import Browser
from tests.support.web.contents import KEY

COUNT = 40
SIZE = 300_000
LARGEST = 3_000_000
ALL = COUNT * SIZE

PAGE = 200_000
"""Bytes that Redis sends for a page without bodies: ids, reasons, counts."""


@pytest.fixture
def large(client: redis.Redis) -> redis.Redis:
    queue, delayed = RedisQueue("orders", client, max_body=10**8), DelayQueue("scheduled", client, max_body=10**8)
    call = {"task": "shop.report", "args": ["x" * SIZE], "kwargs": {}, "options": {}}
    delayed.push_many(Push(call, delay=60 + number, id=f"waits-{number}") for number in range(COUNT))
    delayed.push({**call, "args": ["x" * LARGEST]}, delay=30, id="largest")
    queue.put_many([call] * COUNT)
    for name, kind, shard in (("orders", "queue", None), ("scheduled", "delay", 0)):
        keys = Keys("redis_queue", kind, name, shard)  # type: ignore[arg-type]
        record = client.hget(keys.records, "waits-1") if kind == "delay" else client.hvals(keys.records)[0]
        client.hset(keys.records, mapping={f"died-{number}": record for number in range(COUNT)})
        client.zadd(keys.dead, {f"died-{number}": number for number in range(COUNT)})
        client.rpush(keys.quarantine, *(b"1 4 3\nsomewhy" + b"x" * SIZE for _ in range(20)))
    return client


def sent(client: redis.Redis) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/", 0),
        ("/scheduled", pages.LOOK_BYTES),
        ("/scheduled?limit=100&body=1", pages.LOOK_BYTES),
        ("/scheduled?id_prefix=waits-1", pages.LOOK_BYTES),
        ("/scheduled?task=shop.nosuch", pages.MAX_BYTES),
        ("/dead", pages.LOOK_BYTES),
        ("/dead?limit=100&body=1", pages.LOOK_BYTES),
        ("/dead?task=shop.nosuch", pages.MAX_BYTES),
        ("/queue?kind=delay&name=scheduled", 0),
        ("/queue?kind=queue&name=orders", queues.NEXT_BYTES),
        ("/forecast?span=hour", forecast.WINDOW_BYTES * 2),
        ("/entry?id=largest&body=1", 0),
        ("/entry?id=waits-1&body=1", entries.MAX_BYTES),
    ],
)
def test_a_page_stays_within_its_limit(path: str, most: int, large: redis.Redis) -> None:
    browser = Browser(dashboard(large, secret_key=KEY))
    before = sent(large)
    browser.get(path)
    assert sent(large) - before < most + PAGE < ALL


def test_large_bodies_are_shown_with_their_size(large: redis.Redis) -> None:
    browser = Browser(dashboard(large, secret_key=KEY))
    page = browser.get("/scheduled")
    assert page.text.count("shop.report") == pages.LOOK_BYTES // SIZE
    assert page.text.count("too large to read here") == COUNT + 1 - pages.LOOK_BYTES // SIZE
    assert "3,000,0" in page.text
    assert "too large to read here" in browser.get("/dead").text
    assert "too large to read here" in browser.get("/queue?kind=queue&name=orders").text
    assert f"{SIZE:,}" in browser.get("/queue?kind=delay&name=scheduled").text
    assert "bytes, too large to read here" in browser.get("/entry?id=largest").text


def test_a_search_continues_where_its_limit_ended(large: redis.Redis) -> None:
    """It finds all readable entries, page by page, and counts the others."""
    conditions, queue = Conditions(task="shop.report"), DelayQueue("scheduled", large, max_body=10**8)
    access = Access(Inspector(large))
    found, place, unread = [], None, 0
    while True:
        page = Entries(access, queue, conditions).page(place, 100)
        found += [one.id for one, _ in page.items]
        unread += page.unread
        if page.next is None:
            break
        assert page.spent == pages.MAX_BYTES
        place = page.next
    assert found == [f"waits-{number}" for number in range(COUNT)]
    assert unread == 1
    shown = Browser(dashboard(large, secret_key=KEY)).get("/scheduled?task=shop.report")
    assert "Too large to search here: 1;" in shown.text


def test_the_command_line_reads_all_in_small_batches(large: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = DelayQueue("scheduled", large, max_body=10**8)
    looks: list[int] = []
    listed = DelayQueue.list

    def watched(self: DelayQueue, **options: object) -> object:
        found = listed(self, **options)  # type: ignore[arg-type]
        looks.append(sum(not isinstance(one.payload, Unread) for one in found))
        return found

    monkeypatch.setattr(DelayQueue, "list", watched)
    entries = [one for one, _ in Entries(Access(Inspector(large)), queue, Conditions()).all()]
    assert [one.id for one in entries] == ["largest", *(f"waits-{number}" for number in range(COUNT))]
    assert not any(isinstance(one.payload, Unread) for one in entries)
    assert max(looks) <= pages.LOOK_BYTES // SIZE


@pytest.mark.parametrize("shards", [1, 3])
def test_a_limit_holds_for_all_shards(shards: int, client: redis.Redis) -> None:
    queue = DelayQueue("many", client, shards=shards)
    queue.push_many(Push(b"x" * 1000, delay=60, id=f"id-{number}") for number in range(30))
    for budget, least, most in ((0, 0, 0), (10_000, 3, 9), (None, 30, 30)):
        found = queue.list(max_bytes=budget)
        assert len(found) == 30
        assert least <= sum(one.payload == b"x" * 1000 for one in found) <= most
    (size,) = {one.payload.size for one in queue.list(max_bytes=0)}
    assert 1000 < size < 1100
    with pytest.raises(ValueError, match="max_bytes=-1: must be"):
        queue.list(max_bytes=-1)
