"""Processes of every role are killed between any two commands, and stopped for longer than their leases."""

from __future__ import annotations

import pytest

from redis_queue.chaos.mutants import MUTANTS
from tests.fault.runs import SEEDS, run
from tests.support.servers import RedisServer


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(redis_server: RedisServer, seed: int) -> None:
    found = run(redis_server, "--messages", "1500", "--seed", str(seed))
    assert found["broken"] == []
    assert found["kills"] > 50
    assert found["sent"] > 2900


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_each_mutant_is_caught(redis_server: RedisServer, name: str) -> None:
    runs = (run(redis_server, "--messages", "600", "--seed", str(seed), "--mutant", name) for seed in range(1, 7))
    assert any(found["violations"] for found in runs)
