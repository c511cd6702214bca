"""The table of the outbox."""

from __future__ import annotations

from typing import Any

from django.db import models

from redis_queue.contrib.django.outbox.fields import Document, Moment


class Call(models.Model):
    """A task call that is committed and not yet in the DelayQueue."""

    task_id = models.CharField(max_length=255, unique=True)
    payload = Document()
    due_at = Moment()
    stored_at = models.DateTimeField(auto_now_add=True)
    failures = models.PositiveIntegerField(default=0)
    error = models.TextField(blank=True, default="")

    class Meta:
        """Taken in the order in which they were written."""

        ordering = ("id",)

    def __str__(self) -> str:
        payload: Any = self.payload
        return f"{payload.get('task', '?')} {self.task_id}"
