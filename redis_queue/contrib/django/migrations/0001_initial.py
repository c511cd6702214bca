"""The permissions of the dashboard."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from redis_queue.contrib.django.models import Dashboard


class Migration(migrations.Migration):
    """Add the permissions; creates no table."""

    initial = True

    operations: ClassVar = [
        migrations.CreateModel(
            name="Dashboard",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))
            ],
            options={
                "managed": False,
                "default_permissions": (),
                # Read from the model, so that each `migrate` adds the permissions of new verbs without a migration.
                "permissions": Dashboard._meta.permissions,
            },
        )
    ]
