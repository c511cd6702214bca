"""No table: only the permissions of the dashboard."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    """Who may see the dashboard, and who may act in it."""

    class Meta:
        """Permissions without a table."""

        managed = False
        default_permissions = ()
        permissions = (
            ("view_dashboard", "Can see the dashboard of delayed tasks"),
            ("change_dashboard", "Can act in the dashboard of delayed tasks"),
        )
