"""The simulator: a seed has one history, whatever ran before it, and no promise is broken in it."""

import json
from typing import Any

import pytest

from proof.simulate.worlds import WORLDS
from tests.chaos.edits import python
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(600)


def simulate(*arguments: str, hash_seed: str = "0") -> tuple[list[str], dict[str, Any]]:
    """Run the command; return its lines, and the object in its last line."""
    done = python(ROOT, "proof.simulate", *arguments, PYTHONHASHSEED=hash_seed)
    *lines, last = done.stdout.splitlines()
    return lines, json.loads(last)


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_has_one_history_and_nothing_is_broken(world: str) -> None:
    together, found = simulate("--world", world, "--seeds", "7:10", "--traces", hash_seed="1")
    # One that starts cold, and one that does not, after others.
    alone, _ = simulate("--world", world, "--seeds", "8:10", "--traces")
    assert alone == together[1:]
    assert (found["schedules"], found["violations"]) == (3, 0)
