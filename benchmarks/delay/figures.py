"""The figures of a run: their target values and their output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

LEVELS = (0, 100_000)
"""Far-future entries stored while lateness is measured, in addition to the largest level."""

IDLE = 2.2
"""Most round trips per second of an idle worker above a stock one: a report and a look each second, seldom a sweep."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Lateness in ms: the medians of the rounds, with their lowest and highest values."""

    p50: float
    p99: float
    p50_range: tuple[float, float]
    p99_range: tuple[float, float]

    @classmethod
    def of(cls, rounds: Sequence[tuple[float, float]]) -> Quantiles:
        """Return the quantiles of *rounds*, each given as (p50, p99)."""
        p50s, p99s = [p50 for p50, _ in rounds], [p99 for _, p99 in rounds]
        return cls(median(p50s), median(p99s), (min(p50s), max(p50s)), (min(p99s), max(p99s)))


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured *value* with its upper or lower target; None if it was not measured."""

    text: str
    value: float | None
    digits: int
    at_least: float | None = None
    at_most: float | None = None
    key: str = ""
    note: str = ""

    def row(self) -> str:
        """Return the line of the table."""
        wanted = f">= {self.at_least:,.2f}" if self.at_least is not None else ""
        wanted = f"<= {self.at_most:,.2f}" if self.at_most is not None else wanted
        value = "-" if self.value is None else f"{self.value:,.{self.digits}f}"
        return f"{self.text:58}{value:>12}  {wanted:14} {self._verdict():11} {self.note}".rstrip()

    def _verdict(self) -> str:
        if self.at_least is None and self.at_most is None:
            return ""
        if self.value is None:
            return "not measured"
        low = self.at_least is None or self.value >= self.at_least
        return "met" if low and (self.at_most is None or self.value <= self.at_most) else "MISSED"


@dataclass(frozen=True, slots=True)
class Burst:
    """The seconds that a worker needs in one round: a stock one, one with DurableTasks, one with atomic fetch, too."""

    undelayed: float
    delayed: float
    atomic_fetch: float


@dataclass(slots=True)
class Results:
    """The measurements of all rounds."""

    rates: list[dict[str, float]]
    moves: dict[str, list[float]]
    bursts: list[Burst]
    native: Quantiles
    delayed: Mapping[int, Quantiles]
    memory_growth: float
    idle: Mapping[int | None, float]
    sizes: Mapping[str, float]
    moved: int
    largest: int | None

    def figures(self) -> list[Figure]:
        """Return all figures; those with a key are in the order of the last line."""
        return [*self._schedule(), *self._lateness(), *self._moves(), *self._burst(), *self._costs()]

    def _schedule(self) -> list[Figure]:
        native, delayed, bulk = (median(found[name] for found in self.rates) for name in ("native", "delayed", "bulk"))
        single_ratio = median(found["delayed"] / found["native"] for found in self.rates)
        bulk_ratio = median(found["bulk"] / found["native"] for found in self.rates)
        note = f"{delayed:,.0f}/s, native {native:,.0f}/s"
        return [
            Figure("delay one by one / native", single_ratio, 2, at_least=1.0, key="schedule_ratio", note=note),
            Figure("send_many / native", bulk_ratio, 2, at_least=4.0, key="bulk_ratio", note=f"{bulk:,.0f}/s"),
        ]

    def _lateness(self) -> list[Figure]:
        usual = [self.delayed[level] for level in LEVELS]
        most = self.native.p99 + 10
        p50, p99 = max(found.p50 for found in usual), max(found.p99 for found in usual)
        large = self.delayed.get(self.largest) if self.largest else None
        text = f"with {LEVELS[0]:,} and {LEVELS[-1]:,} stored"
        large_p50, large_p99 = (large.p50, large.p99) if large else (None, None)
        spread = f"rounds {self.native.p99_range[0]:.1f} to {self.native.p99_range[1]:.1f}"
        return [
            Figure(f"lateness p50, worst {text}, ms", p50, 2, at_most=3, key="lateness_p50_ms"),
            Figure(f"lateness p99, worst {text}, ms", p99, 2, at_most=most, key="lateness_p99_ms"),
            Figure("native lateness p50, ms", self.native.p50, 2, key="native_p50_ms"),
            Figure("native lateness p99, ms", self.native.p99, 2, key="native_p99_ms", note=spread),
            Figure("lateness p50 with 1,000,000 stored, ms", large_p50, 2, at_most=3, key="lateness_p50_1m_ms"),
            Figure("lateness p99 with 1,000,000 stored, ms", large_p99, 2, at_most=most),
        ]

    def _moves(self) -> list[Figure]:
        here = median(self.moves["here"])
        other = self.moved / median(self.moves["other Redis"])
        rabbitmq = self.moves["RabbitMQ"]
        confirmed = self.moved / median(rabbitmq) if rabbitmq else None
        pairs = zip(self.moves["py-amqp"], rabbitmq, strict=True)
        ratio = median(bare / moved for bare, moved in pairs) if rabbitmq else None
        return [
            Figure(f"{self.moved:,} due moved in the same Redis, s", here, 3, at_most=0.4, key="move_20k_s"),
            Figure("dispatched to another Redis /s", other, 0, at_least=10_000, key="dispatch_redis_per_s"),
            Figure("dispatched to RabbitMQ /s", confirmed, 0, at_least=6_000, key="dispatch_rabbitmq_per_s"),
            Figure("dispatched to RabbitMQ / py-amqp alone", ratio, 2, key="dispatch_rabbitmq_ratio"),
        ]

    def _burst(self) -> list[Figure]:
        ratio = median(burst.undelayed / burst.delayed for burst in self.bursts)
        fetched = median(burst.undelayed / burst.atomic_fetch for burst in self.bursts)
        note = "; ".join(f"{burst.undelayed:.2f} s / {burst.delayed:.2f} s" for burst in self.bursts)
        more = "; ".join(f"{burst.undelayed:.2f} s / {burst.atomic_fetch:.2f} s" for burst in self.bursts)
        key = "burst_atomic_fetch_ratio"
        return [
            Figure("burst, undelayed / delayed", ratio, 3, at_least=0.97, key="burst_ratio", note=note),
            Figure("burst, undelayed / delayed with atomic fetch", fetched, 3, at_least=1.0, key=key, note=more),
        ]

    def _costs(self) -> list[Figure]:
        stock, empty = self.idle[None], self.idle[0] - self.idle[None]
        large = self.idle[self.largest] - stock if self.largest else None
        note = f"stock worker {stock:.2f}"
        size, undelayed = self.sizes["pending"], self.sizes["undelayed"]
        return [
            Figure(
                "worker memory for 100,000 pending, MB",
                self.memory_growth,
                2,
                at_most=5,
                key="worker_rss_growth_100k_mb",
            ),
            Figure("idle round trips/s above stock, none pending", empty, 2, at_most=IDLE, note=note),
            Figure(
                "round trips/s above stock, 1,000,000 pending", large, 2, at_most=IDLE, key="idle_commands_per_s_1m"
            ),
            Figure("bytes per pending task", size, 0, at_most=1383, key="bytes_per_entry"),
            Figure("bytes per undelayed task in Celery's list", undelayed, 0, key="bytes_per_undelayed"),
        ]
