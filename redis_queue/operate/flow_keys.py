"""Keys of a flow as people list them: what runs and waits, since when, and what is set for single keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis_queue.admission.rules import FlowLimits, FlowState, KeyState
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import Conditions
from redis_queue.basics.times import from_ms
from redis_queue.operate.access import Access
from redis_queue.operate.flows import LABELS, NONE, LimitsRow, rate_text
from redis_queue.operate.listing import Chunk, Listing

KeyCursor = tuple[int, int]
"""0 = among keys with waiting messages by their number, 1 = among the others by name; and keys to skip."""


class Keys(Listing[KeyState, KeyCursor]):
    """The keys of *flow* that contain *part*: those with most waiting messages first, then those without any.

    A key that is *part* itself comes first. *changed*: only keys that are paused, or have limits of their own.
    """

    noun = ("key",)

    def __init__(self, access: Access, flow: str, part: str = "", *, changed: bool = False) -> None:
        super().__init__(Conditions(text=part or None))
        self._keys, self._flow, self._part = access.flows.of_keys, flow, part
        self._changed = changed

    def read(self, cursor: KeyCursor | None, size: int, budget: int | None) -> Chunk[KeyState, KeyCursor]:  # noqa: ARG002
        stage, offset = cursor or (0, 0)
        first = [] if cursor is not None else [(state, (0, 0)) for state in self._exact()]
        stage = 1 if self._changed else stage
        names = [] if stage else self._keys.waiting(self._flow, offset, size)
        if not stage and not names:
            stage, offset = 1, 0
        names = names or self._others[offset : offset + size]
        # Of a key that does not match, nothing else is read.
        states = {
            state.key: state for state in self._keys.states(self._flow, [key for key in names if self._part in key])
        }
        found = enumerate((states.get(key) or KeyState(key, 0, 0) for key in names), offset + 1)
        # Keys with waiting messages came before the others.
        came = stage and not self._changed
        rows = [(state, (stage, at)) for at, state in found if state.key != self._part and not (came and state.waiting)]
        return Chunk([*first, *rows], (stage, offset + len(names)) if names else None)

    def match(self, item: KeyState) -> bool:
        """Return whether the key contains the part, and count it."""
        self.report.add("")
        return self._part in item.key

    def _exact(self) -> list[KeyState]:
        states = self._keys.states(self._flow, [self._part] if self._part else [])
        return [state for state in states if is_known(state) and (is_set(state) or not self._changed)]

    @LazyProperty
    def _others(self) -> list[str]:
        """The keys that are not read by their waiting messages, by name."""
        changed = self._keys.changed(self._flow)
        return changed if self._changed else sorted({*changed, *self._keys.running(self._flow)})


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key, and when its first waiting message was sent or due; None if nothing waits, or that is unknown."""

    state: KeyState
    since: datetime | None

    @property
    def document(self) -> dict[str, Any]:
        """The key as a document; *own* has what is set for it, null for no limit."""
        state = self.state
        counts = {"key": state.key, "running": state.running, "waiting": state.waiting, "since": self.since}
        return {**counts, "paused": state.paused, "own": own_limits(state)}


def key_rows(access: Access, flow: str, states: Sequence[KeyState]) -> list[KeyRow]:
    """Return *states* with the times of their first waiting messages. Raises StoreError."""
    times = access.backlog.since(flow, states)
    known = {key: from_ms(1000 * seconds) for key, seconds in times.items()}
    return [KeyRow(state, known.get(state.key)) for state in states]


def is_set(state: KeyState) -> bool:
    """Return whether a key is paused, or has limits of its own."""
    return state.paused or bool(state.own)


def is_known(state: KeyState) -> bool:
    """Return whether messages of a key run or wait, or something is set for it."""
    return bool(state.running or state.waiting) or is_set(state)


def own_limits(state: KeyState) -> dict[str, int | str | None]:
    """Return what is set for a key, by the arguments of :meth:`Flows.set`; None for no limit."""
    found = {name: value if value is None else int(value) for name, value in state.own.items() if name != "rate_ms"}
    rate = {"rate": rate_text(state.own["rate_ms"])} if "rate_ms" in state.own else {}
    burst = {"burst": found.pop("burst")} if found.get("burst") is not None else {}
    return {**{name: value for name, value in found.items() if name != "burst"}, **rate, **burst}


def set_text(own: Mapping[str, int | str | None], *, paused: bool) -> str:
    """Return on one line what is set for a key, its *own* limits and whether it is *paused*; "" for nothing."""
    shown = {name: value for name, value in own.items() if (name, value) != ("burst", 1)}
    words = (f"{LABELS[name]} {NONE if value is None else value}" for name, value in shown.items())
    return ", ".join([*(["paused"] if paused else []), *words])


def limits_of_key(flow: FlowState, state: KeyState) -> dict[str, tuple[str, int | str | None]]:
    """Return the label, and the value in force for a key, of each argument that can be set for it."""
    each = flow.limits
    row = LimitsRow.of(FlowLimits(limit=each.limit_each, rate_ms=each.rate_each_ms, burst=each.burst_each))
    of_every: Mapping[str, int | str | None] = {"limit": row.limit, "rate": row.rate, "burst": row.burst}
    return {name: (LABELS[name], own_limits(state).get(name, value)) for name, value in of_every.items()}


def key_in_force(flow: str, state: KeyState) -> str:
    """Return on one line what is set for a key, and what it runs."""
    known = set_text(own_limits(state), paused=state.paused) or "as every key"
    return f"key {state.key} of {flow}: {known}; {state.running:,} running, {state.waiting:,} waiting"
