"""FetchingPoller on an event loop: when channels settle."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_queue.celery.consume.poller import FetchingPoller


class Loop:
    """An event loop whose timers the test fires."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[..., Any], tuple[Any, ...]]] = []

    def call_later(self, delay: float, function: Callable[..., Any], *args: Any) -> None:
        """Add a timer."""
        self.timers.append((delay, function, args))

    def fire(self) -> None:
        """Fire all timers, whatever their time."""
        timers, self.timers = self.timers, []
        for _, function, args in timers:
            function(*args)


class Channel:
    """A channel that has something to settle at a time."""

    def __init__(self, settles_at: float) -> None:
        self.settles_at = settles_at
        self.settled = 0

    def settle(self) -> None:
        """Settle."""
        self.settled += 1
        self.settles_at = math.inf


@pytest.fixture
def loop() -> Loop:
    """A loop."""
    return Loop()


@pytest.fixture
def poller(loop: Loop) -> Iterator[FetchingPoller]:
    """A poller on the loop."""
    made = FetchingPoller()
    made.use_hub(loop)
    yield made
    made.close()


def add(poller: FetchingPoller, settles_at: float) -> Channel:
    """Add a channel."""
    channel = Channel(settles_at)
    poller._channels.add(channel)
    return channel


def test_a_timer_settles_what_is_due(poller: FetchingPoller, loop: Loop) -> None:
    now = time.monotonic()
    due, other = add(poller, now), add(poller, math.inf)
    poller.settle_at(now + 0.001)
    loop.fire()
    assert (due.settled, other.settled) == (1, 0)
    assert loop.timers == []


def test_a_timer_leaves_what_came_after_the_rest_was_settled(poller: FetchingPoller, loop: Loop) -> None:
    now = time.monotonic()
    later = add(poller, now + 60)
    poller.settle_at(now + 0.001)
    loop.fire()
    assert later.settled == 0
    [(delay, _, _)] = loop.timers
    assert 50 < delay <= 60


def test_a_full_batch_is_settled_at_once(poller: FetchingPoller) -> None:
    full = add(poller, time.monotonic() + 60)
    poller.settle_at(0.0)
    assert full.settled == 1
