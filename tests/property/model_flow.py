"""The model of flows: which messages wait, which run, and which their limits admit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

HOUR_MS: Final = 3_600_000

TOLERANCE_MS: Final = 2
"""Times in Redis are rounded."""


class Group(NamedTuple):
    """What the messages of one list have in common. Empty texts stand for none."""

    step: int
    queue: str
    task: str
    of_task: str
    of_queue: str

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the places that a message needs: flow, and its key or "" for the whole flow."""
        for flow, key in ((f"queue:{self.queue}", self.of_queue), (self.task, self.of_task)):
            if flow:
                yield flow, ""
            if flow and key:
                yield flow, key


class Rule(NamedTuple):
    """Places and ms between two starts of a whole flow, and of each key; None for no limit."""

    limit: int | None = None
    gap: int | None = None
    limit_each: int | None = None
    gap_each: int | None = None

    @property
    def text(self) -> str:
        """The rule as scripts read it, with bursts of one."""
        numbers = (self.limit, self.limit_each, self.gap, 1, self.gap_each, 1)
        return " ".join([*("-" if number is None else str(number) for number in numbers), "-", "f"])


class OwnRule(NamedTuple):
    """What is set for one key: whether it is paused, and its places and ms between two starts; "" as every key."""

    paused: bool = False
    limit: int | str | None = ""
    gap: int | str | None = ""


@dataclass
class FlowModel:
    """Waiting and running messages of flows with *rules*, whose clock stands at *now* (ms)."""

    rules: dict[str, Rule]
    now: int
    paused: set[str] = field(default_factory=set)
    own: dict[tuple[str, str], OwnRule] = field(default_factory=dict)
    waiting: dict[Group, deque[str]] = field(default_factory=dict)
    running: dict[str, tuple[Group, str]] = field(default_factory=dict)
    used: Counter[tuple[str, str]] = field(default_factory=Counter)
    free_at: dict[tuple[str, str], int] = field(default_factory=dict)

    def send(self, group: Group, message: str, *, first: bool = False) -> None:
        row = self.waiting.setdefault(group, deque())
        row.appendleft(message) if first else row.append(message)

    def take(self, tag: str, message: str) -> None:
        """Start *message*, which must be the first of its group; check that all limits admit it."""
        group = next(group for group, row in self.waiting.items() if row and row[0] == message)
        assert not (why := self.refusal(group, TOLERANCE_MS)), f"{message} of {group} was taken: {why}"
        self.waiting[group].popleft()
        if not self.waiting[group]:
            del self.waiting[group]
        self.running[tag] = (group, message)
        for place in group.places():
            self.used[place] += 1
            gap = self._gap(place)
            self.free_at[place] = max(self.now, self.free_at.get(place, 0)) + (gap or 0)

    def end(self, tag: str) -> tuple[Group, str]:
        """Free the places of the message with this delivery *tag*."""
        group, message = self.running.pop(tag)
        self.used.subtract(group.places())
        return group, message

    def refusal(self, group: Group, tolerance: int = -TOLERANCE_MS) -> str:
        """Return why the next message of *group* must not start now, "" if it may."""
        for flow in (f"queue:{group.queue}", group.task):
            if flow in self.paused:
                return f"{flow} is paused"
        for place in group.places():
            most = self._limits(place)[0]
            if most is not None and self.used[place] >= most:
                return f"{place} has no place"
            if self._gap(place) and self.free_at.get(place, 0) > self.now + tolerance:
                return f"{place} has used up its rate"
        return ""

    def startable(self, queues: set[str]) -> list[Group]:
        """Return the groups in *queues* whose next message may start now."""
        return [group for group in self.waiting if group.queue in queues and not self.refusal(group)]

    def _gap(self, place: tuple[str, str]) -> int | None:
        return self._limits(place)[1]

    def _limits(self, place: tuple[str, str]) -> tuple[int | None, int | None]:
        rule, own = self.rules[place[0]], self.own.get(place, OwnRule())
        limit, gap = (rule.limit_each, rule.gap_each) if place[1] else (rule.limit, rule.gap)
        limit = limit if isinstance(own.limit, str) else own.limit
        return 0 if own.paused else limit, gap if isinstance(own.gap, str) else own.gap
