"""Tasks of the rows with flows: the label of a task tells its flows and what becomes of it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from redis_queue import Flow
from redis_queue.admission.rules import burst_of, interval_ms

QUEUE: Final = "flow"
FAIR: Final = "fair"
SYNC: Final = "chaos.sync"
PACED: Final = "chaos.paced"
PLAIN: Final = "chaos.plain"
TENANT: Final = "chaos.tenant"

FLOWS: Final = {
    "queue:flow": Flow(limit=3),
    "queue:fair": Flow(fair="{key}", limit=3, limit_each=2),
    SYNC: Flow(limit=1, key="{key}"),
    PACED: Flow(rate="4/s", burst=2, key="{key}"),
}

KEYS: Final = 3
"""Keys of each task with a flow."""

MEASURED: Final = 100
"""Tasks with an even number below it are sent and executed before the first kill, by the first of two producers."""

SMALL: Final = 4
"""Tenants with a small part of the load; one tenant has the rest."""

NUMBERS_EACH: Final = 3
"""Numbers of each small tenant among those that are measured."""

FATES: Final = (("retry", 0.07), ("retry later", 0.07), ("fail", 0.08), ("revoke", 0.08), ("expire", 0.08))
"""Share of the tasks that do not end well; the rest do."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Limits of one place: most runs at once, and ms between two takings of which *burst* may come at once."""

    limit: int | None
    gap: float | None
    burst: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the label of a task tells: its name, queue and key, and whether it is sent with a delay."""

    task: str
    queue: str
    key: str
    is_delayed: bool
    is_measured: bool
    fate: str

    @classmethod
    def of(cls, label: str) -> Plan:
        """Read *label*: a letter for the kind of task, and a number."""
        kind, number = label[0], int(label[1:])
        fate = fate_of(FATES, random.Random(label).random())
        if kind in TENANTS:
            is_measured = number < MEASURED and number % 2 == 0
            is_delayed = kind == TENANTS[1] and not is_measured
            key = _tenant(number, is_measured=is_measured)
            return cls(TENANT, FAIR, key, is_delayed, is_measured, "" if is_measured else fate)
        return cls(KINDS[kind], QUEUE, f"k{number % KEYS}", kind == DELAYED, is_measured=False, fate=fate)

    @property
    def lane(self) -> int:
        """A number for tasks of one flow, queue and key, which start in order; 0 for tasks that do not."""
        name = f"{self.task} {self.queue}"
        if self.is_delayed:
            return 0
        return 1 + LANES.index(name) * (SMALL + KEYS) + int(self.key[1:])

    @property
    def places(self) -> dict[str, Rule]:
        """The limits that hold for the task, by name."""
        found: dict[str, Rule] = {}
        for name in (self.task, f"queue:{self.queue}"):
            flow = FLOWS.get(name)
            if flow is None:
                continue
            total = Rule(flow.limit, interval_ms("rate", flow.rate), burst_of(flow.rate, flow.burst) or 1)
            each = Rule(
                flow.limit_each, interval_ms("rate_each", flow.rate_each), burst_of(flow.rate_each, flow.burst) or 1
            )
            if flow.key is not None:
                found[f"{name}/{self.key}"] = total
                continue
            found[name] = total
            if flow.fair is not None:
                found[f"{name}/{self.key}"] = each
        return found


DELAYED: Final = "d"
KINDS: Final = {"s": SYNC, DELAYED: SYNC, "p": PACED, "o": PLAIN}
"""Tasks of the row with limits and rates, by the letter of their labels."""

TENANTS: Final = "fg"
"""Letters of the tasks of the row with turns."""

LANES: Final = tuple(
    f"{task} {queue}" for task, queue in ((SYNC, QUEUE), (PACED, QUEUE), (PLAIN, QUEUE), (TENANT, FAIR))
)


def fate_of(fates: Iterable[tuple[str, float]], thrown: float) -> str:
    """Return the fate, by its share, of a task whose dice have *thrown* 0 to 1; "" if it ends well."""
    for fate, share in fates:
        if thrown < share:
            return fate
        thrown -= share
    return ""


def _tenant(number: int, *, is_measured: bool) -> str:
    if is_measured:
        rest = (MEASURED - number - 1) // 2 // NUMBERS_EACH
        # The last numbers, so that the small ones wait behind the others.
        return f"t{SMALL - rest}" if rest < SMALL else "t0"
    return f"t{random.Random(number).choice((0, 0, 0, 0, *range(1, SMALL + 1)))}"
