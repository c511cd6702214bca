"""Permission of the dashboard to free keys of unique tasks."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """Add the permission; changes no table."""

    dependencies: ClassVar = [("redis_queue", "0003_flow_verbs")]

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
                    ("unique_release_dashboard", "Can act in the dashboard of delayed tasks: unique-release"),
                    ("terminate_dashboard", "Can act in the dashboard of delayed tasks: terminate"),
                    ("shutdown_dashboard", "Can act in the dashboard of delayed tasks: shutdown"),
                    ("resize_dashboard", "Can act in the dashboard of delayed tasks: resize"),
                ),
            },
        )
    ]
