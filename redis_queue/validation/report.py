"""The comparison of what went in with what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redis_queue.validation import log


@dataclass(frozen=True, slots=True)
class Tally:
    """What the step logs of all consumers say."""

    handled: int
    lost: int
    doubled: int
    unknown: int
    out_of_order: int
    lost_on_purpose: int
    handled_again: int
    late_acks_refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Tally):
    """What a run found. *lost* was never handled; *doubled* had more than one accepted ack."""

    messages: int
    kills: int
    put_back: int
    left_over: int
    put_per_s: float
    handled_per_s: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Tell whether every promise was kept."""
        return not (self.lost or self.doubled or self.unknown or self.out_of_order or self.left_over)

    def as_dict(self) -> dict[str, Any]:
        """Return the report with its verdict, ready for JSON."""
        return {"passed": self.passed, "messages": self.messages, **asdict(self)}


def tally(messages: int, paths: Iterable[Path]) -> Tally:
    """Compare the numbers 0 to *messages* - 1 with what the consumers wrote down."""
    handled: Counter[int] = Counter()
    acked: Counter[int] = Counter()
    totals: Counter[str] = Counter()
    out_of_order = 0
    for path in paths:
        last = -1
        for step in log.read(path):
            totals[step.kind] += 1
            if step.kind == log.HANDLED:
                handled[step.number] += 1
            elif step.kind == log.ACKED:
                acked[step.number] += 1
            elif step.kind == log.CLAIMED and step.deliveries == 1:
                # To one consumer, first deliveries come in the order of put, whatever was put back in between.
                out_of_order += step.number < last
                last = step.number
    expected = set(range(messages))
    return Tally(
        handled=len(handled),
        lost=len(expected - set(handled)),
        doubled=sum(count > 1 for count in acked.values()),
        unknown=len(set(handled) - expected),
        out_of_order=out_of_order,
        lost_on_purpose=totals[log.LOST_ON_PURPOSE],
        handled_again=totals[log.HANDLED] - len(handled),
        late_acks_refused=totals[log.REFUSED],
    )
