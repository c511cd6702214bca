"""The model of an order."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order: open until it is paid or cancelled."""

    item = models.CharField(max_length=100)
    state = models.CharField(max_length=10, default="open")

    @property
    def deadline(self) -> str:
        """The id of the task that cancels this order."""
        return f"cancel-order-{self.pk}"

    def __str__(self) -> str:
        return f"{self.pk} {self.item} {self.state}"
