"""The table of the outbox."""

from __future__ import annotations

from django.db import models

from redis_queue.contrib.django.outbox.fields import Document, Moment, Stamp


class Call(models.Model):
    """A task call that is committed but not yet in the DelayQueue.

    *failures* counts how often Redis refused this call while accepting others. A call with *set_aside* is invalid and
    is not relayed; *error* says why.
    """

    task_id = models.CharField(max_length=255, unique=True)
    task = models.TextField()
    payload = Document()
    due_at = Moment()
    stored_at = Stamp(editable=False)
    failures = models.PositiveIntegerField(default=0)
    set_aside = models.BooleanField(default=False)
    error = models.TextField(blank=True, default="")

    class Meta:
        """Relayed in the order of writing."""

        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.task} {self.task_id}"
