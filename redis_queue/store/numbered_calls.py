"""Number the calls of each thread, so that a script answers a repeated call with the outcome of the first one."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

from redis_queue.store.keys import FlowKeys, Keys, MonitorKeys
from redis_queue.store.scripts import BoundScript, Scripts


class NumberedCalls:
    """Calls of scripts that keep the number and the outcome of a thread's last call in its slot."""

    def __init__(self, scripts: Scripts, keys: FlowKeys | Keys | MonitorKeys) -> None:
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
            script = caller.scripts[name] = self._scripts.bind(
                name, self._keys, slot=self._keys.slot(caller.name), **keys
            )
        return script

    def next_number(self) -> int:
        """Return the next number of this thread."""
        return next(self._caller.numbers)

    def prepare(self, name: str, **arguments: Any) -> Callable[[], Any]:
        """Return a call of script *name* with the next number of this thread.

        It has one effect however often it is made, and the same reply for a minute, but is refused after a later call
        of the thread.
        """
        return functools.partial(self.script(name), sequence=self.next_number(), **arguments)


class _Caller(threading.local):
    """The scripts of one thread, bound to its slot."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Choose a new name, also in a forked child: it must not share the slot of its parent."""
        self.name, self.pid = os.urandom(8).hex(), os.getpid()
        self.scripts: dict[str, BoundScript] = {}
        self.numbers = itertools.count(1)
