"""Background: run calls in a thread so that the event loop of a worker never blocks."""

from __future__ import annotations

import pytest

from redis_queue.basics import waits
from redis_queue.basics.waits import Background
from tests.support.wait import wait_until


def test_calls_run_in_order_and_a_failure_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    beside = Background()
    for number in range(3):
        beside.run(lambda number=number: done.append(number // (number != 1)))
    wait_until(lambda: done == [0, 2], description="the other calls")
    assert "ZeroDivisionError" in caplog.text


def test_idle_thread_ends_and_a_later_call_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "IDLE", 0.01)
    beside = Background()
    for number in range(2):
        done: list[int] = []
        beside.run(lambda done=done, number=number: done.append(number))
        wait_until(lambda done=done: bool(done), description="the call")
        wait_until(lambda: not beside._running, description="the end of the thread")
