"""A server with another locale: pages follow the order of the sorted set, which compares bytes."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import redis

from redis_queue import DelayQueue
from redis_queue.delay.model import Push
from redis_queue.store.script_files import load
from tests.support.clock import Clock
from tests.support.servers import RedisServer
from tests.support.wait import must

NAMES = [
    f"{word}{number}" for number in range(5) for word in ("Order-", "order-", "ORDER:", "_x", "cart.", "cart", "é")
]


@pytest.fixture
def english(tmp_path: Path) -> Iterator[redis.Redis]:
    """A client of a server with an English locale, in which "a" comes before "B"."""
    environment = environment_with_locale(tmp_path)
    with RedisServer(environment=environment) as server, server.client() as client:
        assert not environment or client.eval("return 'a' < 'B' and 1 or 0", 0)
        yield client


@pytest.mark.parametrize("shards", [1, 3])
def test_pages_list_each_entry_once(english: redis.Redis, clock: Clock, shards: int) -> None:
    timed = DelayQueue("timed", english, clock=clock, shards=shards)
    timed.push_many([Push(None, id=name, delay=60) for name in NAMES])
    seen: list[str] = []
    after = None
    while page := timed.list(after=after, limit=3):
        seen += [entry.id for entry in page]
        after = timed.cursor(page[-1])
        assert len(seen) <= len(NAMES)
    assert seen == sorted(NAMES, key=str.encode)


def test_a_page_continues_after_a_removed_entry(english: redis.Redis, clock: Clock) -> None:
    timed = DelayQueue("timed", english, clock=clock)
    order = sorted(NAMES, key=str.encode)
    for number, gone in enumerate(order):
        timed.push_many([Push(None, id=name, delay=60) for name in NAMES])
        entry = must(timed.get(gone))
        timed.cancel(gone)
        assert [entry.id for entry in timed.list(after=timed.cursor(entry))] == order[number + 1 :]


def test_the_script_compares_as_a_sorted_set_does(client: redis.Redis) -> None:
    function = re.search(r"^local function behind.*?^end$", load("delay/list").source, re.MULTILINE | re.DOTALL)
    assert function
    texts = [
        b"",
        b"a",
        b"A",
        b"B",
        b"_",
        b"-",
        b"aa",
        b"a\0",
        b"a\xff",
        b"\xff",
        b"\x00",
        "é".encode(),
        b"Order",
        b"order",
    ]
    for one, other in itertools.product(texts, repeat=2):
        behind = client.eval(f"{function[0]} return behind(ARGV[1], ARGV[2]) and 1 or 0", 0, one, other)
        assert bool(behind) == (one > other), (one, other)


# A server locale with language-specific string collation.

NAME = "en_US.UTF-8"


def environment_with_locale(directory: Path) -> Mapping[str, str]:
    """Return the environment of a process that sorts as in English if this host allows it, else by bytes.

    A host may have the locale, or only its sources, from which it is compiled into *directory*, or neither.
    """
    listed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=True).stdout.split()
    if any(name.lower().replace("-", "") == "en_us.utf8" for name in listed):
        return {"LC_ALL": NAME}
    if localedef := shutil.which("localedef"):
        made = directory / NAME
        subprocess.run([localedef, "-i", "en_US", "-f", "UTF-8", str(made)], capture_output=True, check=False)
        if made.is_dir():
            return {"LC_ALL": NAME, "LOCPATH": str(directory)}
    return {}
