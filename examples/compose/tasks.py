"""The tasks of the shop; every app in this process has them."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task


@shared_task(name="shop.remind")  # type: ignore[untyped-decorator]
def remind(order: str) -> str:
    """Remind the customer of *order*."""
    return order


@shared_task(name="shop.print_label")  # type: ignore[untyped-decorator]
def print_label(order: str, seconds: float = 0.0) -> str:
    """Print the label of *order*; it takes *seconds*."""
    time.sleep(seconds)
    return order


@shared_task(bind=True, name="shop.ship", max_retries=3)  # type: ignore[untyped-decorator]
def ship(self: Any, order: str) -> str:
    """Ship *order*; the first attempt fails."""
    if not self.request.retries:
        raise self.retry(countdown=0.5)
    return order


@shared_task(name="shop.report")  # type: ignore[untyped-decorator]
def report(orders: list[str]) -> int:
    """Return the number of *orders*, the results of a chord."""
    return len(orders)
