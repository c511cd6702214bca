"""One connection through a `FaultProxy`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from typing import Literal

Mode = Literal["pass", "refuse", "blackhole", "drop_replies"]
Target = tuple[str, int] | str

CHUNK = 65536
PAUSE = 0.05
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
HANDSHAKE = re.compile(rb"\*\d+\r\n\$\d+\r\n(?:HELLO|AUTH|CLIENT|SELECT|READONLY)\r\n", re.IGNORECASE)


class Faults:
    """What goes wrong at present and what went through so far, shared by all connections of a proxy."""

    def __init__(self) -> None:
        self.mode: Mode = "pass"
        self.latency = 0.0
        self.drops = 0
        self.drops_matching = b""
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.bytes_dropped = 0
        self.passable = asyncio.Event()
        self.passable.set()

    def set_mode(self, mode: Mode) -> None:
        """Change the mode; a black hole holds bytes back until the next change."""
        self.mode = mode
        if mode == "blackhole":
            self.passable.clear()
        else:
            self.passable.set()

    async def delay(self) -> None:
        """Take half of the latency, as long as a way through a black hole takes."""
        if self.latency:
            await asyncio.sleep(self.latency / 2)
        await self.passable.wait()

    def takes_reply_of(self, request: bytes) -> bool:
        """Tell whether the reply of `request` is to be dropped; each yes uses up one drop."""
        if not self.drops or HANDSHAKE.match(request) or self.drops_matching not in request:
            return False
        self.drops -= 1
        return True


class Relay:
    """Carries bytes between a client and the target until one of them ends."""

    def __init__(self, client: socket.socket, target: Target, faults: Faults) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._target = target
        self._faults = faults
        self._server = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
        self._server.setblocking(False)
        self._carrying_request = False
        self._last_request_at = 0.0
        self._takes_next_reply = False
        self._lost_reply = False
        self._ended_well = False

    async def run(self) -> None:
        """Connect to the target and carry; `close()` is the caller's, as a cancelled task may never have begun."""
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
        """Close both sides: with a reset unless the server ended the connection."""
        for side in (self._client, self._server):
            if not self._ended_well:
                with contextlib.suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            side.close()

    async def _carry_requests(self) -> None:
        with contextlib.suppress(OSError):
            while request := await self._loop.sock_recv(self._client, CHUNK):
                self._carrying_request = True
                await self._carry_request(request)
                self._last_request_at = self._loop.time()
                self._carrying_request = False
        self._carrying_request = False
        self._end_requests()

    async def _carry_request(self, request: bytes) -> None:
        await self._faults.delay()
        self._takes_next_reply = self._takes_next_reply or self._faults.takes_reply_of(request)
        self._faults.bytes_to_server += len(request)
        await self._loop.sock_sendall(self._server, request)

    async def _carry_replies(self) -> bool:
        """Carry until the server ends; return False if the client must see a reset instead of an end."""
        while reply := await self._loop.sock_recv(self._server, CHUNK):
            await self._faults.delay()
            if self._takes_next_reply:
                self._faults.bytes_dropped += len(reply)
                await self._let_server_finish()
                return False
            if self._faults.mode == "drop_replies":
                self._faults.bytes_dropped += len(reply)
                self._lost_reply = True
                continue
            if self._lost_reply:  # the client would take this reply for the lost one
                return False
            self._faults.bytes_to_client += len(reply)
            await self._loop.sock_sendall(self._client, reply)
        return not self._lost_reply

    async def _let_server_finish(self) -> None:
        # The first reply may come before the last request: redis-py sends a pipeline in pieces of 6 kB.
        while self._carrying_request or self._loop.time() < self._last_request_at + PAUSE:
            await asyncio.sleep(PAUSE / 10)
        # A reset now would discard requests that the server has not read: its own end comes after all of them.
        self._end_requests()
        while reply := await self._loop.sock_recv(self._server, CHUNK):
            self._faults.bytes_dropped += len(reply)

    def _end_requests(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)
