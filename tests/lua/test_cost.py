"""The cost of one call of a script is bounded by its entries and bytes, whatever its arguments are."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import redis

from redis_queue.store.keys import TYPES
from redis_queue.store.script_files import Script, load
from tests.support.lua import Text, names
from tests.support.servers import RedisServer

MAX_MS: Final = 50
"""Maximum milliseconds of CPU of a call with up to a megabyte of arguments, on a core that counts to 10^6 in 7 ms."""

COUNT: Final = "local sum = 0 for i = 1, 1000000 do sum = sum + i end"

MAX_BYTES: Final = 96 << 20
"""Maximum bytes by which a call may let the server grow."""

LONG = "a" * 600_000
"""A text of most of the bytes that a call may have."""

IDS: Final = [f"id{number}" for number in range(500)]

LARGE: Final = {"records", "unacked", "failures", "tracebacks", "runs", "schedules", "schedule_states"}
"""Hashes whose records may be large; those of the others are bounded by what writes them."""

VALUES: Final = ("0", "1e-20", "-1", "1e300", "nan", "-inf", "", LONG)

PLAIN: Final = {"now": "0", "limit": "500", "offset": "0", "lists": "-1", "on_conflict": "replace", "settled": "0"}
"""Arguments with which a script does much; all others are 1."""

MANY: Final = {
    "repeated": ["a"] * 1500,
    "numbers": ["0"] * 1500,
    "routes": ["a", '"", "a"'] * 750,
    "lists": ["list", "1"] * 750,
    "entries": ["id", "0", "0", "mark", "record"] * 300,
    "long": [LONG, LONG],
    "long mark": ["id", "a" * 300_000 + "b"] * 2,
    "long entry": ["id", "0", "0", "a" * 300_000 + "b", "record"],
    "pairs": ["a", LONG],
    "counts": ["a", "a1" * 300_000],
    # Each of the 500 records, by the form of the rows of a script.
    **{
        f"all {width}": [part for one in IDS for part in (one, *["1"] * (width - 1))] for width in (1, 2, 3, 5, 6, 8, 9)
    },
}
"""What may follow the named arguments."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server for scripts that may not end."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A client of it that does not wait long."""
    with server.client(socket_timeout=10) as client:
        client.flushall()
        yield client


def template(client: redis.Redis, kind: str, size: int) -> str:
    """Return the name of a key with 500 records of *size* bytes, made at the first call."""
    name, record = f"template {kind} {size}", f"v1 1 - 0 {size}\n{'a' * size}"
    if not client.exists(name):
        for one in IDS:
            client.hset(name, one, record) if kind == "HASH" else client.rpush(name, record)
    return name


def make(client: redis.Redis, label: str, name: str, size: int) -> None:
    """Create the key *name*, which scripts call *label*, with 500 records of *size* bytes, or ids."""
    kind = TYPES.get(label)
    if kind == "ZSET" or label == "place":
        client.zadd(name, dict.fromkeys(["id", *IDS], 1.0))
    elif label == "leases":
        client.hset(name, mapping=dict.fromkeys(["id", *IDS], "1 1"))
    elif kind == "HASH":
        client.copy(template(client, kind, size if label in LARGE else 200), name)
        client.hset(name, "id", f"v1 1 - 0 1200000\n{'a' * 1_200_000}" if label in LARGE else "v1 1")
    elif label in ("ready", "wake"):
        client.rpush(name, *IDS)
    elif kind == "LIST":
        client.copy(template(client, kind, size), name)


def fill(client: redis.Redis, text: Text, size: int) -> list[str]:
    """Create the keys that the script declares, with 500 records of *size* bytes; return their names."""
    client.unlink("none", *(key for key in client.scan_iter(count=1000) if not key.startswith(b"template")))
    keys = [f"{{x}}:{label}" for label in text.keys]
    for label, name in zip(text.keys, keys, strict=True):
        make(client, label, name, size)
    client.copy(template(client, "LIST", size), "list")
    if text.name == "delay/move_due":
        body = "\x01" + "\x82" * 490
        frames = dict.fromkeys(["id", "id0"], f"v1 1 - 0 {len(body)} 4\nlist{body}".encode("latin-1"))
        client.hset(keys[1], mapping=frames)
    if text.name == "admission/take":
        rings(client)
        client.hset("{x}:config", mapping={f"task{number}": "0 - - - - - - -" for number in range(300)})
    return keys


def rings(client: redis.Redis, groups: int = 300) -> None:
    """Let messages of many groups of the queue "a" wait for the places of their flows, which are offered."""
    root = "{x}:"
    pipe = client.pipeline(transaction=False)
    pipe.zadd(f"{root}open:a", {f"0\0a\0task{number}": 0 for number in range(groups)})
    pipe.zadd(f"{root}offers", {f"task{number}": number for number in range(groups)})
    for number in range(groups):
        group = f"0\0a\0task{number}"
        pipe.zadd(f"{root}ring:{group}", {f"{group}\0\0": 1})
        pipe.zadd(f"{root}blocked:task{number}", {f"{group}\0\0k{key}": key for key in range(100)})
    pipe.execute()


def calls(script: Script) -> Iterator[tuple[str, list[str]]]:
    """Yield arguments, each with a description: one of them is hostile, or what follows them is."""
    named = script.arguments
    plain = [PLAIN.get(label, "1") for label in named]
    rests = MANY if script.takes_more else {"none": []}
    for rest, more in rests.items():
        yield rest, [*plain, *more]
    if script.name == "delay/push":
        for rule in ("own", "1"):
            yield f"{rule} with a long mark", ["0", rule, "1", *MANY["long entry"]]
    if script.name == "delay/move_due":
        yield "a long phrase", ["0", "500", "0", "0", "t", "-1", LONG]
        yield "many phrases", ["0", "500", "0", "0", "t", "-1", *["a" * 1000] * 100]
    for (number, label), value in itertools.product(enumerate(named), VALUES):
        first = "lists" if script.name == "broker/fetch" else next(iter(rests))
        for rest in (first, *(rest for rest in rests if value is LONG and rest.startswith("all"))):
            yield f"{label}={value[:10]} {rest}", [*plain[:number], value, *plain[number + 1 :], *rests[rest][:900]]


def cpu_ms(process: psutil.Process) -> float:
    """Return the milliseconds for which a server has run: those in which it waits for a core are not its own."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e6


