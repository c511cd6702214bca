"""Report of a validation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from redis_queue.validation.checker import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a run.

    *lost* messages were put and never acked; *doubled* ones were acked twice, or came again after their ack; *unknown*
    ones came without a put; *out_of_order* ones came before a message that was put earlier.
    """

    messages: int
    handled: int
    lost: int
    doubled: int
    unknown: int
    out_of_order: int
    lost_on_purpose: int
    handled_again: int
    late_acks_refused: int
    kills: int
    put_back: int
    left_over: int
    put_per_s: float
    handled_per_s: float
    seconds: float

    @classmethod
    def of(cls, verdict: Verdict, **figures: Any) -> Report:
        """Return the report of a checked history and the other *figures* of the run."""
        return cls(
            handled=verdict.executed - verdict.repeated,
            lost=verdict.broken("lost"),
            doubled=verdict.broken("acked twice", "came again after its ack"),
            unknown=verdict.broken("came from nowhere"),
            out_of_order=verdict.broken("out of order"),
            lost_on_purpose=verdict.dropped,
            handled_again=verdict.repeated,
            late_acks_refused=verdict.refused,
            **figures,
        )

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.unknown or self.out_of_order or self.left_over)

    def as_dict(self) -> dict[str, Any]:
        """Return the report with its verdict, ready for JSON."""
        return {"passed": self.passed, **asdict(self)}
