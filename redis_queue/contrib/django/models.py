"""Permissions of the dashboard, without a table."""

from __future__ import annotations

from django.db import models

from redis_queue.operate.actions.registry import PERMISSIONS


def codename(verb: str) -> str:
    """Return the name of the permission for *verb*, such as "run_now_dashboard"."""
    return f"{verb.replace('-', '_')}_dashboard"


class Dashboard(models.Model):
    """Permissions to see the dashboard and to act in it."""

    class Meta:
        """Permissions without a table."""

        managed = False
        default_permissions = ()
        permissions = (
            ("view_dashboard", "Can see the dashboard of delayed tasks"),
            ("change_dashboard", "Can act in the dashboard of delayed tasks"),
            *((codename(verb), f"Can act in the dashboard of delayed tasks: {verb}") for verb in PERMISSIONS),
        )
