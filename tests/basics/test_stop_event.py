"""StopEvent: an event that signal handlers can set."""

from __future__ import annotations

import subprocess
import sys
import threading

from redis_queue.basics.waits import StopEvent

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
