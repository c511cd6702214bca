"""Pauses between attempts grow, are randomized and are limited; calls in the background never block an event loop."""

import itertools
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_queue.basics import waits
from redis_queue.basics.waits import RETRY_CAP, Background, Backoff, StopEvent, retry_delay
from tests.support.wait import wait_until

relaxed = settings(deadline=None)


@relaxed
@given(st.integers(1, 2000), st.floats(0.001, 1), st.floats(1, 100))
def test_each_pause_lies_in_the_upper_half_of_its_step(failures: int, first: float, cap: float) -> None:
    backoff = Backoff(first=first, cap=cap)
    pauses = [backoff.next() for _ in range(failures)]
    for number, pause in enumerate(pauses):
        longest = min(cap, first * 2.0 ** min(number, 30))
        assert longest / 2 <= pause <= longest


def test_default_pauses_go_from_50_ms_to_5_s() -> None:
    backoff = Backoff()
    assert 0.025 <= backoff.next() <= 0.05
    pauses = [backoff.next() for _ in range(5000)]
    assert min(pauses[10:]) >= 2.5
    assert max(pauses) <= 5


def test_reset_restarts_the_pauses() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.05


def test_pauses_are_randomized() -> None:
    assert len({Backoff().next() for _ in range(100)}) > 90
    assert len({retry_delay(5) for _ in range(100)}) > 90


@relaxed
@given(st.integers(0, 1_000_000))
def test_retry_delay_doubles_and_is_randomized(deliveries: int) -> None:
    longest = min(RETRY_CAP, 2.0 ** min(deliveries - 1, 30))
    assert longest * 0.75 <= retry_delay(deliveries) <= longest


def test_retries_take_1_2_4_up_to_300_seconds() -> None:
    tops = [max(retry_delay(deliveries) for _ in range(300)) for deliveries in range(1, 12)]
    for top, expected in zip(
        tops, itertools.chain([1, 2, 4, 8, 16, 32, 64, 128, 256], itertools.repeat(300)), strict=False
    ):
        assert expected * 0.9 < top <= expected


# StopEvent: an event that signal handlers can set.

INTERRUPTED = """
import random, signal, time
from redis_queue.basics.waits import StopEvent

signal.signal(signal.SIGALRM, lambda *_: event.set())
end = time.monotonic() + 5
for _ in range(5000):
    event = StopEvent()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0003))
    while not event.wait(0.000001):
        pass
    if time.monotonic() > end:
        break
print("ended")
"""


def test_a_signal_handler_may_set_it_at_any_moment_of_a_wait() -> None:
    # With threading.Event, this loop hangs within a few hundred rounds.
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ended\n"


def test_it_wakes_every_waiting_thread() -> None:
    event = StopEvent()
    threads = [threading.Thread(target=event.wait, args=(60,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(10)
    assert [thread.is_alive() for thread in threads] == [False] * 3
    assert event.is_set()
    assert event.wait(60)


def test_a_wait_ends_after_its_timeout() -> None:
    event = StopEvent()
    assert not event.wait(0.001)
    assert not event.is_set()


def test_background_calls_run_in_order_and_a_failure_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    beside = Background()
    for number in range(3):
        beside.run(lambda number=number: done.append(number // (number != 1)))
    wait_until(lambda: done == [0, 2], description="the other calls")
    assert "ZeroDivisionError" in caplog.text


def test_idle_background_thread_ends_and_a_later_call_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "IDLE", 0.01)
    beside = Background()
    for number in range(2):
        done: list[int] = []
        beside.run(lambda done=done, number=number: done.append(number))
        wait_until(lambda done=done: bool(done), description="the call")
        wait_until(lambda: not beside._running, description="the end of the thread")
