"""Tasks of the row with unique tasks: the label of a call tells its task, key, delay and fate."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from chaos.flow_plan import fate_of
from redis_queue import Unique

QUEUE: Final = "unique"

SPACING: Final = 1.0
"""Seconds for which a key of PACED is owned after its task was due: the least that Unique takes."""

END: Final = "chaos.end"
STRICT: Final = "chaos.strict"
RENEWED: Final = "chaos.renewed"
START: Final = "chaos.start"
LATEST: Final = "chaos.latest"
DEBOUNCED: Final = "chaos.debounced"
PACED: Final = "chaos.paced"

UNIQUES: Final = {
    END: Unique("{key}"),
    STRICT: Unique("{key}", on_conflict="raise"),
    RENEWED: Unique("{key}", on_conflict="replace"),
    START: Unique("{key}", until="start"),
    LATEST: Unique("{key}", until="start", on_conflict="replace"),
    DEBOUNCED: Unique("{key}", until="start", on_conflict="replace"),
    PACED: Unique("{key}", until=timedelta(seconds=SPACING)),
}

KINDS: Final = {"e": END, "x": STRICT, "r": RENEWED, "s": START, "l": LATEST, "b": DEBOUNCED, "t": PACED}
"""Tasks by the letter of the labels of their calls."""

KEYS: Final = 2
"""Keys of each task."""

DELAYED: Final = 0.5
"""Share of the calls with a delay; those of DEBOUNCED all have one."""

MIN_DELAY: Final = 0.05
MAX_DELAY: Final = 1.0

FATES: Final = (("retry", 0.07), ("retry later", 0.07), ("fail", 0.06), ("revoke", 0.04), ("expire", 0.06))
"""Share of the calls that do not end well; the rest do. Those that replace others do not expire."""


@dataclass(frozen=True, slots=True)
class UniquePlan:
    """What the label of a call tells: its task and key, its delay in seconds, and what becomes of it."""

    task: str
    key: str
    delay: float
    fate: str

    @classmethod
    def of(cls, label: str) -> UniquePlan:
        """Read *label*: a letter for the task, and a number."""
        task, dice = KINDS[label[0]], random.Random(label)
        key = f"k{dice.randrange(KEYS)}"
        is_delayed = dice.random() < DELAYED or task == DEBOUNCED
        delay = dice.uniform(MIN_DELAY, MAX_DELAY) if is_delayed else 0.0
        fate = fate_of(FATES, dice.random())
        return cls(task, key, delay, "" if fate == "expire" and UNIQUES[task].on_conflict == "replace" else fate)

    @property
    def unique(self) -> Unique:
        """How the task is unique."""
        return UNIQUES[self.task]

    @property
    def place(self) -> str:
        """The name of its key among those of all tasks."""
        return f"{self.task}/{self.key}"

    @property
    def retries(self) -> bool:
        """Whether its first attempt sends a retry."""
        return self.fate.startswith("retry")
