"""A task that keeps a worker busy, for `celery worker --include`."""

from __future__ import annotations

import time

from celery import shared_task


@shared_task(name="tests.work", ignore_result=True)  # type: ignore[untyped-decorator]
def work(seconds: float) -> None:
    time.sleep(seconds)
