"""HubGuard: the event loop of a worker, for a connection whose errors must not end the consumer of the worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from redis_queue.celery.consume.gate.channel import ERRORS


class HubGuard:
    """Stands for *hub* towards a transport of kombu. *on_error* gets the errors of the store that callbacks raise.

    While paused, no callback is called.
    """

    def __init__(self, hub: Any, on_error: Callable[[Exception], None]) -> None:
        self._hub = hub
        self._on_error = on_error
        self._readers: dict[int, Callable[..., Any]] = {}
        self._ticks: list[Callable[[], Any]] = []
        self._timers: list[Any] = []
        self._runs = True

    @property
    def poller(self) -> Any:
        """The poller of the event loop."""
        return self._hub.poller

    @property
    def on_tick(self) -> HubGuard:
        """What is called in each turn of the event loop, as a set with only *add*."""
        return self

    def add(self, callback: Callable[[], Any]) -> None:
        """Call *callback* in each turn."""
        guarded = self._guarded(callback)
        self._ticks.append(guarded)
        self._hub.on_tick.add(guarded)

    def add_reader(self, fd: int, callback: Callable[..., Any], *args: Any) -> None:
        """Call *callback* with *args* while *fd* is readable."""
        self._readers[fd] = guarded = self._guarded(callback)
        self._hub.add_reader(fd, guarded, *args)

    def remove_reader(self, fd: int) -> None:
        """Watch *fd* no longer."""
        if self._readers.pop(fd, None) is not None:
            self._hub.remove_reader(fd)

    remove = remove_reader

    def call_repeatedly(self, seconds: float, callback: Callable[..., Any], *args: Any) -> Any:
        """Call *callback* every few *seconds*; return what cancels it."""
        timer = self._hub.call_repeatedly(seconds, self._guarded(callback), *args)
        self._timers.append(timer)
        return timer

    def call_later(self, seconds: float, callback: Callable[..., Any], *args: Any) -> Any:
        """Call *callback* after *seconds*."""
        return self._hub.call_later(seconds, self._guarded(callback), *args)

    def pause(self) -> None:
        """Call nothing until :meth:`go_on`, and watch nothing: the transport adds its readers again."""
        self._runs = False
        for fd, guarded in self._readers.items():
            # The number of a closed socket may belong to another one by now.
            if self._hub.readers.get(fd, (None,))[0] is guarded:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self._hub.remove_reader(fd)
        self._readers.clear()

    def go_on(self) -> None:
        """Call back again."""
        self._runs = True

    def close(self) -> None:
        """Call nothing any more."""
        self.pause()
        for callback in self._ticks:
            self._hub.on_tick.discard(callback)
        for timer in self._timers:
            timer.cancel()

    def _guarded(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if not self._runs:
                return None
            try:
                return callback(*args)
            except ERRORS as error:
                return self._on_error(error)

        return run
