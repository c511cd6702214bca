"""Settings of queues and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from redis_queue.basics.options import from_options
from redis_queue.basics.times import Seconds, check_duration, duration_ms
from redis_queue.errors import ConfigurationError, InvalidDelayError
from redis_queue.store.chunks import check_limit
from redis_queue.store.codec import JSON, Serializer

MAX_SHARDS = 1024
MAX_PREFIX = 100

_NUMBERS: Final = (
    ("max_deliveries", 0, 1_000_000),
    ("max_length", 0, 2**53),
    ("max_body", 1, 512 * 1024 * 1024),
    ("put_back_on_get", 0, 500),
    ("shards", 1, MAX_SHARDS),
)
"""Minimum and maximum values of settings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a queue. All processes that use one queue should use the same values."""

    #: First part of all keys.
    prefix: str = "redis_queue"
    #: Length of a new lease (seconds or timedelta).
    lease: Seconds = 60.0
    #: Deliveries after which a message becomes a dead letter; 0 means never.
    max_deliveries: int = 20
    #: Waiting messages (ready and delayed) above which ``put`` raises QueueFullError; 0 means no limit.
    max_length: int = 0
    #: Largest serialised body in bytes, checked before anything is sent.
    max_body: int = 256 * 1024
    #: Longest time a waiting ``get`` relies on the wake-up before it looks again (seconds or timedelta).
    poll_interval: Seconds = 1.0
    #: Maximum number of expired leases that a ``get`` puts back; 0 leaves them to ``put_back``.
    put_back_on_get: int = 10
    #: DelayQueue only: number of hash tags over which the queue is spread, for Redis Cluster. It cannot be changed
    #: later: opened with another number, the queue stores nothing.
    shards: int = 1
    #: Serializer of bodies that are not bytes.
    serializer: Serializer = field(default=JSON)

    def __post_init__(self) -> None:
        for name, low, high in _NUMBERS:
            check_limit(getattr(self, name), high, name=name, least=low, error=ConfigurationError)
        try:
            check_duration("lease", self.lease, 0.001, 7 * 86400)
            check_duration("poll_interval", self.poll_interval, 0.01, 60)
        except InvalidDelayError as error:
            raise ConfigurationError(str(error)) from None
        if not isinstance(self.prefix, str) or not 0 < len(self.prefix) <= MAX_PREFIX or not self.prefix.isprintable():
            raise ConfigurationError(f"prefix={self.prefix!r}: must be 1 to {MAX_PREFIX} printable characters")

    @property
    def lease_ms(self) -> int:
        """Length of a new lease in milliseconds."""
        return duration_ms(self.lease)

    @property
    def poll_seconds(self) -> float:
        """The poll interval in seconds."""
        return duration_ms(self.poll_interval) / 1000

    @classmethod
    def choose(cls, settings: Settings | None, overrides: Mapping[str, Any]) -> Settings:
        """Return *settings*, or new ones with *overrides*. Raises ConfigurationError for both at once."""
        if settings is None:
            return cls.from_mapping(overrides)
        if overrides:
            raise ConfigurationError("settings: must be settings=, or single settings by keyword, not both")
        if not isinstance(settings, Settings):
            raise ConfigurationError(f"settings={settings!r}: must be a Settings")
        return settings

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Settings:
        """Return settings from *values*. Raises ConfigurationError; for an unknown name it suggests a known one."""
        return from_options(cls, values, what="setting", error=ConfigurationError)


class QueueOverrides(TypedDict, total=False):
    """The fields of :class:`Settings` as keyword arguments of a queue, for type checkers."""

    prefix: str
    lease: Seconds
    max_deliveries: int
    max_length: int
    max_body: int
    poll_interval: Seconds
    put_back_on_get: int
    shards: int
    serializer: Serializer
