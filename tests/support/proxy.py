"""A TCP proxy that breaks the connection to a server on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from typing import Any

from .ports import HOST
from .relay import LOST_REPLY, Cut, Faults, Mode, Relay, Target
from .running import Running

__all__ = ["FaultProxy", "Mode", "Target"]

ANSWER_TIMEOUT = 10.0


class FaultProxy(Running):
    """A port on 127.0.0.1 in front of `target`, which is host and port or the path of a unix socket.

    A fault is in force once the call or assignment that asks for it has returned. The modes:

    - `pass`: bytes go both ways, unchanged.
    - `refuse`: new connections are refused, as by a host without a server; open ones stay (see `cut()`).
    - `blackhole`: everything stays open and nothing arrives, new connections included. What was sent meanwhile arrives
      with the next mode, as TCP would send it again: also the request of a client that has given up.
    - `drop_replies`: requests arrive and are executed, replies are thrown away. A connection that lost a reply is reset
      instead of passing a later one.
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
        """A URL for `redis.Redis.from_url()`; a target with a password or TLS needs more than this."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def mode(self) -> Mode:
        """What happens to connections at present."""
        return self._faults.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._run(self._set_mode(mode))

    @property
    def latency(self) -> float:
        """Seconds that a round trip takes longer than without the proxy."""
        return self._faults.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        self._faults.latency = seconds

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return self._accepted

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._relays)

    @property
    def bytes_to_server(self) -> int:
        """How many bytes of requests were passed on so far."""
        return self._faults.bytes_to_server

    @property
    def bytes_to_client(self) -> int:
        """How many bytes of replies were passed on so far."""
        return self._faults.bytes_to_client

    @property
    def bytes_dropped(self) -> int:
        """How many bytes of replies were thrown away so far."""
        return self._faults.bytes_dropped

    @property
    def pending_drops(self) -> int:
        """How many exchanges the last planned fault is still waiting for: 0 when all of them have been hit."""
        return self._faults.cuts

    def drop_next_reply(self, n: int = 1, *, matching: bytes = b"") -> None:
        """Let the server execute the next `n` exchanges that contain `matching`, and reset the connection each time.

        An exchange is what a client sends without a pause of 50 ms: a command or a pipeline. The client sees the reset
        after the server has executed all of it. What a client says to introduce itself (HELLO, AUTH, CLIENT, SELECT,
        READONLY) passes and does not count. `matching` is looked for in each piece of up to 64 KiB as it comes in. Only
        the last planned fault of this and the following four kinds is in force.
        """
        self._run(self._plan(LOST_REPLY, n, matching))

    def cut_next_reply(self, n: int = 1, *, matching: bytes = b"", after: int | None = None) -> None:
        """Do the same, but let the client have the first `after` bytes, or half of them."""
        self._run(self._plan(Cut("reply", after=after), n, matching))

    def cut_next_request(self, n: int = 1, *, matching: bytes = b"", before: bytes = b"") -> None:
        """Reset the connection instead of passing such an exchange on; only what stands before `before` arrives."""
        self._run(self._plan(Cut("request", before=before), n, matching))

    def hold_next_request(self, n: int = 1, *, matching: bytes = b"") -> None:
        """Keep such an exchange back until `release()`, after which it arrives though its client may be gone."""
        self._run(self._plan(Cut("hold"), n, matching))

    def mute_next(self, *, matching: bytes = b"") -> None:
        """Let nothing more arrive on the connection of the next such exchange, once that has passed; it stays open."""
        self._run(self._plan(Cut("mute"), 1, matching))

    def release(self) -> None:
        """Let what is held arrive."""
        self._run(self._release())

    def cut(self) -> None:
        """Reset all open connections, towards the client and the target; new ones are as welcome as the mode says."""
        self._run(self._cut())

    def mute(self) -> None:
        """Let nothing more arrive on the connections that are open now; they stay open, and new ones pass."""
        self._run(self._mute())

    def start(self) -> None:
        """Listen on a new port."""
        self._faults = Faults()
        # Bound but never listening: it keeps the port while connections to it are refused.
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

    async def _plan(self, cut: Cut, number: int, matching: bytes) -> None:
        self._faults.plan(cut, number, matching)

    async def _release(self) -> None:
        self._faults.released.set()

    async def _mute(self) -> None:
        for relay in self._relays.values():
            relay.muted = True

    async def _listen(self) -> None:
        self._listener = _socket_on(self.port)
        self._listener.setblocking(False)
        self._listener.listen()
        # No task in sock_accept(): cancelling one may lose a connection that was just accepted.
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
        with contextlib.suppress(OSError):  # the client may be gone already
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
