"""Parts of the machines: profiles, a clock and a link that loses replies."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final, NamedTuple, cast

import redis
from hypothesis import HealthCheck, settings

from redis_queue.basics import waits
from redis_queue.store.links import Argument, Link
from redis_queue.store.script_files import load

PROFILE_VARIABLE: Final = "REDIS_QUEUE_HYPOTHESIS_PROFILE"
LEASE_MS: Final = 10_000
TICKS: Final = (0, 1, LEASE_MS - 1, LEASE_MS, LEASE_MS + 1, 100 * LEASE_MS)

_COMMON: Final = settings(
    deadline=None, print_blob=True, report_multiple_bugs=False, suppress_health_check=[HealthCheck.too_slow]
)
PROFILES: Final = {
    "default": settings(_COMMON, max_examples=100, stateful_step_count=30),
    "thorough": settings(_COMMON, max_examples=5000, stateful_step_count=60),
}


def profile() -> settings:
    return PROFILES[os.environ.get(PROFILE_VARIABLE, "default")]


def timeout() -> int:
    """Return the seconds for one machine, since shrinking a failure takes minutes; 0 means no limit."""
    return 400 if profile() is PROFILES["default"] else 0


class Loss(NamedTuple):
    """The number of the lost reply in a call (0: none), and what another client does before the repetition."""

    number: int = 0
    meanwhile: str = ""


NO_LOSS: Final = Loss()
LOSSES: Final = (
    *(NO_LOSS,) * 3,
    Loss(1),
    Loss(1, "consume"),
    Loss(1, "expire"),
    Loss(2),
    Loss(2, "consume"),
    Loss(2, "expire"),
    Loss(3),
)

LOOKS: Final = frozenset(
    value
    for name in (
        *("queue/peek", "queue/stats", "records/dead_letters", "records/quarantined"),
        *("delay/count", "delay/find", "delay/list", "delay/stats"),
    )
    for script in [load(name)]
    for value in (script.sha, script.source)
)
"""Hashes and sources of the read-only scripts."""


class LossyLink:
    """A link that executes a command and, on request, loses its reply."""

    def __init__(self, inner: Link) -> None:
        self._inner = inner
        self._until_loss = 0
        self._meanwhile: Callable[[], object] = object

    def arm(self, number: int, meanwhile: Callable[[], object]) -> None:
        """Lose the reply of the *number*-th command that may change the queue, counted from now; 0 loses none."""
        self._until_loss, self._meanwhile = number, meanwhile

    def send(self, *command: Argument) -> Any:
        """Send a command. Only successful commands count, since a refused one has no effect."""
        reply = self._inner.send(*command)
        if self._until_loss and _may_change(command):
            self._until_loss -= 1
            if not self._until_loss:
                self._meanwhile()
                raise redis.TimeoutError("the reply is lost")
        return reply


class OnLoop:
    """A queue for asyncio whose methods are called as those of the synchronous one; *loop* runs them."""

    def __init__(self, queue: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._queue, name)
        return partial(self._call, found) if inspect.iscoroutinefunction(found) else found

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        outer = waits.loop_call()
        # Within the call of the other client, which waits for its lost reply.
        made = method(*args, **kwargs)
        return self._loop.run_until_complete(made) if outer is None else cast("Any", outer).wait(made)


def _may_change(command: tuple[Argument, ...]) -> bool:
    name, target = command[:2]
    if name in ("LLEN", "ZCARD", "ZRANGE", "TYPE") or target in LOOKS:
        return False
    return not (isinstance(target, bytes) and target.endswith(b":registry"))


def ms(at: datetime) -> int:
    """Return an aware datetime in milliseconds since the epoch."""
    return round(at.timestamp() * 1000)


def moment(value: int) -> datetime:
    """Return milliseconds since the epoch as an aware datetime."""
    return datetime.fromtimestamp(value / 1000, timezone.utc)


def token_number(token: str) -> int:
    """Return the number of the claim that made *token*."""
    return int(token.partition("-")[0])
