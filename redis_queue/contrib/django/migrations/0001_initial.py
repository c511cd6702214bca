"""The permissions of the dashboard."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


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
                "permissions": (
                    ("view_dashboard", "Can see the dashboard of delayed tasks"),
                    ("change_dashboard", "Can act in the dashboard of delayed tasks"),
                ),
            },
        )
    ]
