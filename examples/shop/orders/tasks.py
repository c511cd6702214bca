"""Tasks of orders."""

from __future__ import annotations

from examples.shop.celery import app
from examples.shop.orders.models import Order


@app.task
def cancel_unpaid(number: int) -> None:
    """Cancel an order that is still open; no-op if it is not."""
    Order.objects.filter(pk=number, state="open").update(state="cancelled")
