"""The reference application as an operator changes it: shorter intervals, and perhaps no beat.

Configured by environment variables: PUTBACK_EVERY in seconds, and SCHEDULES: "1" if workers send ``beat_schedule``.
"""

from __future__ import annotations

import os

from tasks import app

__all__ = ["app"]

app.conf.beat_schedule["redis-queue-putback"]["schedule"] = float(os.environ["PUTBACK_EVERY"])
app.conf.redis_queue_schedules = os.environ.get("SCHEDULES") == "1"
