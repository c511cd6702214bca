"""Permissions of the dashboard for the verbs of flows."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """Add the permissions; changes no table."""

    dependencies: ClassVar = [("redis_queue", "0002_verbs")]

    operations: ClassVar = [
        migrations.AlterModelOptions(
            name="dashboard",
            options={
                "managed": False,
                "default_permissions": (),
                "permissions": (
                    ("view_dashboard", "Can see the dashboard of delayed tasks"),
                    ("change_dashboard", "Can act in the dashboard of delayed tasks"),
                    ("cancel_dashboard", "Can act in the dashboard of delayed tasks: cancel"),
                    ("reschedule_dashboard", "Can act in the dashboard of delayed tasks: reschedule"),
                    ("run_now_dashboard", "Can act in the dashboard of delayed tasks: run-now"),
                    ("redrive_dashboard", "Can act in the dashboard of delayed tasks: redrive"),
                    ("delete_dashboard", "Can act in the dashboard of delayed tasks: delete"),
                    ("retry_dashboard", "Can act in the dashboard of delayed tasks: retry"),
                    ("move_dashboard", "Can act in the dashboard of delayed tasks: move"),
                    ("purge_dashboard", "Can act in the dashboard of delayed tasks: purge"),
                    ("pause_dashboard", "Can act in the dashboard of delayed tasks: pause"),
                    ("resume_dashboard", "Can act in the dashboard of delayed tasks: resume"),
                    ("putback_dashboard", "Can act in the dashboard of delayed tasks: putback"),
                    ("flow_pause_dashboard", "Can act in the dashboard of delayed tasks: flow-pause"),
                    ("flow_resume_dashboard", "Can act in the dashboard of delayed tasks: flow-resume"),
                    ("flow_set_dashboard", "Can act in the dashboard of delayed tasks: flow-set"),
                    ("flow_reset_dashboard", "Can act in the dashboard of delayed tasks: flow-reset"),
                    ("terminate_dashboard", "Can act in the dashboard of delayed tasks: terminate"),
                    ("shutdown_dashboard", "Can act in the dashboard of delayed tasks: shutdown"),
                    ("resize_dashboard", "Can act in the dashboard of delayed tasks: resize"),
                ),
            },
        )
    ]
