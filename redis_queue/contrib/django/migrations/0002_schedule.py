"""The permissions of the schedules in the admin."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the permissions; creates no table."""

    dependencies: ClassVar = [("redis_queue", "0001_initial")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="Schedule",
            fields=[("name", models.CharField(max_length=255, primary_key=True, serialize=False))],
            options={"verbose_name": "schedule", "managed": False},
        )
    ]
