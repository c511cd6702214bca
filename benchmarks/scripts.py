"""Measure how long one script call blocks Redis: the longest run of each script on 500 records of one size.

The server measures the times (SLOWLOG): they include other load of the machine, but neither network nor client.
Therefore the best of several rounds counts. Prints a table for large and small records and, as its last line, a JSON
object with the longest run for large records in milliseconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from benchmarks.server import private_redis
from redis_queue import DelayQueue, RedisQueue, connect
from redis_queue.celery.message.envelope import PHRASES
from redis_queue.delay.model import Push
from redis_queue.store.connection import Client
from redis_queue.store.keys import Keys
from redis_queue.store.script_files import all_scripts
from redis_queue.store.scripts import load_scripts

RECORDS = 500

IDS = [f"{number:024}" for number in range(RECORDS)]


def drained(take: Callable[[], object]) -> None:
    """Call *take* until it returns nothing."""
    while take():
        pass


class Stage:
    """A RedisQueue and a DelayQueue with 500 records each; each operation starts with new ones."""

    def __init__(self, client: Client, size: int) -> None:
        self.client = client
        self.body = bytes(size)
        # Captured messages are stored packed, so a move unpacks them.
        self.packed = b"\x01" + b"x" * size
        self.queue = RedisQueue("bench", client, max_deliveries=0)
        self.timed = DelayQueue("bench", client, max_deliveries=0)

    def fill(self) -> None:
        """Store the records."""
        self.queue.put_many([self.body] * RECORDS)
        self.timed.push_many([Push(self.packed, id=id_, destination="target") for id_ in IDS])

    def replace(self) -> None:
        """Overwrite all records with small ones under the same ids."""
        ids = iter([message.id for message in self.queue.peek(RECORDS)])
        self.queue.put_many([b""] * RECORDS, dedupe_key=lambda _: next(ids))
        self.timed.push_many([Push(b"", id=id_, destination="target") for id_ in IDS])

    def kill(self) -> None:
        """Make dead letters of all records."""
        drained(lambda: self.queue.nack_many(self.queue.get_many(RECORDS), dead=True))
        drained(lambda: self.timed.nack_many(self.timed.claim(RECORDS), dead=True))

    def spoil(self) -> None:
        """Truncate every record, so that it goes to quarantine."""
        for keys in (Keys("redis_queue", "queue", "bench"), Keys("redis_queue", "delay", "bench", 0)):
            for id_ in self.client.hkeys(keys.records):
                self.client.hset(keys.records, id_, b"v1 1 bytes 0 1\n" + self.body)

    def quarantine(self) -> None:
        """Claim unreadable records."""
        drained(lambda: self.queue.get_many(RECORDS))
        drained(lambda: self.timed.claim(RECORDS))

    def settle(self) -> None:
        """Claim all records and ack them."""
        drained(lambda: self.queue.ack_many(self.queue.get_many(RECORDS)))
        drained(lambda: self.timed.ack_many(self.timed.claim(RECORDS)))


Act = Callable[[Stage], object]

ACTS: dict[str, tuple[tuple[Act, ...], Act]] = {
    "store": ((), Stage.fill),
    "store again": ((Stage.fill,), Stage.replace),
    "get one": ((Stage.fill,), lambda stage: stage.queue.get()),
    "claim one": ((Stage.fill,), lambda stage: stage.timed.claim(1)),
    "get, claim and ack all": ((Stage.fill,), Stage.settle),
    "move all": ((Stage.fill,), lambda stage: stage.timed.moves.move(phrases=PHRASES)),
    "peek and list all": ((Stage.fill,), lambda stage: (stage.queue.peek(RECORDS), stage.timed.list(limit=RECORDS))),
    "purge all": ((Stage.fill,), lambda stage: (stage.queue.purge(), stage.timed.purge())),
    "cancel all": ((Stage.fill,), lambda stage: stage.timed.cancel_many(IDS)),
    "make dead letters of all": ((Stage.fill,), Stage.kill),
    "read all dead letters": (
        (Stage.fill, Stage.kill),
        lambda stage: (stage.queue.dead_letters(limit=RECORDS), stage.timed.dead_letters(limit=RECORDS)),
    ),
    "redrive all": ((Stage.fill, Stage.kill), lambda stage: (stage.queue.redrive(), stage.timed.redrive())),
    "quarantine all": ((Stage.fill, Stage.spoil), Stage.quarantine),
    "read all of the quarantine": (
        (Stage.fill, Stage.spoil, Stage.quarantine),
        lambda stage: (stage.queue.quarantined(limit=RECORDS), stage.timed.quarantined(limit=RECORDS)),
    ),
}


def quietest(client: Client, size: int, rounds: int) -> dict[str, list[float]]:
    """Return the result of :func:`measure` in the round with the shortest longest call, for each script."""
    found = [measure(client, size) for _ in range(rounds)]
    return {name: min((each[name] for each in found if name in each), key=max) for name in found[0]}


def measure(client: Client, size: int) -> dict[str, list[float]]:
    """Return the duration in ms of every script call of each operation, by "operation: script"."""
    names = {script.sha: script.name for script in all_scripts()}
    load_scripts(client)
    found: dict[str, list[float]] = {}
    for title, (preparations, act) in ACTS.items():
        client.flushall()
        stage = Stage(client, size)
        for prepare in preparations:
            prepare(stage)
        client.slowlog_reset()
        act(stage)
        for entry in client.slowlog_get(10_000):
            words = entry["command"].split(b" ")
            if words[0] == b"EVALSHA":
                found.setdefault(f"{title}: {names[words[1].decode()]}", []).append(entry["duration"] / 1000)
    return found


def main() -> None:
    """Run all operations on records of both sizes and print the durations of the scripts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=240_000, help="bytes of a large record (default 240,000)")
    parser.add_argument("--small", type=int, default=200, help="bytes of a small record (default 200)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    arguments = parser.parse_args()
    with private_redis() as url:
        client = connect(url)
        client.config_set("slowlog-log-slower-than", 0)
        client.config_set("slowlog-max-len", 100_000)
        large = quietest(client, arguments.large, arguments.rounds)
        small = quietest(client, arguments.small, arguments.rounds)
    print(f"{'':52}{f'{arguments.large} bytes':>24}{f'{arguments.small} bytes':>24}")
    print(f"{'':52}{'calls':>12}{'longest ms':>12}{'calls':>12}{'longest ms':>12}")
    for name in large:
        one, other = large[name], small.get(name, [0.0])
        print(f"{name:52}{len(one):12,}{max(one):12.2f}{len(other):12,}{max(other):12.2f}")
    print(json.dumps({"longest_ms": max(map(max, large.values()))}))


if __name__ == "__main__":
    main()
