"""Unique: which tasks may only wait once, or wait or run once, at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from redis_queue.basics.key_template import Key, KeyTemplate
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import did_you_mean, from_options
from redis_queue.basics.times import Seconds, duration_ms
from redis_queue.errors import InvalidValueError

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
