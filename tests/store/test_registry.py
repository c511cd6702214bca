"""The registry: reading it costs the same few round trips however many queues there are."""

from __future__ import annotations

import pytest
import redis

from redis_queue.batches import CHUNK
from redis_queue.keys import registry
from redis_queue.registry import Known, Registry
from redis_queue.scripts import Scripts
from redis_queue.settings import Settings


@pytest.mark.parametrize(("queues", "batches"), [(0, 0), (1, 1), (200, 1), (CHUNK, 1), (2 * CHUNK + 1, 3)])
def test_all_queues_are_read_in_a_round_trip_per_batch(client: redis.Redis, queues: int, batches: int) -> None:
    found = Registry(Scripts(client), "redis_queue")
    names = sorted(f"orders-{number}" for number in range(queues))
    for name in names:
        found.add("queue", name, Settings())
    found.all()
    before = client.info("stats")["total_commands_processed"]

    known = found.all()

    # The second look is counted, too.
    assert client.info("stats")["total_commands_processed"] - before == 1 + batches + 1
    assert [queue.name for queue in known] == names


def test_what_was_forgotten_while_it_was_read_is_left_out(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = Scripts(client)
    found = Registry(scripts, "redis_queue")
    for name in ("first", "gone", "last"):
        found.add("delay", name, Settings())
    send = scripts.command

    def forgetting(*command: str) -> object:
        if command[0] != "HKEYS":
            client.hdel(registry("redis_queue"), "delay:gone")
        return send(*command)

    monkeypatch.setattr(scripts, "command", forgetting)

    assert found.all() == [Known("delay", name, Settings().max_deliveries, 1) for name in ("first", "last")]
