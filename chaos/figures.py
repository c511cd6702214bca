"""Figures of a run, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import Any

from chaos.run import Outcome

SHOWN = 10


def as_figures(found: Outcome) -> dict[str, Any]:
    """Return counts, and in ms the times until redelivery and until work continued after a strike."""
    verdict = found.verdict
    return {
        "seconds": round(found.seconds, 1),
        "kills": found.kills,
        "strikes": found.strikes,
        "undoing": found.undoing,
        "sent": verdict.sent,
        "unknown": verdict.unknown,
        "executed": verdict.executed,
        "lost": verdict.broken("lost"),
        "doubled": verdict.repeated,
        "cancelled": verdict.cancelled,
        "stale_acks_refused": verdict.refused,
        "came_again_ms_p50": middle(verdict.returns),
        "came_again_ms_max": max(verdict.returns, default=0),
        "recovery_ms_p50": middle(found.recoveries),
        "recovery_ms_max": max(found.recoveries, default=0),
        "violations": len(verdict.violations),
        "broken": sorted({violation.promise for violation in verdict.violations}),
    }


def as_text(figures: Mapping[str, Any], found: Outcome) -> str:
    """Return the figures in one line, then the first violations with their histories."""
    line = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items() if name != "broken")
    return "\n".join([line, *map(str, found.verdict.violations[:SHOWN]), ""])


def middle(values: Sequence[int]) -> int:
    """Return the median; 0 without values."""
    return median_high(values) if values else 0
