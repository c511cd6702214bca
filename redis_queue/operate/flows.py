"""Flows as people read them: rates and limits as text, what is in force now, what differs from the code."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from kombu.exceptions import OperationalError

from redis_queue.admission.flows import OF_QUEUE, Changes, check_flow_name
from redis_queue.admission.rules import UNITS, FlowLimits, FlowState, KeyState
from redis_queue.errors import InvalidValueError
from redis_queue.operate.access import Access
from redis_queue.operate.queue_row import BROKEN

LABELS: Final = {
    "limit": "limit",
    "rate": "rate",
    "burst": "burst",
    "limit_each": "limit of each key",
    "rate_each": "rate of each key",
    "burst_each": "burst of each key",
}
"""Label of each field of :class:`LimitsRow`."""

NONE: Final = "none"
"""Text of a value that removes a limit."""

ARGUMENTS: Final = {
    "": ("limit", "rate", "burst"),
    "key": ("limit", "rate", "burst"),
    "fair": ("limit", "rate", "limit_each", "rate_each", "burst"),
}
"""The arguments of :meth:`Flows.set` for each kind of a flow; with "key" they change the limits of each key."""

KINDS: Final = {"key": "limits count for each key", "fair": "keys take turns"}
"""Text of each kind of a flow."""

NO_LIMITS: Final = "no limits"

MAX_DIGITS: Final = 15
"""Maximum significant digits of a number in a rate: those that a float holds."""

MAX_COUNT: Final = 999_999_999
"""Maximum number in a rate."""

_WHOLE: Final = re.compile(r"-?\d{1,12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LimitsRow:
    """Limits with rates as text; None means no limit. A burst belongs to a rate: without a rate it is None."""

    limit: int | None = None
    rate: str | None = None
    burst: int | None = None
    limit_each: int | None = None
    rate_each: str | None = None
    burst_each: int | None = None

    @classmethod
    def of(cls, limits: FlowLimits) -> LimitsRow:
        """Return *limits* as a row."""
        rate, rate_each = rate_text(limits.rate_ms), rate_text(limits.rate_each_ms)
        return cls(
            limits.limit,
            rate,
            None if rate is None else limits.burst,
            limits.limit_each,
            rate_each,
            None if rate_each is None else limits.burst_each,
        )

    @property
    def text(self) -> str:
        """All limits on one line, for example ``limit 10, rate 100/m``; a burst of 1 is left out."""
        return ", ".join(self._words()) or NO_LIMITS

    @property
    def bursts(self) -> str:
        """The burst, and that of each key if it differs; "" without a rate."""
        found = [str(burst) for burst in (self.burst, self.burst_each) if burst is not None]
        return " / ".join(dict.fromkeys(found))

    def _words(self) -> Iterator[str]:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not (item.name.startswith("burst") and value == 1):
                yield f"{LABELS[item.name]} {value:,}" if isinstance(value, int) else f"{LABELS[item.name]} {value}"


def rate_text(interval_ms: float | None) -> str | None:
    """Return the rate of one start each *interval_ms*, as a user writes it: ``100/m``. None for no rate.

    Of the units s, m, h and d it is that with the shortest number. A flow with the returned rate has the same interval.
    """
    if interval_ms is None or interval_ms <= 0:
        return None
    found = [(number, unit) for unit, size in UNITS.items() if (number := _number(size, interval_ms))]
    if not found:
        # No user can set it: another program wrote it.
        return f"{UNITS['s'] / interval_ms:.6g}/s"
    # Of numbers with the same length a whole one, then the shortest unit.
    number, unit = min(found, key=lambda pair: (len(pair[0]), "." in pair[0]))
    return f"{number}/{unit}"


def _number(unit_ms: float, interval_ms: float) -> str:
    """Return the shortest number of starts in *unit_ms* that is stored as *interval_ms*; "" if there is none."""
    count = unit_ms / interval_ms
    if count > MAX_COUNT:
        return ""
    for digits in range(1, MAX_DIGITS + 1):
        # At most six decimals, as in a rate; the interval is stored with six, too.
        number = f"{float(f'{count:.{digits}g}'):.6f}".rstrip("0").rstrip(".")
        if float(number) and f"{unit_ms / float(number):.6f}" == f"{interval_ms:.6f}":
            return number
    return ""


def without_key(state: FlowState, keys: Sequence[KeyState], *, are_all: bool) -> KeyState | None:
    """Return how many messages of *state* that have none of *keys* run and wait; None for none, or if keys are missing.

    The counts were read at two moments, so it may be off by what ran in between.
    """
    if not state.kind or not are_all:
        return None
    running = max(0, state.running - sum(key.running for key in keys))
    waiting = max(0, state.waiting - sum(key.waiting for key in keys))
    return KeyState("", running, waiting) if running or waiting else None


def is_changed(state: FlowState) -> bool:
    """Return whether the limits differ from those in the code."""
    return state.limits != state.declared


def has_limits(state: FlowState) -> bool:
    """Return whether a flow has limits, now or in the code; a queue that is only paused has none."""
    return bool(state.kind) or state.limits != FlowLimits() or is_changed(state)


def arguments_of(state: FlowState) -> dict[str, tuple[str, int | str | None]]:
    """Return the label and the value in force of each argument that :meth:`Flows.set` takes for this flow."""
    row, each = LimitsRow.of(state.limits), "_each" if state.kind == "key" else ""
    found: dict[str, tuple[str, int | str | None]] = {
        argument: (LABELS[f"{argument}{each}"], getattr(row, f"{argument}{each}")) for argument in ARGUMENTS[state.kind]
    }
    return {**found, "burst": (found["burst"][0], row.bursts or None)}


def in_force(state: FlowState) -> str:
    """Return on one line what is in force for a flow now, and what its code says if that differs."""
    now = LimitsRow.of(state.limits).text
    words = [*(["paused"] if state.paused else []), *([] if state.paused and now == NO_LIMITS else [now])]
    code = f"; in the code: {LimitsRow.of(state.declared).text}" if is_changed(state) else ""
    return f"{state.name}: {', '.join(words)}{code}"


def as_row(state: FlowState) -> dict[str, Any]:
    """Return a flow as a document: its limits by the names of :class:`LimitsRow`, those *in_code*, its counts."""
    return {
        "name": state.name,
        **asdict(LimitsRow.of(state.limits)),
        "kind": state.kind,
        "paused": state.paused,
        "changed": is_changed(state),
        "running": state.running,
        "waiting": state.waiting,
        "uncounted": state.uncounted,
        "in_code": asdict(LimitsRow.of(state.declared)),
    }


def flow_of_queue(access: Access, queue: str) -> FlowState | None:
    """Return the flow of a Celery queue; None if it has none and is not paused, or if flows cannot be read."""
    with contextlib.suppress(*BROKEN):
        return access.flows.get(f"{OF_QUEUE}{queue}")
    return None


def paused_queues(access: Access) -> set[str]:
    """Return the names of paused Celery queues; none if flows cannot be read."""
    with contextlib.suppress(*BROKEN):
        return {name.removeprefix(OF_QUEUE) for name in access.flows.paused_queues()}
    return set()


def flow_or_queue(access: Access, name: str) -> FlowState:
    """Return the flow *name*, or the state of a queue without a flow.

    Raises InvalidValueError for an unknown task, and, with an app, for a queue that the app does not know; StoreError.
    """
    if not check_flow_name(name).startswith(OF_QUEUE):
        return access.flows.find(name)
    if access.celery_queues is not None and access.flows.get(name) is None:
        # A pause needs the store alone: a broker that cannot be read does not prevent it.
        with contextlib.suppress(OperationalError):
            access.celery_queues.check(name.removeprefix(OF_QUEUE))
    return flow_or_bare(access, name)


def read_changes(state: FlowState, texts: Mapping[str, str], *, of_key: bool = False) -> dict[str, Any]:
    """Return the arguments of :meth:`Flows.set` that *texts* describe, such as ``{"limit": "10", "rate": "none"}``.

    Raises InvalidValueError if this flow, or one key of it, cannot have them.
    """
    given = {name: _read_change(name, text) for name, text in texts.items()}
    changes = Changes(**given)
    changes.check()
    _ = changes.of_key(state) if of_key else changes.of(state)
    return given


def changes_text(changes: Mapping[str, Any]) -> str:
    """Return arguments of :meth:`Flows.set` on one line, for the audit."""
    return ", ".join(f"{LABELS[name]} {NONE if value is None else value}" for name, value in changes.items())


def _read_change(name: str, text: str) -> Any:
    if text == NONE and name != "burst":
        return None
    if name in ("rate", "rate_each"):
        return text
    if not _WHOLE.fullmatch(text):
        raise InvalidValueError(f"{name}={text!r}: must be a whole number{f', or {NONE}' if name != 'burst' else ''}")
    return int(text)


def flow_or_bare(access: Access, name: str) -> FlowState:
    """Return the flow *name*; without limits if it is unknown, as that of a queue is unless it is paused."""
    return access.flows.get(name) or FlowState(name, FlowLimits(), FlowLimits(), "", False, 0, 0)
