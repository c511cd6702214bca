"""Permissions of the dashboard, without a table."""

from __future__ import annotations

from typing import Any

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


class Schedule(models.Model):
    """A schedule in the store, for the admin: ``add_schedule`` and its kin are its permissions. It has no table."""

    name = models.CharField(max_length=255, primary_key=True)
    #: The :class:`redis_queue.operate.schedules.ScheduleRow` that was read.
    row: Any = None

    class Meta:
        """Permissions without a table."""

        managed = False
        verbose_name = "schedule"

    def __str__(self) -> str:
        return str(self.name)

    @classmethod
    def of(cls, row: Any) -> Schedule:
        """Return the model of *row*."""
        found = cls(name=row.name)
        found.row = row
        found._state.adding = False
        return found
