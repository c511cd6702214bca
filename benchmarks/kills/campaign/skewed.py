"""``python -m benchmarks.kills.campaign.skewed``: be ``celery`` with a `time.sleep` that works under libfaketime.

Since Python 3.11 it calls clock_nanosleep with a time of the monotonic clock, which libfaketime changes to an invalid
one.
"""

from __future__ import annotations

import runpy
import select
import time


def sleep(seconds: float) -> None:
    """Wait."""
    select.select([], [], [], seconds)


if __name__ == "__main__":
    vars(time)["sleep"] = sleep
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
