"""The table of the outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from redis_queue.contrib.django.outbox.models import Document, Moment, Stamp


class Migration(migrations.Migration):
    """Create the table."""

    initial = True

    operations: ClassVar = [
        migrations.CreateModel(
            name="Call",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.CharField(max_length=255, unique=True)),
                ("task", models.TextField()),
                ("payload", Document()),
                ("due_at", Moment(null=True)),
                ("countdown", models.BigIntegerField(null=True)),
                ("stored_at", Stamp(editable=False)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("set_aside", models.BooleanField(default=False)),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={"ordering": ("id",)},
        )
    ]
