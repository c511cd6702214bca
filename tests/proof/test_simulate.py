"""The simulator: a seed has one history, whatever ran before it; it finds planted defects, and nothing without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from proof.simulate.worlds import WORLDS
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(600)

HUNT = """
    import os, sys, time
    from proof.simulate.worlds import load
    world = load({world!r})
    from proof.simulate import faults, run
    {plant}
    world.spared = frozenset(faults.KINDS) - {kinds!r}
    try:
        found = (seed for seed in range({seeds}) if run.run(world, seed).violations)
        print(next(found, None), flush=True)
    finally:
        # Simulated threads have no end that Python could wait for.
        os._exit(0)
"""

PLANTED = {
    "an ack without its token": (
        "queue",
        {"kill", "silence", "cut", "stop"},
        "import redis_queue.store.script_files as files; real = files._read; "
        'files._read = lambda name: real(name).replace(" and string.sub(current[i], -#token) == token", ""); '
        "files.load.cache_clear(); files._code.cache_clear()",
    ),
    "a keeper that renews nothing": (
        "celery",
        set(),
        "from redis_queue.keeper.loop import Keeper; Keeper._renew = lambda self: True",
    ),
    "a clock that stands still while the machine sleeps": (
        "lock",
        {"sleep"},
        "from redis_queue.lock import lock; lock.monotonic = time.monotonic",
    ),
}


def python(*arguments: str, **options: str) -> str:
    """Return the output of Python with these arguments."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", **options}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, text=True, check=True, stdout=subprocess.PIPE
    ).stdout


def simulate(*arguments: str, **options: str) -> tuple[list[str], dict[str, Any]]:
    """Run the command; return its lines, and the object in its last line."""
    *lines, last = python("-m", "proof.simulate", *arguments, **options).splitlines()
    return lines, json.loads(last)


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_has_one_history(world: str) -> None:
    together, _ = simulate("--world", world, "--seeds", "7:10", "--traces", PYTHONHASHSEED="1")
    for at, seed in enumerate(("7", "8")):
        alone, _ = simulate("--world", world, "--seeds", seed, "--traces")
        assert alone == [together[at]]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_defect_is_found(planted: str) -> None:
    world, kinds, plant = PLANTED[planted]
    found = python("-c", textwrap.dedent(HUNT).format(world=world, kinds=kinds, plant=plant, seeds=150))
    assert found.strip().isdigit(), f"{planted} was not found"


def test_a_short_run_is_clean() -> None:
    _, found = simulate("--seeds", "0:3")
    assert found["violations"] == 0
    assert found["schedules"] == 3 * len(found["worlds"])
