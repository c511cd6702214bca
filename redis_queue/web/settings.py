"""WebSettings: who may see the dashboard and what it may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone, tzinfo
from typing import Final, TypedDict
from zoneinfo import ZoneInfo

from redis_queue.errors import ConfigurationError

MIN_PASSWORD: Final = 8
MIN_SECRET: Final = 16
MAX_LABEL: Final = 40


@dataclass(frozen=True, slots=True)
class WebSettings:
    """How a dashboard behaves; raises ConfigurationError for values that cannot be.

    *allow_write*: whether anything may be changed. *users*: names and passwords of HTTP Basic authentication; without
    any, whoever reaches it gets in. *identify* takes the WSGI environment and returns the name of the one who asks, or
    None to refuse: for an application that has users of its own; it takes the place of *users*. *may_write* takes the
    same and tells whether this one may change something (where *allow_write* says so). *hosts*: the names under which
    it may be called, against DNS rebinding; None where the application around it sees to that. *secret_key* signs
    cookies: give the same one to all processes; None: one of its own, good for one process. *label* names the
    environment on every page, such as "production". *timezone* names the zone of all times, such as "Europe/Berlin";
    None: that of each browser.
    """

    allow_write: bool = False
    users: Mapping[str, str] | None = None
    identify: Callable[[Mapping[str, object]], str | None] | None = None
    may_write: Callable[[Mapping[str, object]], bool] | None = None
    hosts: Sequence[str] | None = None
    secret_key: str | None = None
    label: str = ""
    timezone: str | None = None

    def __post_init__(self) -> None:
        self._check_users()
        if self.hosts is not None and not self.hosts:
            raise ConfigurationError("hosts is empty, so every request would be refused: leave it out, or give names")
        if isinstance(self.hosts, str):
            raise ConfigurationError(f"hosts={self.hosts!r}: must be a list of names")
        if self.secret_key is not None and len(self.secret_key) < MIN_SECRET:
            raise ConfigurationError(
                f"secret_key: must have at least {MIN_SECRET} characters, got {len(self.secret_key)}"
            )
        if len(self.label) > MAX_LABEL:
            raise ConfigurationError(
                f"label={self.label[:MAX_LABEL]!r}...: must have at most {MAX_LABEL} characters, got {len(self.label)}"
            )
        _ = self.zone

    def _check_users(self) -> None:
        for name, password in (self.users or {}).items():
            if not name or ":" in name or not name.isprintable():
                raise ConfigurationError(f"user {name!r}: give a printable name without a colon")
            if len(password) < MIN_PASSWORD:
                raise ConfigurationError(f"the password of {name!r} is shorter than {MIN_PASSWORD} characters")
        if self.users is not None and not self.users:
            raise ConfigurationError("users is empty: nobody could get in; leave it out, or name some")
        if self.users is not None and self.identify is not None:
            raise ConfigurationError("give users or identify, not both")

    @property
    def zone(self) -> tzinfo:
        """The time zone of pages; the browser may replace it with its own."""
        if self.timezone is None:
            return timezone.utc
        try:
            return ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError, TypeError):
            raise ConfigurationError(
                f"timezone={self.timezone!r}: expected the name of a time zone, such as Europe/Berlin or UTC"
            ) from None


class WebOverrides(TypedDict, total=False):
    """The fields of :class:`WebSettings` as keyword arguments of a dashboard, for type checkers."""

    allow_write: bool
    users: Mapping[str, str] | None
    identify: Callable[[Mapping[str, object]], str | None] | None
    may_write: Callable[[Mapping[str, object]], bool] | None
    hosts: Sequence[str] | None
    secret_key: str | None
    label: str
    timezone: str | None
