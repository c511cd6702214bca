"""Keeper: a process beside a Celery worker that renews the leases of the worker's messages.

A thread of the worker is not enough: a task that holds the interpreter would stop it. The worker writes each message
that it fetches or settles into a pipe, before anything else can run. The keeper renews the open leases every third of
the visibility timeout, in one call, and writes the time into memory that both processes share. It exits with the
worker, even during a call, and renews nothing while the worker is stopped, so that the leases of a dead worker expire.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis_queue.keeper.board import RenewalTime as RenewalTime
    from redis_queue.keeper.greeting import pack as pack
    from redis_queue.keeper.lines import write_line as write_line
    from redis_queue.keeper.redis_py import LeaseIndex as LeaseIndex
    from redis_queue.keeper.redis_py import Renewer as Renewer
    from redis_queue.keeper.redis_py import client_of as client_of

# The names that workers use. They are imported on first use: the keeper imports this package too, and must not import
# redis-py with it.
_MODULES: Final = {
    "LeaseIndex": "redis_py",
    "RenewalTime": "board",
    "Renewer": "redis_py",
    "client_of": "redis_py",
    "pack": "greeting",
    "write_line": "lines",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
