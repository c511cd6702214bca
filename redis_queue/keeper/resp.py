"""Send commands to one Redis in RESP2, with the modules that every Python process has loaded.

Replies may be hostile: their size and form are limited, and a call ends in time whatever the server sends.
"""

from __future__ import annotations

import socket
import time
from typing import Final

MOST_BYTES: Final = 1 << 24
"""Most bytes of all replies to one exchange."""

MOST_ITEMS: Final = 1 << 14
"""Most items of an array."""

READ: Final = 1 << 14

_DIGITS: Final = 10
"""Most digits of a length."""

Argument = bytes | str | int | float

Reply = bytes | list[bytes]


class ErrorReply(Exception):  # noqa: N818 - the name of the protocol
    """Redis answered a command with an error; its general code ERR is left out, as by redis-py."""


class ProtocolError(ConnectionError):
    """The server sent bytes that are not a reply to a command."""


class Connection:
    """A connection over *link*, a connected socket, that waits at most *timeout* seconds for an exchange.

    After any error except ErrorReply of a single command it must be closed: the next bytes may belong to another reply.
    """

    def __init__(self, link: socket.socket, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._deadline = 0.0
        self._left = 0
        self._data = bytearray()

    def exchange(self, *commands: tuple[Argument, ...]) -> list[Reply]:
        """Send *commands* in one round trip and return their replies.

        Raises ErrorReply for the first error reply, and OSError if the connection fails or the server sends nothing.
        """
        if self._data:
            raise ProtocolError(f"unexpected data after a reply: {bytes(self._data[:80])!r}")
        self._deadline, self._left = time.monotonic() + self._timeout, MOST_BYTES
        self._link.settimeout(self._timeout)
        self._link.sendall(b"".join(map(_packed, commands)))
        return [self._reply() for _ in commands]

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _reply(self) -> Reply:
        line = self._line()
        kind, text = line[:1], line[1:]
        if kind == b"-":
            raise ErrorReply(text.decode(errors="replace").removeprefix("ERR "))
        if kind == b"+":
            return text
        if kind == b"*":
            return [self._string(self._line()) for _ in range(_length(line, MOST_ITEMS))]
        return self._string(line)

    def _string(self, line: bytes) -> bytes:
        if not line.startswith(b"$"):
            raise _unexpected(line)
        data = self._take(_length(line, MOST_BYTES) + 2)
        if not data.endswith(b"\r\n"):
            raise _unexpected(data[-80:])
        return data[:-2]

    def _line(self) -> bytes:
        searched = 0
        while (end := self._data.find(b"\r\n", searched)) < 0:
            searched = max(0, len(self._data) - 1)
            self._receive()
        return self._take(end + 2)[:-2]

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._receive()
        data = bytes(self._data[:size])
        del self._data[:size]
        return data

    def _receive(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._link.settimeout(left)
        data = self._link.recv(READ)
        self._left -= len(data)
        if not data:
            raise ConnectionResetError("connection closed by server")
        if self._left < 0:
            raise ProtocolError(f"a reply is longer than {MOST_BYTES} bytes")
        self._data += data


def _packed(command: tuple[Argument, ...]) -> bytes:
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n%b" % (len(parts), b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))


def _length(line: bytes, most: int) -> int:
    text = line[1:]
    # int() accepts signs, spaces and underscores.
    if not text.isdigit() or len(text) > _DIGITS or int(text) > most:
        raise _unexpected(line)
    return int(text)


def _unexpected(data: bytes) -> ProtocolError:
    return ProtocolError(f"unexpected reply: {data[:80]!r}")
