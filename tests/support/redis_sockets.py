"""Sockets of redis-py, kept until their connections have closed them.

A connection closes its socket when it is collected. In a cycle, such as an app or a caught exception, the collector may
finalize the socket first, by chance; then it warns, in whatever test runs by then.
"""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from redis.connection import AbstractConnection

from tests.support.wait import wait_until

# Not `connect`, which connections made with Sentinel override. redis-py 5.0 has no other method.
CONNECT = "connect_check_health" if hasattr(AbstractConnection, "connect_check_health") else "connect"

FEW = 100
"""Look for closed sockets only when there are more."""


@contextmanager
def kept_sockets() -> Iterator[Collection[socket.socket]]:
    """Keep the sockets of all connections; in the end, assert that no connection was collected with its socket open.

    The value is the kept sockets.
    """
    kept: dict[socket.socket, weakref.ref[AbstractConnection]] = {}
    connect: Any = getattr(AbstractConnection, CONNECT)

    def connect_and_keep(self: Any, *args: Any, **kwargs: Any) -> None:
        connect(self, *args, **kwargs)
        if len(kept) > FEW:
            for closed in [one for one in list(kept) if one.fileno() < 0]:
                kept.pop(closed, None)
        if self._sock is not None:
            kept[self._sock] = weakref.ref(self)

    def all_closed() -> bool:
        gc.collect()
        return not [one for one, connection in kept.items() if connection() is None and one.fileno() >= 0]

    with mock.patch.object(AbstractConnection, CONNECT, connect_and_keep):
        yield kept.keys()
    # Another thread may be in the middle of a collection.
    wait_until(all_closed, description="the connections that were collected to close their sockets")
    for reference in kept.values():
        if connection := reference():
            connection.disconnect()
