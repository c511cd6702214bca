"""Rules as users write them: of flows, with their limits and their state, and of unique tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from redis_queue.basics.key_template import Key, KeyTemplate, check_key
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import did_you_mean, from_options
from redis_queue.basics.times import Seconds, duration_ms
from redis_queue.errors import InvalidValueError
from redis_queue.store.chunks import check_limit

MAX_PLACES: Final = 1_000_000
MAX_WEIGHTS: Final = 1000
WEIGHTS: Final = (0.01, 100.0)
SPREAD: Final = 100.0
"""Milliseconds of a rate that may be used at once by default."""

FASTEST: Final = 0.001
"""Minimum milliseconds between two starts: a million per second."""

UNITS: Final = {"s": 1000.0, "m": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}

_RATE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/([smhd])", re.ASCII)

PLAIN, KEYED, FAIR = "-", "k", "f"

NONE: Final = "-"
"""Text of a limit that is None."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits and rates: *limit* and *rate_ms* (ms between two starts) for all messages of a flow, the others for a key.

    None means no limit. Scripts read them in this order, then whether the flow has weights, and its kind.
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
    limits: FlowLimits
    declared: FlowLimits
    kind: str
    paused: bool
    running: int
    waiting: int
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key of a flow: how many of its messages run and wait, whether it is paused, and its *own* limits.

    *own* has "limit", "rate_ms" and "burst", as in FlowLimits, if they were set for this key; None means no limit.
    """

    key: str
    running: int
    waiting: int
    paused: bool = False
    own: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Flow:
    """Flow control for a queue or a task. Raises InvalidValueError for invalid values and contradictions.

    *limit*: most messages that run at once in all workers; 0 admits none. *rate*: most starts per time, such as
    ``"100/m"`` (s, m, h or d); they are spread evenly, and up to *burst* may come at once (default: what falls into
    0.1 s, at least one). With *key*, a format string over the arguments or a function of them, both count for each key
    alone.

    With *fair*, a key as well, the keys take turns; *limit* and *rate* count for all of them together, *limit_each* and
    *rate_each* for each. *weights* gives some keys more turns: ``{"big customer": 3}``.
    """

    limit: int | None = None
    rate: str | None = None
    key: Key | None = None
    fair: Key | None = None
    limit_each: int | None = None
    rate_each: str | None = None
    burst: int | None = None
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("limit", "limit_each", "burst"):
            check_number(name, getattr(self, name))
        for name in ("rate", "rate_each"):
            interval_ms(name, getattr(self, name))
        self._check_needs()
        _check_weights(self.weights, fair=self.fair)
        _ = self.template

    def _check_needs(self) -> None:
        if self.key is not None and self.fair is not None:
            raise InvalidValueError(f"key={self.key!r} and fair={self.fair!r}: give only one of them")
        for name in ("limit_each", "rate_each"):
            if getattr(self, name) is not None and self.fair is None:
                raise InvalidValueError(
                    f"{name}={getattr(self, name)!r}: needs fair=; with key=, limit= and rate= count for each key"
                )
        if self.key is not None and self.limit is None and self.rate is None:
            raise InvalidValueError(f"key={self.key!r}: needs limit= or rate=")
        if self.fair is None and self.limit is None and self.rate is None:
            raise InvalidValueError("a flow needs limit=, rate= or fair=")
        if self.burst is not None and self.rate is None and self.rate_each is None:
            raise InvalidValueError(f"burst={self.burst}: needs rate= or rate_each=")

    @LazyProperty
    def template(self) -> KeyTemplate | None:
        """The template of its key; None if it has none."""
        if self.fair is not None:
            return KeyTemplate(self.fair, label="fair")
        return None if self.key is None else KeyTemplate(self.key)

    @property
    def kind(self) -> str:
        """How its limits count: for all messages, for each key, or for both."""
        return KEYED if self.key is not None else FAIR if self.fair is not None else PLAIN

    @classmethod
    def of(cls, value: Any) -> Flow:
        """Return the flow that *value*, a Flow or a mapping of its arguments, describes. Raises InvalidValueError."""
        return from_options(cls, value, example="{'limit': 10}")

    @LazyProperty
    def rules(self) -> str:
        """Its limits and rates, as scripts read them."""
        limit, each, rate, rate_each = self.limit, self.limit_each, self.rate, self.rate_each
        if self.kind == KEYED:
            limit, each, rate, rate_each = None, limit, None, rate
        limits = FlowLimits(
            limit,
            each,
            interval_ms("rate", rate),
            burst_of(rate, self.burst),
            interval_ms("rate_each", rate_each),
            burst_of(rate_each, self.burst),
        )
        return " ".join([*map(token, astuple(limits)), "1" if self.weights else NONE, self.kind])


def check_number(name: str, value: Any) -> None:
    """Raise InvalidValueError unless *value*, a limit or a burst, is a whole number up to a million, or None."""
    if value is not None:
        check_limit(value, MAX_PLACES, name=name, least=1 if name == "burst" else 0)


def burst_of(rate: str | None, burst: int | None = None) -> int | None:
    """Return how many may start at once at *rate*; None without a rate.

    A worker starts a message some milliseconds after its time. With a burst, a fast rate makes up for that.
    """
    interval = interval_ms("rate", rate)
    return None if interval is None else burst or max(1, math.floor(SPREAD / interval))


def interval_ms(name: str, rate: Any) -> float | None:
    """Return the ms between two starts at *rate*; None for None. Raises InvalidValueError."""
    if rate is None:
        return None
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    count = float(found[1]) if found else 0.0
    if found is None or not count or UNITS[found[2]] / count < FASTEST:
        raise InvalidValueError(
            f"{name}={rate!r}: must be a number per s, m, h or d, such as '100/m'; to admit none, use limit=0"
        )
    return UNITS[found[2]] / count


def token(value: float | None) -> str:
    """Return one of the values of :class:`FlowLimits` as scripts read it."""
    return NONE if value is None else f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def read_token(text: str) -> float | None:
    """Return the value of a text that :func:`token` has written; None for none, and for one of another program."""
    try:
        found = float(text) if len(text) < 20 else math.nan  # noqa: PLR2004
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _check_weights(weights: Any, *, fair: Key | None) -> None:
    low, high = WEIGHTS
    if not isinstance(weights, Mapping) or len(weights) > MAX_WEIGHTS:
        raise InvalidValueError(
            f"weights={str(weights)[:60]}: must be a mapping of up to {MAX_WEIGHTS:,} keys to numbers"
        )
    if weights and fair is None:
        raise InvalidValueError("weights: needs fair=")
    for key, weight in weights.items():
        if not isinstance(key, str):
            raise InvalidValueError(f"weights: the key {key!r} must be text")
        check_key(key, label="weights: key")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not low <= weight <= high:
            raise InvalidValueError(f"weights: {key!r}: {weight!r}: must be a number from {low:g} to {high:g}")


OnDuplicate = Literal["keep", "replace", "raise"]

POLICIES: Final = ("keep", "replace", "raise")

MAX_TTL_MS: Final = 366 * 86_400_000
"""Maximum milliseconds for which a key may be owned after its message is due."""

START, END, TIME = "s", "e", "t"


@dataclass(frozen=True)
class Unique:
    """At most one task per *key* waits, or waits or runs. Raises InvalidValueError for invalid values.

    *key*: a format string over the arguments, such as ``"order:{order_id}"``, or a function of them; None: one key for
    all calls of the task. *until*: the key is free again when the task starts ("start"), when it has ended ("end"), or
    a timedelta after it was due.

    A second call meanwhile is not sent. With *on_conflict* "keep" it returns the result of the first; with "raise" it
    raises :class:`redis_queue.DuplicateTaskError`. With "replace" its arguments and its time replace those of the
    first, under the id of the first; once that one runs, as with "keep".

    The key is free at the latest *ttl* after its task was due, should all else fail.
    """

    key: Key | None = None
    until: Literal["start", "end"] | timedelta = "end"
    on_conflict: OnDuplicate = "keep"
    ttl: Seconds = 86_400.0

    def __post_init__(self) -> None:
        if isinstance(self.until, timedelta):
            _check_time("until", self.until)
        elif self.until not in ("start", "end"):
            raise InvalidValueError(f"until={self.until!r}: must be 'start', 'end' or a timedelta")
        if self.on_conflict not in POLICIES:
            hint = did_you_mean(str(self.on_conflict), POLICIES)
            raise InvalidValueError(f"on_conflict={self.on_conflict!r}: must be one of {', '.join(POLICIES)}: {hint}")
        _check_time("ttl", self.ttl)
        _ = self.template

    @LazyProperty
    def template(self) -> KeyTemplate | None:
        """The template of its key; None if all calls have one key."""
        return None if self.key is None else KeyTemplate(self.key)

    @property
    def kind(self) -> str:
        """Until when the key is owned, as scripts read it."""
        return TIME if isinstance(self.until, timedelta) else START if self.until == "start" else END

    @property
    def ttl_ms(self) -> int:
        """For how many ms the key is owned at most, after the task was due."""
        return duration_ms(self.until if isinstance(self.until, timedelta) else self.ttl)

    @classmethod
    def of(cls, value: Any) -> Unique:
        """Return what *value*, a Unique or a mapping of its arguments, describes. Raises InvalidValueError."""
        return from_options(cls, value, example="{'key': '{order_id}'}")


def _check_time(name: str, value: Any) -> None:
    found = duration_ms(value, name=name)
    if not 1000 <= found <= MAX_TTL_MS:  # noqa: PLR2004 - one second
        raise InvalidValueError(f"{name}={value!r}: must be 1 second to {MAX_TTL_MS // 86_400_000} days")
