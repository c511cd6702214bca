"""WebSettings: users, permissions and labels of a dashboard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone, tzinfo
from typing import Final, TypedDict
from zoneinfo import ZoneInfo

from redis_queue.errors import ConfigurationError
from redis_queue.operate.actions.registry import check_verbs

MIN_PASSWORD: Final = 8
MIN_SECRET: Final = 16
MAX_LABEL: Final = 40


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Settings of a dashboard. Raises ConfigurationError for invalid values.

    *allow_write*: allow all actions. *allow*: allow only actions with these verbs, such as ``("retry", "delete")``; the
    verbs are listed in docs/dashboard.md. *users*: names and passwords for HTTP Basic authentication; None: everybody
    has access. *identify*: a function that takes the WSGI environment and returns the user's name, or None to refuse
    the request; use it instead of *users* in an application with its own users. *may*: a function that takes the WSGI
    environment and a verb and tells whether this user may act with this verb; needs *allow_write* or *allow*.
    *may_write*: a function that takes the WSGI environment and tells whether this user may act at all; needs
    *allow_write* or *allow*. *hosts*: allowed host names, against DNS rebinding; None if the surrounding application
    checks them. *secret_key*: signs cookies; must be the same in all processes; None: a random key for a single
    process. *label*: a name for the environment on every page, such as "production". *timezone*: the time zone of all
    times, such as "Europe/Berlin"; None: the zone of each browser.
    """

    allow_write: bool = False
    allow: Collection[str] = ()
    users: Mapping[str, str] | None = None
    identify: Callable[[Mapping[str, object]], str | None] | None = None
    may: Callable[[Mapping[str, object], str], bool] | None = None
    may_write: Callable[[Mapping[str, object]], bool] | None = None
    hosts: Sequence[str] | None = None
    secret_key: str | None = None
    label: str = ""
    timezone: str | None = None

    def __post_init__(self) -> None:
        self._check_users()
        self._check_permissions()
        if self.hosts is not None and not self.hosts:
            raise ConfigurationError("hosts=(): must have at least one name, or be None")
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
                raise ConfigurationError(f"users: {name!r} must be a printable name without a colon")
            if len(password) < MIN_PASSWORD:
                raise ConfigurationError(f"the password of {name!r} must have at least {MIN_PASSWORD} characters")
        if self.users is not None and not self.users:
            raise ConfigurationError("users={}: must have at least one user, or be None")
        if self.users is not None and self.identify is not None:
            raise ConfigurationError("users and identify: must not be given together")

    def _check_permissions(self) -> None:
        allowed = check_verbs("allow", self.allow)
        if self.allow_write and allowed:
            raise ConfigurationError("allow_write and allow: must not be given together; allow_write allows all verbs")
        if self.may is not None and self.may_write is not None:
            raise ConfigurationError("may and may_write: must not be given together")
        if self.may is not None and not (self.allow_write or allowed):
            raise ConfigurationError("may: needs allow_write=True, or the verbs that it decides about in allow")

    @property
    def zone(self) -> tzinfo:
        """The time zone of pages; if *timezone* is None, UTC, which browsers replace with their own."""
        if self.timezone is None:
            return timezone.utc
        try:
            return ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError, TypeError):
            raise ConfigurationError(
                f"timezone={self.timezone!r}: expected the name of a time zone, such as Europe/Berlin or UTC"
            ) from None


class WebOverrides(TypedDict, total=False):
    """The fields of :class:`WebSettings` as keyword arguments, for type checkers."""

    allow_write: bool
    allow: Collection[str]
    users: Mapping[str, str] | None
    identify: Callable[[Mapping[str, object]], str | None] | None
    may: Callable[[Mapping[str, object], str], bool] | None
    may_write: Callable[[Mapping[str, object]], bool] | None
    hosts: Sequence[str] | None
    secret_key: str | None
    label: str
    timezone: str | None
