"""Kill points: a process may be killed with SIGKILL between any two commands that it sends to Redis or RabbitMQ."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from typing import Any

import amqp.transport
import redis.connection

from redis_queue.store import script_files


class Dice:
    """Kills this process with a chance of 1 / *chance* at each throw, unless *is_off()*."""

    def __init__(self, seed: int, chance: float, is_off: Callable[[], bool] = lambda: False) -> None:
        self._random = random.Random(seed)
        self._chance = chance
        self._is_off = is_off
        #: Called before the kill.
        self.last_words: Callable[[], None] = lambda: None

    def throw(self) -> None:
        """Kill this process by chance."""
        if self._random.random() < self._chance and not self._is_off():
            self.last_words()
            os.kill(os.getpid(), signal.SIGKILL)

    def reseed(self, chance: float, last_words: Callable[[], None]) -> None:
        """Throw other numbers than the parent: call it in a child of this process."""
        self._random = random.Random(f"{self._random.random()} {os.getpid()}")
        self._chance = chance
        self.last_words = last_words

    def arm(self) -> None:
        """Throw before and after each command of this process from now on."""
        for where, before, after in (
            (redis.connection.AbstractConnection, "send_packed_command", "read_response"),
            (amqp.transport._AbstractTransport, "write", "read_frame"),
        ):
            setattr(where, before, self._preceded(getattr(where, before)))
            setattr(where, after, self._followed(getattr(where, after)))

    def _preceded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*arguments: Any, **options: Any) -> Any:
            self.throw()
            return call(*arguments, **options)

        return armed

    def _followed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def armed(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            self.throw()
            return result

        return armed


# Edit the scripts that this process calls: its copies, not the files.


def edit_include(name: str, pattern: str, replacement: str) -> None:
    """Replace *pattern* in the include *name*. Raises LookupError if it does not stand there once."""
    code = script_files._code
    if sum(len(re.findall(pattern, line)) for line in code(name)) != 1:
        raise LookupError(f"lua/includes/{name}.lua: expected {pattern!r} once")

    def edited(include: str) -> list[str]:
        lines = code(include)
        return [re.sub(pattern, replacement, line) for line in lines] if include == name else lines

    setattr(script_files, "_code", edited)  # noqa: B010 - a function
    script_files.load.cache_clear()
