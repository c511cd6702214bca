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
def test_a_seed_has_one_history(world: str) -> None:
    together, _ = simulate("--world", world, "--seeds", "7:10", "--traces", hash_seed="1")
    for at, seed in enumerate(("7", "8")):
        alone, _ = simulate("--world", world, "--seeds", seed, "--traces")
        assert alone == [together[at]]


def test_a_short_run_is_clean() -> None:
    _, found = simulate("--seeds", "0:3")
    assert found["violations"] == 0
    assert found["schedules"] == 3 * len(found["worlds"])
