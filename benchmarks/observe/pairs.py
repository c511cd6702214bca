"""CPU of two workers that take turns: one reports, the other does not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from benchmarks.modes import FETCH, UNOBSERVED
from benchmarks.server import private_redis
from benchmarks.worker.backlog import Backlog
from benchmarks.worker.workers import worker

QUIET = 2.0
"""Seconds after the start of both workers before the first turn."""

WITHIN = 60.0
"""Maximum seconds of one turn."""


def cpu(pool: str, tasks: int, turns: int, tell: Callable[[str], None]) -> tuple[float, float]:
    """Return the CPU microseconds per task with and without reports, of *turns* turns of *tasks* tasks for each worker.

    The turns alternate, about one a second, so that whatever else slows the machine slows both alike.
    """
    spent = {FETCH: 0.0, UNOBSERVED: 0.0}
    with contextlib.ExitStack() as stack:
        urls = {mode: stack.enter_context(private_redis(tcp=True)) for mode in spent}
        backlogs = {mode: Backlog(url, tasks * (turns + 1)) for mode, url in urls.items()}
        for backlog in backlogs.values():
            stack.callback(backlog.close)
        workers = {mode: stack.enter_context(worker(url, mode, pool)) for mode, url in urls.items()}
        time.sleep(QUIET)
        # The first turn warms them up.
        for turn in range(turns + 1):
            for mode in (FETCH, UNOBSERVED) if turn % 2 else (UNOBSERVED, FETCH):
                before = workers[mode].thread_seconds()
                backlogs[mode].release_some(tasks, WITHIN)
                spent[mode] += (workers[mode].thread_seconds() - before) if turn else 0.0
        for backlog in backlogs.values():
            backlog.check(tasks * (turns + 1))
    observed, without = (1e6 * spent[mode] / (tasks * turns) for mode in (FETCH, UNOBSERVED))
    tell(f"{pool}: {observed:.1f} us each, without reports {without:.1f} us")
    return observed, without
