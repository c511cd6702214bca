"""ACL rules of docs/security.md: those of each role."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from redis_queue.doctor.roles import ROLES, Role


def rules(role: Role) -> str:
    """Return the rules as a block."""
    return f"```\n{role.rules}\n```\n"


MAKERS: Final[dict[str, Callable[[], str]]] = {f"role-{role.name}": partial(rules, role) for role in ROLES}
