"""Faults of a schedule: drawn from its seed before it begins, so that each can be left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from proof.simulate.network import Connection
from proof.simulate.scheduler import SIM, Process
from proof.simulate.server import MODEL, REFUSED
from proof.simulate.world import World


class Fault(NamedTuple):
    """What breaks: when, what kind, for how long, and a number that chooses where."""

    at: float
    kind: str
    seconds: float
    choice: float

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.kind} ({self.choice:.3f}) for {self.seconds:.2f} s"


MOST: Final = 8
"""Faults of a schedule, at most."""


def draw(seed: int, world: World) -> list[Fault]:
    """Return the faults of *seed* in the order of their times."""
    dice = random.Random(~seed)
    kinds = [kind for kind in KINDS if kind not in world.spared]
    found = []
    for _ in range(dice.randint(0, MOST) if kinds else 0):
        seconds = dice.choice((dice.uniform(0, 0.1), dice.uniform(0, 3), dice.uniform(0, 3 * world.lease)))
        found.append(Fault(dice.uniform(0, world.horizon), dice.choice(kinds), seconds, dice.random()))
    return sorted(found)


def plan(fault: Fault, world: World) -> None:
    """Let *fault* happen at its time."""
    if fault.kind == "failover":
        lag = min(fault.seconds, 1.0)
        SIM.at(max(0.0, fault.at - lag), lambda: _keep(world, fault))
    SIM.at(fault.at, lambda: KINDS[fault.kind](world, fault))


def _process(world: World, fault: Fault) -> Process | None:
    alive = [process for process in SIM.processes.values() if process.alive and process.name not in world.safe]
    return alive[int(fault.choice * len(alive))] if alive else None


def _connections(world: World, process: Process | None) -> list[Connection]:
    return [found for found in world.server.sessions if process is None or found.process is process]


def _one(world: World, fault: Fault) -> Connection | None:
    found = _connections(world, None)
    return found[int(fault.choice * len(found))] if found else None


def _kill(world: World, fault: Fault) -> None:
    if process := _process(world, fault):
        process.kill()
        world.dead_until[process.name] = SIM.now + fault.seconds


def _stop(world: World, fault: Fault) -> None:
    if process := _process(world, fault):
        process.stop(fault.seconds)


def _sleep(world: World, fault: Fault) -> None:
    if process := _process(world, fault):
        process.machine.sleep(fault.seconds)


def _skew(world: World, fault: Fault) -> None:
    if process := _process(world, fault):
        process.machine.skew = (fault.seconds * 1000 % 180) - 90


def _cut(world: World, fault: Fault) -> None:
    if connection := _one(world, fault):
        connection.cut()


def _silence(world: World, fault: Fault) -> None:
    if connection := _one(world, fault):
        connection.silent_until = SIM.now + fault.seconds


def _deafen(world: World, fault: Fault) -> None:
    if connection := _one(world, fault):
        connection.deaf_until = SIM.now + fault.seconds


def _partition(world: World, fault: Fault) -> None:
    if process := _process(world, fault):
        world.server.partitioned[process.machine.name] = SIM.now + fault.seconds
        for connection in _connections(world, process):
            connection.silent_until = SIM.now + fault.seconds


def _refuse(world: World, fault: Fault) -> None:
    kinds = [*REFUSED]
    world.server.refuses = kinds[int(fault.choice * len(kinds))]
    SIM.at(SIM.now + fault.seconds, lambda: setattr(world.server, "refuses", ""))


def _restart(world: World, fault: Fault) -> None:
    world.server.is_down = True
    world.server.restart()
    SIM.at(SIM.now + fault.seconds, lambda: setattr(world.server, "is_down", False))


def _keep(world: World, fault: Fault) -> None:
    world.kept[fault] = MODEL.save(), SIM.now


def _failover(world: World, fault: Fault) -> None:
    kept, since = world.kept.pop(fault)
    world.undo(since, SIM.now)
    world.server.restart(kept)


KINDS: Final[dict[str, Callable[[World, Fault], None]]] = {
    "kill": _kill,
    "stop": _stop,
    "sleep": _sleep,
    "skew": _skew,
    "cut": _cut,
    "silence": _silence,
    "partition": _partition,
    "refuse": _refuse,
    "restart": _restart,
    "failover": _failover,
    "deaf": _deafen,
}
