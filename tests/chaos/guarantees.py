"""The rows of docs/guarantees.md: allowed consequences of each fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tests.support.paths import ROOT

ROW: Final = re.compile(r"^\| `([a-z ]+)` \| [^|]+ \| ([\d,]+) \| (\d+) \| (\d+) \| ([a-z ]+) \|$", re.MULTILINE)
UNDONE: Final = {
    "lost",
    "came again after its ack",
    "acked twice",
    "cancelled and came",
    "cancelled and done",
    "out of order",
    "not as it should stand",
    "two held one lock",
    "a fence that was not greater",
}
"""Promises that may be broken if writes that Redis had acknowledged are undone."""

MAY_BREAK: Final[dict[str, set[str]]] = {"nothing": set(), "unreplicated writes": UNDONE, "unsynced writes": UNDONE}


class Guarantee(NamedTuple):
    """One row: a scenario, its size, the minimum numbers of events, and the promises that may be broken."""

    scenario: str
    messages: int
    kills: int
    strikes: int
    may_break: set[str]

    def unexpected(self, found: Mapping[str, Any]) -> set[str]:
        """Return the broken promises that are not allowed; none is allowed unless a strike has undone writes."""
        return set(found["broken"]) - (self.may_break if found["undoing"] else set())


def guarantees() -> list[Guarantee]:
    rows = ROW.findall((ROOT / "docs" / "guarantees.md").read_text())
    return [
        Guarantee(scenario, int(messages.replace(",", "")), int(kills), int(strikes), MAY_BREAK[may_break])
        for scenario, messages, kills, strikes, may_break in rows
    ]
