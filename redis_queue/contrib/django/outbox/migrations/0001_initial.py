"""The table of the outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from redis_queue.contrib.django.outbox.fields import Document, Moment


class Migration(migrations.Migration):
    """Makes it."""

    initial = True

    operations: ClassVar = [
        migrations.CreateModel(
            name="Call",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.CharField(max_length=255, unique=True)),
                ("payload", Document()),
                ("due_at", Moment()),
                ("stored_at", models.DateTimeField(auto_now_add=True)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={"ordering": ("id",)},
        )
    ]