def own_ms(client: redis.Redis, process: psutil.Process, since: float) -> float:
    """Return the milliseconds since *since*; if they are too many, as many as a core of the given speed would take."""
    ended = cpu_ms(process)
    if ended - since <= MAX_MS:
        return ended - since
    client.eval(COUNT, 0)
    return (ended - since) / max(1.0, (cpu_ms(process) - ended) / 7)


def peak_of(process: psutil.Process) -> int:
    """Return the most bytes that a process had in memory since the last call, which starts anew."""
    path = Path(f"/proc/{process.pid}")
    found = re.search(r"VmHWM:\s+(\d+)", (path / "status").read_text())
    (path / "clear_refs").write_text("5")
    assert found
    return int(found[1]) * 1024


@pytest.mark.parametrize("size", [200, pytest.param(240_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", names())
def test_cost_is_bounded_whatever_the_arguments_are(
    server: RedisServer, client: redis.Redis, name: str, size: int
) -> None:
    script, text = load(name), Text(name)
    process = psutil.Process(client.info("server")["process_id"])
    dear: list[Any] = []
    sequence, keys, filled = itertools.count(1), list[str](), -1
    for what, arguments in calls(script):
        spent = grown = math.inf
        # The least of some attempts: another process may have had the caches of the core, or half of it.
        for _ in range(10):
            if filled != (filled := client.info("persistence")["rdb_changes_since_last_save"]):
                keys = fill(client, text, size)
                filled = client.info("persistence")["rdb_changes_since_last_save"]
            if "sequence" in script.arguments and not what.startswith("sequence"):
                arguments[script.arguments.index("sequence")] = str(next(sequence))
            peak_of(process)
            before, started = process.memory_info().rss, cpu_ms(process)
            try:
                client.eval(script.source, len(keys), *keys, *arguments)
            except redis.ResponseError:
                # Wrong arguments are refused.
                pass
            except redis.TimeoutError:
                server.restart()
                pytest.fail(f"{name} with {what} does not end")
            spent = min(spent, own_ms(client, process, started))
            grown = min(grown, peak_of(process) - before)
            if spent <= MAX_MS and grown <= MAX_BYTES:
                break
        else:
            dear.append((what, f"{spent:.0f} ms", f"{grown / 2**20:.0f} MiB"))
    assert dear == []
