"""A TCP proxy that injects connection faults between a client and a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from typing import Any

from .ports import HOST
from .relay import LOST_REPLY, Cut, Faults, Mode, Relay, Target
from .servers import Running

__all__ = ["FaultProxy", "Mode", "Target"]

ANSWER_TIMEOUT = 10.0


class FaultProxy(Running):
    """A port on 127.0.0.1 in front of `target`, which is host and port or the path of a unix socket.

    A fault is active once the call or assignment that requests it has returned. The modes:

    - `pass`: bytes are forwarded both ways, unchanged.
    - `refuse`: new connections are refused, as by a host without a server; open ones remain (see `cut()`).
    - `blackhole`: connections, also new ones, stay open and nothing arrives. Bytes sent meanwhile arrive
      with the next mode, as after a TCP retransmission: also the request of a client that has given up.
    - `drop_replies`: requests arrive and are executed, replies are dropped. A connection that lost a reply is reset
      instead of forwarding a later one.
    """

    port: int
    _loop: asyncio.AbstractEventLoop
    _thread: threading.Thread
    _faults: Faults
    _placeholder: socket.socket

    def __init__(self, target: Target) -> None:
        self._target = target
        self._relays: dict[asyncio.Task[None], Relay] = {}
        self._listener: socket.socket | None = None
        self._accepted = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the proxy; the port stays the same in all modes."""
        return HOST, self.port

    @property
    def url(self) -> str:
        """A URL for `redis.Redis.from_url()`; a target with a password or TLS needs more options."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def mode(self) -> Mode:
        return self._faults.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._run(self._set_mode(mode))

    @property
    def latency(self) -> float:
        """Seconds that the proxy adds to each round trip."""
        return self._faults.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._faults.latency = seconds

    @property
    def connections(self) -> int:
        """Number of accepted connections so far."""
        return self._accepted

    @property
    def open_connections(self) -> int:
        return len(self._relays)

    @property
    def bytes_to_server(self) -> int:
        """Number of request bytes forwarded so far."""
        return self._faults.bytes_to_server

    @property
    def bytes_to_client(self) -> int:
        """Number of reply bytes forwarded so far."""
        return self._faults.bytes_to_client

    @property
    def bytes_dropped(self) -> int:
        """Number of reply bytes dropped so far."""
        return self._faults.bytes_dropped

    @property
    def pending_drops(self) -> int:
        """Number of exchanges that the last planned fault still waits for: 0 when all of them have been hit."""
        return self._faults.cuts

    def drop_next_reply(self, n: int = 1, *, matching: bytes = b"", passes: int = 0) -> None:
        """Let the server execute the next `n` exchanges that contain `matching`, and reset the connection each time.

        Before, `passes` such exchanges pass.

        An exchange is what a client sends without a pause of 50 ms: a command or a pipeline. The client sees the reset
        after the server has executed all of it. Commands of the connection setup (HELLO, AUTH, CLIENT except TRACKING,
        SELECT, READONLY) pass and do not count. `matching` is searched in each chunk of up to 64 KiB as it is
        received. Only the last planned fault of this and the following four kinds is active.
        """
        self._run(self._plan(LOST_REPLY, n, matching, passes))

    def cut_next_reply(self, n: int = 1, *, matching: bytes = b"", after: int | None = None) -> None:
        """Like `drop_next_reply()`, but forward the first `after` bytes of the reply, or half of it."""
        self._run(self._plan(Cut("reply", after=after), n, matching))

    def cut_next_request(self, n: int = 1, *, matching: bytes = b"", before: bytes = b"", passes: int = 0) -> None:
        """Reset the connection instead of forwarding such an exchange; only the bytes in front of `before` arrive."""
        self._run(self._plan(Cut("request", before=before), n, matching, passes))

    def hold_next_request(self, n: int = 1, *, matching: bytes = b"", passes: int = 0) -> None:
        """Hold such an exchange back until `release()`; then it arrives even if its client has gone."""
        self._run(self._plan(Cut("hold"), n, matching, passes))

    def mute_next(self, *, matching: bytes = b"") -> None:
        """Forward the next such exchange, then nothing more on its connection, which stays open."""
        self._run(self._plan(Cut("mute"), 1, matching))

    def release(self) -> None:
        """Forward the requests that are held back."""
        self._run(self._release())

    def cut(self) -> None:
        """Reset all open connections, on both sides; new ones are handled according to the mode."""
        self._run(self._cut())

    def mute(self) -> None:
        """Forward nothing more on the current connections, which stay open; new ones pass."""
        self._run(self._mute())

    def start(self) -> None:
        """Listen on a new port."""
        self._faults = Faults()
        # Bound but never listening: reserves the port while connections to it are refused.
        self._placeholder = _socket_on(0)
        self.port = self._placeholder.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())

    def stop(self) -> None:
        """Reset all connections, free the port and end the thread."""
        self._run(self._stop_listening())
        self._run(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._placeholder.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_TIMEOUT)

    async def _set_mode(self, mode: Mode) -> None:
        self._faults.set_mode(mode)
        if mode == "refuse":
            await self._stop_listening()
        elif self._listener is None:
            await self._listen()

    async def _plan(self, cut: Cut, number: int, matching: bytes, passes: int = 0) -> None:
        self._faults.plan(cut, number, matching, passes)

    async def _release(self) -> None:
        self._faults.released.set()

    async def _mute(self) -> None:
        for relay in self._relays.values():
            relay.muted = True

    async def _listen(self) -> None:
        self._listener = _socket_on(self.port)
        self._listener.setblocking(False)
        self._listener.listen()
        # No task waits in sock_accept(): cancelling it may lose a connection that was just accepted.
        self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        relays = set(self._relays)
        for relay in relays:
            relay.cancel()
        if relays:
            await asyncio.wait(relays)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client may have gone already
            client, _ = listener.accept()
            client.setblocking(False)
            self._accepted += 1
            relay = Relay(client, self._target, self._faults)
            task = self._loop.create_task(relay.run())
            self._relays[task] = relay
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._relays.pop(task).close()


def _socket_on(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound
