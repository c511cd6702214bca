"""The registry: reading it takes a few round trips, however many queues there are."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
import redis

from redis_queue import ConfigurationError, DelayQueue
from redis_queue.delay.model import ForeignMessage, Push
from redis_queue.store.chunks import CHUNK
from redis_queue.store.keys import PrefixKeys
from redis_queue.store.registry import Registry, RegistryRow
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings


@pytest.mark.parametrize(("queues", "batches"), [(0, 0), (1, 1), (200, 1), (CHUNK, 1), (2 * CHUNK + 1, 3)])
def test_all_queues_are_read_in_a_round_trip_per_batch(client: redis.Redis, queues: int, batches: int) -> None:
    found = Registry(Scripts(client), "redis_queue")
    names = sorted(f"orders-{number}" for number in range(queues))
    for name in names:
        found.add("queue", name, Settings())
    found.all()
    before = client.info("stats")["total_commands_processed"]

    known = found.all()

    # The INFO call is counted, too.
    assert client.info("stats")["total_commands_processed"] - before == 1 + batches + 1
    assert [queue.name for queue in known] == names


def test_a_queue_removed_during_the_read_is_left_out(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = Scripts(client)
    found = Registry(scripts, "redis_queue")
    for name in ("first", "gone", "last"):
        found.add("delay", name, Settings())
    send = scripts.command

    def forgetting(*command: str) -> object:
        if command[0] != "HKEYS":
            client.hdel(PrefixKeys("redis_queue").registry, "delay:gone")
        return send(*command)

    monkeypatch.setattr(scripts, "command", forgetting)

    assert found.all() == [RegistryRow("delay", name, Settings().max_deliveries, 1) for name in ("first", "last")]


def test_a_delay_queue_keeps_its_first_number_of_shards(client: redis.Redis) -> None:
    first = DelayQueue("timed", client, shards=4)
    first.push_many(range(8))
    for shards in (1, 2, 8):
        other = DelayQueue("timed", client, shards=shards)
        match = rf"^shards={shards}: must be 4 as before for timed, .* empty the queue"
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=match):
                other.push("new")
            with pytest.raises(ConfigurationError, match=match):
                other.foreign.bury(Push("new", id="new"), reason="bad", deliveries=1)
            with pytest.raises(ConfigurationError, match=match):
                other.foreign.adopt(
                    [(Push("new", id="new", due_at=datetime.now(timezone.utc)), ForeignMessage(b"x", "list", -1))]
                )
    assert Registry(Scripts(client), "redis_queue").all() == [RegistryRow("delay", "timed", 20, 4)]
    assert len(first) == 8

    first.destroy()
    DelayQueue("timed", client, shards=2).push("new")
    assert Registry(Scripts(client), "redis_queue").all() == [RegistryRow("delay", "timed", 20, 2)]


def test_the_last_max_deliveries_is_stored(client: redis.Redis) -> None:
    for most in (3, 7):
        DelayQueue("timed", client, shards=2, max_deliveries=most).push("a")
    assert Registry(Scripts(client), "redis_queue").all() == [RegistryRow("delay", "timed", 7, 2)]


def test_a_concurrent_registration_wins(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = Scripts(client)
    found = Registry(scripts, "redis_queue")
    send = scripts.command

    def overtaken(*command: str) -> object:
        if command[0] == "HSETNX":
            Registry(Scripts(client), "redis_queue").add("delay", "timed", Settings(shards=4))
        return send(*command)

    monkeypatch.setattr(scripts, "command", overtaken)

    with pytest.raises(ConfigurationError, match="must be 4 as before"):
        found.add("delay", "timed", Settings(shards=2))


@pytest.mark.parametrize(
    "value", [b'{"max_deliveries": 20, "shards": 0}', b'{"max_deliveries": 20, "shards": 5000}', b"?"]
)
def test_an_invalid_row_is_replaced(client: redis.Redis, value: bytes) -> None:
    client.hset(PrefixKeys("redis_queue").registry, "delay:timed", value)
    DelayQueue("timed", client, shards=2).push("a")
    assert Registry(Scripts(client), "redis_queue").all() == [RegistryRow("delay", "timed", 20, 2)]


def test_a_push_asks_the_registry_once(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    DelayQueue("timed", client).push("a")
    timed = DelayQueue("timed", client)
    asked: list[object] = []
    scripts = timed._shards.scripts
    send = scripts.command
    monkeypatch.setattr(scripts, "command", lambda *command: asked.append(command[0]) or send(*command))
    for _ in range(3):
        timed.push("b")
    assert asked == ["HGET"]
