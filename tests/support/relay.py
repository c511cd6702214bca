"""A single connection through a `FaultProxy`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from dataclasses import dataclass
from typing import Literal

Mode = Literal["pass", "refuse", "blackhole", "drop_replies"]
Target = tuple[str, int] | str

CHUNK = 65536
PAUSE = 0.05
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
HANDSHAKE = re.compile(
    rb"\*\d+\r\n\$\d+\r\n(?:HELLO|AUTH|CLIENT\r\n\$\d+\r\n(?!TRACKING)\w+|SELECT|READONLY)\r\n", re.IGNORECASE
)


@dataclass(frozen=True)
class Cut:
    """The point at which an exchange is cut.

    `request`: only the bytes in front of `before` arrive, none if it is empty. `reply`: all is executed and the client
    gets `after` bytes, half of the first chunk if it is None. `hold`: the request waits until it is released. `mute`:
    the request passes, and nothing after it.
    """

    what: Literal["request", "reply", "hold", "mute"]
    before: bytes = b""
    after: int | None = 0

    def request_part(self, request: bytes) -> bytes:
        """Return the part of `request` that arrives."""
        return request[: request.index(self.before)] if self.before else b""

    def reply_part(self, reply: bytes) -> bytes:
        """Return the part of `reply` that the client gets."""
        return reply[: len(reply) // 2 if self.after is None else self.after]


LOST_REPLY = Cut("reply")


class Faults:
    """Active faults and byte counts, shared by all connections of a proxy."""

    def __init__(self) -> None:
        self.mode: Mode = "pass"
        self.latency = 0.0
        self.cuts = 0
        self.passes = 0
        self.cuts_matching = b""
        self.cut = LOST_REPLY
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.bytes_dropped = 0
        self.passable = asyncio.Event()
        self.passable.set()
        self.released = asyncio.Event()

    def set_mode(self, mode: Mode) -> None:
        """Change the mode; `blackhole` holds bytes back until the next change."""
        self.mode = mode
        if mode == "blackhole":
            self.passable.clear()
        else:
            self.passable.set()

    async def delay(self) -> None:
        """Wait half of the latency, or as long as the black hole lasts."""
        if self.latency:
            await asyncio.sleep(self.latency / 2)
        await self.passable.wait()

    def plan(self, cut: Cut, number: int, matching: bytes, passes: int = 0) -> None:
        """Cut the next `number` exchanges that contain `matching`, after `passes` of them."""
        self.cut, self.cuts, self.cuts_matching, self.passes = cut, number, matching, passes
        self.released.clear()

    def cut_for(self, request: bytes) -> Cut | None:
        """Return the cut for the exchange of `request`, if one is planned for it; each cut is used once."""
        if not self.cuts or HANDSHAKE.match(request) or self.cuts_matching not in request:
            return None
        if self.passes:
            self.passes -= 1
            return None
        self.cuts -= 1
        return self.cut


class Relay:
    """Forward bytes between a client and the target until one of them ends."""

    def __init__(self, client: socket.socket, target: Target, faults: Faults) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._target = target
        self._faults = faults
        self._server = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
        self._server.setblocking(False)
        self._carrying_request = False
        self._last_request_at = 0.0
        self._cut: Cut | None = None
        self._lost_reply = False
        self._passes_requests = True
        self._ended_well = False
        self.muted = False

    async def run(self) -> None:
        """Connect and forward. The caller must call `close()`, because a cancelled task may never have started."""
        with contextlib.suppress(OSError):
            await self._faults.passable.wait()
            await self._loop.sock_connect(self._server, self._target)
            requests = self._loop.create_task(self._carry_requests())
            try:
                self._ended_well = await self._carry_replies()
            finally:
                requests.cancel()
                await asyncio.wait({requests})

    def close(self) -> None:
        """Close both sides; with a reset unless the server ended the connection."""
        for side in (self._client, self._server):
            if not self._ended_well:
                with contextlib.suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            side.close()

    async def _carry_requests(self) -> None:
        with contextlib.suppress(OSError):
            while self._passes_requests and (request := await self._loop.sock_recv(self._client, CHUNK)):
                self._carrying_request = True
                await self._carry_request(request)
                self._last_request_at = self._loop.time()
                self._carrying_request = False
        self._carrying_request = False
        self._end_requests()

    async def _delay(self) -> None:
        await self._faults.delay()
        if self.muted:
            await self._loop.create_future()

    async def _carry_request(self, request: bytes) -> None:
        await self._delay()
        # A client may send a pipeline in several chunks.
        cut = None if self._cut else self._faults.cut_for(request)
        if cut and cut.what == "hold":
            await self._faults.released.wait()
        elif cut and cut.what == "mute":
            self.muted = True
        elif cut:
            self._cut = cut
            if cut.what == "request":
                self._passes_requests = False
                self._lost_reply = True
                request = cut.request_part(request)
        self._faults.bytes_to_server += len(request)
        await self._loop.sock_sendall(self._server, request)

    async def _carry_replies(self) -> bool:
        """Forward until the server ends; return False if the client must see a reset instead of an end."""
        while reply := await self._loop.sock_recv(self._server, CHUNK):
            await self._delay()
            if self._cut:
                kept = self._cut.reply_part(reply)
                self._faults.bytes_to_client += len(kept)
                self._faults.bytes_dropped += len(reply) - len(kept)
                await self._loop.sock_sendall(self._client, kept)
                await self._let_server_finish()
                return False
            if self._faults.mode == "drop_replies":
                self._faults.bytes_dropped += len(reply)
                self._lost_reply = True
                continue
            if self._lost_reply:  # the client would mistake this reply for the lost one
                return False
            self._faults.bytes_to_client += len(reply)
            await self._loop.sock_sendall(self._client, reply)
        return not self._lost_reply

    async def _let_server_finish(self) -> None:
        # The first reply may come before the last request: redis-py sends a pipeline in chunks of 6 kB.
        while self._carrying_request or self._loop.time() < self._last_request_at + PAUSE:
            await asyncio.sleep(PAUSE / 10)
        # A reset now would discard requests that the server has not read; it closes the connection after all of them.
        self._end_requests()
        while reply := await self._loop.sock_recv(self._server, CHUNK):
            self._faults.bytes_dropped += len(reply)

    def _end_requests(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)
