"""Sockets of redis-py, kept until their connections have closed them.

A connection closes its socket when it is collected. In a cycle, such as an app or a caught exception, the collector may
finalize the socket first, by chance; then it warns, in whatever test runs by then.
"""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from redis.connection import AbstractConnection

Sockets = dict[socket.socket, "weakref.ref[AbstractConnection]"]

FEW = 100
"""Look for closed sockets only when there are more."""


@contextmanager
def kept_sockets() -> Iterator[None]:
    """Keep the sockets of all connections; in the end, assert that no connection was collected with its socket open."""
    kept: Sockets = {}
    connect: Any = AbstractConnection.connect

    def connect_and_keep(self: Any) -> None:
        connect(self)
        if len(kept) > FEW:
            for closed in [one for one in list(kept) if one.fileno() < 0]:
                kept.pop(closed, None)
        if self._sock is not None:
            kept[self._sock] = weakref.ref(self)

    with mock.patch.object(AbstractConnection, "connect", connect_and_keep):
        yield
    gc.collect()
    left = []
    for one, reference in kept.items():
        connection = reference()
        if connection is not None:
            connection.disconnect()
        elif one.fileno() >= 0:
            one.close()
            left.append(one)
    assert left == []
