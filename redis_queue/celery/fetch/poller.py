"""FetchingPoller: waits for the connections of FetchingChannels, with or without an event loop."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable
from queue import Empty
from typing import Any, Final, NamedTuple

from kombu.asynchronous import get_event_loop
from kombu.transport.redis import MultiChannelPoller

from redis_queue.basics.times import monotonic

SWEEP_AFTER: Final = 10.0
"""Seconds without a sweep after which :meth:`FetchingPoller.get` begins with one; kombu sweeps when nothing arrives."""

FETCH: Final = "FETCH"
"""The type of our connections beside BRPOP and LISTEN in kombu's poller."""


class Reader(NamedTuple):
    """A socket to watch, its channel or None, and what to call when it is readable."""

    channel: object
    end: Any
    read: Callable[[], None]


class HubTimer:
    """Calls *function* at a time; on a hub, or when :meth:`check` is called."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self.at = math.inf

    def set(self, at: float, hub: Any) -> None:
        """Call the function at *at* (monotonic clock), unless it will be called earlier."""
        if at < self.at:
            self.at = at
            if hub is not None:
                hub.call_later(max(0.0, at - monotonic()), self._fire, at)

    def check(self) -> None:
        """Call the function if it is time."""
        if monotonic() >= self.at:
            self._fire(self.at)

    def _fire(self, at: float) -> None:
        # It may have been set to an earlier time since.
        if at == self.at:
            self.at = math.inf
            self._function()


class FetchingPoller(MultiChannelPoller):
    """Poller of kombu's Redis transport for FetchingChannels.

    In a worker with an event loop, the hub polls and calls back; else :meth:`get` does both.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hub: Any = None
        self._readers: dict[int, Reader] = {}
        self._watched: dict[int, Any] = {}
        self._settling, self._looking = HubTimer(self._settle), HubTimer(self._look)
        self._swept_at = monotonic()
        # Readable while something has to be done in the next turn of the event loop.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._woken = False

    @property
    def fds(self) -> dict[int, Any]:
        """The file descriptors to watch; for a hub, those that it does not watch yet."""
        found: dict[int, Any] = super().fds
        if self._hub is None:
            return found
        for number in self._paused_brpop:
            self._watched.pop(number, None)
        new = {number: entry for number, entry in found.items() if self._watched.get(number) is not entry}
        self._watched.update(new)
        return new

    def watch(self, channel: object, end: Any, read: Callable[[], None]) -> None:
        """Call *read* when the socket *end* is readable."""
        number = end.fileno()
        self._readers[number] = Reader(channel, end, read)
        self._fd_to_chan[number] = (channel, FETCH)
        self.poller.register(end, self.eventflags)

    def forget(self, channel: object) -> None:
        """Stop watching the sockets of *channel*."""
        for number, reader in list(self._readers.items()):
            if reader.channel is not channel:
                continue
            del self._readers[number]
            self._fd_to_chan.pop(number, None)
            self._watched.pop(number, None)
            # The number of a socket that redis-py has closed may belong to another one by now.
            if reader.end.fileno() == number:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self._unregister_from_poll(number)

    def wake(self) -> None:
        """Make the next poll return at once."""
        if not self._woken and self._wake_writer.fileno() >= 0:
            self._woken = True
            self._wake_writer.send(b"\0")

    def settle_at(self, at: float) -> None:
        """Settle at *at* (monotonic clock) at the latest; without a hub, in the next turn."""
        if self._hub is None:
            # The consumer may wait in another greenlet.
            self.wake()
        elif at <= 0:
            self._settle(early=True)
        else:
            self._settling.set(at, self._hub)

    def look_at(self, at: float) -> None:
        """Let the channels look for messages at *at* (monotonic clock) at the latest."""
        self._looking.set(at, self._hub)

    def use_hub(self, hub: Any) -> None:
        """Let *hub*, or what stands for it, poll and call back."""
        self._hub = hub

    def watch_again(self) -> None:
        """Make the hub, which no longer watches anything, watch all open sockets from its next turn on."""
        self._watched.clear()

    def on_poll_init(self, poller: Any) -> Any:
        """Use the poller of the event loop."""
        hub = get_event_loop()
        if hub is not None and hub.poller is poller:
            self._hub = hub
        return super().on_poll_init(poller)

    def on_poll_start(self) -> None:
        """Prepare for the next poll."""
        if self._wake_reader.fileno() < 0:
            # kombu keeps calling the pollers of lost connections.
            return
        if self._wake_reader.fileno() not in self._readers:
            self.watch(None, self._wake_reader, self._answer)
        super().on_poll_start()

    def on_readable(self, fileno: int) -> Any:
        """Read what has arrived."""
        if fileno in self._readers:
            return self._readers[fileno].read()
        return super().on_readable(fileno)

    def handle_event(self, fileno: int, event: int) -> Any:
        if fileno in self._readers:
            return self.on_readable(fileno), self
        return super().handle_event(fileno, event)

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Wait for messages and hand them on; raises Empty after *timeout* seconds."""
        self._settling.check()
        self._looking.check()
        if monotonic() - self._swept_at >= SWEEP_AFTER:
            self.maybe_restore_messages()
        self.on_poll_start()
        soonest = min(self._settling.at, self._looking.at) - monotonic()
        if soonest < (math.inf if timeout is None else timeout):
            timeout = max(0.0, soonest)
        return super().get(callback, timeout)

    def maybe_restore_messages(self) -> None:
        """Let a channel look for messages that have to be returned."""
        self._swept_at = monotonic()
        super().maybe_restore_messages()

    def close(self) -> None:
        super().close()
        self._readers.clear()
        self._settling.at = self._looking.at = math.inf
        self._wake_reader.close()
        self._wake_writer.close()

    def _register_BRPOP(self, channel: Any) -> None:  # noqa: N802 - the name in kombu
        if channel.fetches:
            channel.fetch_if_needed()
        else:
            super()._register_BRPOP(channel)
        if channel.has_messages:
            self.wake()

    def _answer(self) -> None:
        """Do what a thread, or the turn before, woke it for."""
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(64)
        # After the read: a byte sent in between would be read, and no thread would send another one.
        self._woken = False
        if self._hub is None:
            self._settle()
        handed = [channel.deliver_received() for channel in tuple(self._channels)]
        if not any(handed):
            raise Empty

    def _settle(self, *, early: bool = False) -> None:
        now = monotonic()
        for channel in tuple(self._channels):
            if early or self._hub is None or channel.settles_at <= now:
                channel.settle()
            else:
                # What was to be settled has been sent with a fetch; this came afterwards.
                self.settle_at(channel.settles_at)

    def _look(self) -> None:
        for channel in tuple(self._channels):
            channel.look()
