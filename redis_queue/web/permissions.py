"""Permissions of the user of a request: routes require a verb, templates ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flask import abort, g

from redis_queue.operate.actions.registry import PERMISSIONS
from redis_queue.web.settings import WebSettings


@dataclass(frozen=True, slots=True)
class Permissions:
    """The verbs of one user, and those that the settings allow to some user."""

    verbs: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: WebSettings, environment: Mapping[str, object]) -> Permissions:
        """Return the permissions of the user of a request."""
        allowed = frozenset(PERMISSIONS) if settings.allow_write else frozenset(settings.allow)
        if settings.may is not None:
            verbs = frozenset(verb for verb in allowed if settings.may(environment, verb))
        elif not allowed or settings.may_write is None or settings.may_write(environment):
            verbs = allowed
        else:
            verbs = frozenset()
        return cls(verbs, allowed)

    @property
    def mode(self) -> str:
        """The mode of the dashboard for this user; "limited": some verbs only."""
        return "read-only" if not self.verbs else "read-write" if len(self.verbs) == len(PERMISSIONS) else "limited"

    def why_not(self, verb: str) -> str:
        """Return why this user may not use *verb*, and what permits it."""
        if verb in self.allowed:
            return f"{verb} is not permitted to {g.user}: the application of this dashboard must permit it."
        return f"{verb} is not permitted: start the dashboard with --allow {verb}, or with --allow-write for all."


READ_ONLY: Final = "This dashboard is read-only: start it with --allow-write, or --allow VERB, to act."

NOTHING: Final = Permissions()


def permissions() -> Permissions:
    """Return the permissions of the user of this request; none before the guard has identified the user."""
    found: Permissions = g.get("permissions", NOTHING)
    return found


def may(*verbs: str) -> bool:
    """Return whether the user of this request may use at least one of *verbs*."""
    return not permissions().verbs.isdisjoint(verbs)


def require(verb: str) -> str:
    """Return *verb*; refuses the request if its user may not use it. Every action and every preview calls it."""
    if not may(verb):
        abort(403, permissions().why_not(verb))
    return verb
