"""Run schedules, shorten those that fail, and tell."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import random
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import redis.utils
from redis.connection import Connection

from proof.simulate.faults import Fault, draw, plan
from proof.simulate.scheduler import SIM, StuckError
from proof.simulate.server import Server
from proof.simulate.world import World
from redis_queue.validation.history import Violation

STEP: Final = 1.0
"""Seconds between two looks whether all is done."""

READY: Final = 1.0
"""Seconds after which the first processes have started."""

WARMING: Final = 3
"""Schedules before the first that counts, after which the code of Lua is compiled."""


@dataclass(frozen=True)
class Outcome:
    """What a schedule did: *trace* is all of it in one number."""

    violations: list[Violation]
    faults: list[Fault]
    steps: int
    seconds: float
    trace: str


def run_here(make: Callable[[Server], World], seed: int, only: Collection[int] | None = None) -> Outcome:
    """Run the schedule of *seed*; *only*: the numbers of the faults that happen."""
    # What can break while the first processes start is tried by one in eight.
    world = _begin(make) if _STATE.begun is None or seed % 8 == 0 else _STATE.begun
    SIM.rng.seed(seed)
    random.seed(seed)
    faults = draw(seed, world)
    for number, fault in enumerate(faults):
        if only is None or number in only:
            plan(fault, world)
            world.faults.add(fault.kind)
    found: list[Violation] = []
    try:
        SIM.run(world.horizon)
        _heal(world.server)
        end = world.horizon + world.calm
        while not world.is_done():
            if SIM.now >= end:
                found.append(Violation(f"not done {world.calm:g} s after the last fault", "-", world.events))
                break
            SIM.run(SIM.now + STEP)
    except StuckError as error:
        found.append(Violation(str(error), "-", world.events))
    found += world.check().violations
    trace = f"{zlib.crc32(repr((world.events, SIM.now, SIM.steps)).encode()):08x}"
    return Outcome(found, faults, SIM.steps, SIM.now, trace)


def _begin(make: Callable[[Server], World]) -> World:
    SIM.begin(0)
    random.seed(0)
    _STATE.server = Server()
    world = make(_STATE.server)
    world.begin()
    return world


def run(make: Callable[[Server], World], seed: int, only: Collection[int] | None = None) -> Outcome:
    """Run a schedule in a child process: whatever it leaves behind must not be part of the next one."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writer, "wb") as out:
            pickle.dump(run_here(make, seed, only), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as found:
        data = found.read()
    os.waitpid(child, 0)
    if not data:
        raise RuntimeError(f"seed {seed}: the process of the schedule ended")
    outcome: Outcome = pickle.loads(data)  # noqa: S301 - of this process
    return outcome


def shortest(make: Callable[[Server], World], seed: int) -> tuple[list[int], Outcome]:
    """Return the fewest faults, by leaving out one after the other, with which *seed* still breaks the same promise."""
    outcome = run(make, seed)
    promises = {violation.promise for violation in outcome.violations}
    left = list(range(len(outcome.faults)))
    for number in reversed(range(len(outcome.faults))):
        fewer = [other for other in left if other != number]
        again = run(make, seed, fewer)
        if promises & {violation.promise for violation in again.violations}:
            left, outcome = fewer, again
    return left, outcome


def _heal(server: Server) -> None:
    server.refuses, server.is_down = "", False
    server.partitioned.clear()
    for process in SIM.processes.values():
        process.stopped = False
        machine = process.machine
        if machine.fell_asleep_at is not None:
            machine.wake()
    for connection in server.sessions:
        connection.silent_until = min(connection.silent_until, SIM.now)
        connection.deaf_until = min(connection.deaf_until, SIM.now)
    SIM.unpark()


class _State:
    server: Server
    #: A world whose first processes have started.
    begun: World | None = None
    #: Processes of the first schedules: their greenlets must not end.
    kept: Final[list[Any]] = []


_STATE: Final = _State()


def _connect(connection: Any) -> Any:
    return _STATE.server.connect(connection.socket_timeout)


def prepare(make: Callable[[Server], World]) -> None:
    """Let redis-py connect to the simulated server; be quiet."""
    Connection._connect = _connect  # type: ignore[method-assign]
    redis.utils.get_lib_version = lambda: "8"
    if level := os.environ.get("LOG"):
        logging.Formatter.converter = time.gmtime
        logging.basicConfig(level=level, format="%(asctime)s %(process)d %(name)s %(message)s")
        # A lock would be part of the schedule.
        logging.root.handlers[0].acquire = logging.root.handlers[0].release = lambda: None  # type: ignore[method-assign]
    else:
        logging.disable(logging.CRITICAL)
    # What is loaded and compiled at first use is loaded once.
    for seed in range(WARMING):
        run_here(make, seed)
        _STATE.kept.append(SIM.processes)
    _STATE.begun = _begin(make)
    SIM.run(READY)
    gc.freeze()
    gc.disable()
