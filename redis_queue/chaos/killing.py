"""Kill points: between any two commands that a process sends, it may end by SIGKILL."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

from redis_queue.connection import Client
from redis_queue.scripts import Argument, Command, Link, link


class KillingLink:
    """Sends as another link does, and kills its process before or after one command in so many."""

    def __init__(self, inner: Link, dice: random.Random, chance: float) -> None:
        self._inner = inner
        self._dice = dice
        self._chance = chance

    def send(self, *command: Argument) -> Any:
        """Send once, if the process lives so long."""
        self._throw()
        reply = self._inner.send(*command)
        self._throw()
        return reply

    def send_both(self, first: Command, second: Command) -> tuple[Any, Any]:
        """Send two commands at once."""
        self._throw()
        replies = self._inner.send_both(first, second)
        self._throw()
        return replies

    def _throw(self) -> None:
        if self._dice.random() < self._chance:
            os.kill(os.getpid(), signal.SIGKILL)


def arm(client: Client, seed: int, chance: float) -> None:
    """Make every queue of *client* kill this process at one command in 1 / *chance*."""
    client._redis_queue_link = KillingLink(link(client), random.Random(seed), chance)  # type: ignore[union-attr]
