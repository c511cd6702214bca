"""Number the calls of each thread, so that a script answers a repeated call with the outcome of the first one."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any, Final

from redis_queue.store.keys import Keys
from redis_queue.store.links import Argument
from redis_queue.store.scripts import BoundScript, Scripts

CLAIMS: Final = ("queue/get", "delay/claim")


class NumberedCalls:
    """Calls of scripts that keep the number and the outcome of a thread's last call in its slot."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._caller = _Caller()

    def script(self, name: str, **keys: bytes) -> BoundScript:
        """Return script *name*, bound to the slot of this thread; *keys* as :meth:`Scripts.bind` takes them."""
        caller = self._caller
        if caller.pid != os.getpid():
            caller.reset()
        script = caller.scripts.get(name)
        if script is None or keys:
            script = caller.scripts[name] = self._scripts.bind(name, self._keys, slot=self._slot(name), **keys)
        return script

    def next_number(self) -> int:
        """Return the next number of this thread."""
        return next(self._caller.numbers)

    def call(self, name: str, **arguments: Any) -> Any:
        """Call script *name* with the next number of this thread."""
        script = self.script(name)
        return script(sequence=self.next_number(), **arguments)

    def call_both(self, first: str, more: list[Argument], second: str, **arguments: Any) -> tuple[Any, Any]:
        """Call script *first* with *more* and script *second* with *arguments* in one round trip."""
        one, two = self.script(first), self.script(second)
        sequence, following = self.next_number(), self.next_number()
        return one.with_next(more, two, {**arguments, "sequence": following}, sequence=sequence)

    def _slot(self, name: str) -> bytes:
        # Numbered separately: an ack and the next claim are sent together, and each must be the last one when repeated.
        return self._keys.slot(f"{self._caller.name}_claim" if name in CLAIMS else self._caller.name)


class _Caller(threading.local):
    """The scripts of one thread, bound to its slots."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Choose a new name, also in a forked child: it must not share the slots of its parent."""
        self.name, self.pid = os.urandom(8).hex(), os.getpid()
        self.scripts: dict[str, BoundScript] = {}
        self.numbers = itertools.count(1)
