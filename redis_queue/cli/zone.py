"""Time zone of the output: the local one, or UTC with ``--utc``."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

import click

_UTC: Final = "redis_queue.utc"


def _keep(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[_UTC] = value


option: Final = click.option(
    "--utc", is_flag=True, expose_value=False, callback=_keep, help="Show times in UTC, not in the local time zone."
)


def in_zone(at: datetime) -> datetime:
    """Return *at* in the time zone of the output."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and ctx.meta.get(_UTC):
        return at.astimezone(timezone.utc)
    try:
        return at.astimezone()
    except (OverflowError, OSError, ValueError):
        # At the end of the calendar; on some systems earlier.
        return at.astimezone(timezone.utc)


def moment(at: datetime | None) -> str:
    """Return a time point to the second."""
    return "-" if at is None else in_zone(at).strftime("%Y-%m-%d %H:%M:%S")


def name(at: datetime) -> str:
    """Return the name of the zone at that time: ``CET``, ``CEST``, ``UTC``."""
    return in_zone(at).tzname() or ""
