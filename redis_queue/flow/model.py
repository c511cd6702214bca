"""What the state of flows looks like to callers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and rates: *limit* and *rate_ms* (ms between two starts) for all messages of a flow, the others for a key.

    None means no limit.
    """

    limit: int | None = None
    limit_each: int | None = None
    rate_ms: float | None = None
    burst: int | None = None
    rate_each_ms: float | None = None
    burst_each: int | None = None


@dataclass(frozen=True, slots=True)
class FlowState:
    """One flow: its limits now and in the code, whether it is paused, and how many messages run and wait.

    *kind*: "key" if its limits count for each key, "fair" if keys take turns, else "". *uncounted*: messages that have
    passed it uncounted, because their producers do not know it.
    """

    name: str
    limits: Limits
    declared: Limits
    kind: str
    paused: bool
    running: int
    waiting: int
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key of a flow: how many of its messages run and wait."""

    key: str
    running: int
    waiting: int
