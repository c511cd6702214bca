"""Renew leases in one Redis through a connection of the keeper's own, without redis-py."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Mapping
from typing import Any

from redis_queue.keeper.renewal import Renewal, RenewalError, renew
from redis_queue.keeper.resp import Argument, Connection, ErrorReply, ProtocolError


class Broker:
    """The Redis of a greeting: where it is, how to log in, and the script ``held/renew``."""

    def __init__(self, greeting: Mapping[str, Any]) -> None:
        self._server = greeting["server"]
        self._keys = greeting["keys"]
        self._script = greeting["script"]
        self._lease = greeting["lease"]
        self._signature = greeting["signature"]
        self._connection: Connection | None = None

    def renew(self, held: Mapping[str, float]) -> Renewal:
        """Renew the leases of *held*, delivery tag -> last known time. Raises RenewalError."""
        try:
            return renew(self._call, self._lease, self._signature, held)
        except ErrorReply as error:
            # A new connection logs in again, and finds the new primary behind a name.
            self.close()
            raise RenewalError(str(error), "reply") from error
        except (OSError, ValueError) as error:
            self.close()
            server = self._server
            place = server["path"] or f"{server['host']}:{server['port']}"
            raise RenewalError(f"{place}: {error}", "connection") from error

    def _call(self, *, more: list[Argument], **arguments: Argument) -> list[bytes]:
        values = [*self._keys, *(arguments[name] for name in self._script["arguments"]), *more]
        if self._connection is not None:
            try:
                return self._run(self._connection, values)
            except OSError:
                # It may have been closed since the last renewal. The script may be repeated.
                self.close()
        self._connection = _connect(self._server)
        return self._run(self._connection, values)

    def _run(self, connection: Connection, values: list[Argument]) -> list[bytes]:
        try:
            (reply,) = connection.exchange(("EVALSHA", self._script["sha"], len(self._keys), *values))
        except ErrorReply as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
            (reply,) = connection.exchange(("EVAL", self._script["source"], len(self._keys), *values))
        if not isinstance(reply, list):
            raise ProtocolError(f"unexpected reply: {reply[:80]!r}")
        return reply

    def close(self) -> None:
        """Close the connection; the next renewal opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _connect(server: Mapping[str, Any]) -> Connection:
    path, timeout = server["path"], server["connect_timeout"]
    # The host as bytes: for text, Python imports the codec of international names, which takes a megabyte.
    address: Any = (server["host"].encode(), server["port"])
    link = socket.socket(socket.AF_UNIX) if path else socket.create_connection(address, timeout)
    try:
        if path:
            link.settimeout(timeout)
            link.connect(path)
        for level, name, value in server["options"]:
            link.setsockopt(level, name, value)
        if server["tls"]:
            # It takes six megabytes.
            link = importlib.import_module("redis_queue.keeper.tls").wrap(link, server["host"], server["tls"])
        connection = Connection(link, server["timeout"])
        if server["login"]:
            connection.exchange(*server["login"])
    except BaseException:
        link.close()
        raise
    return connection
