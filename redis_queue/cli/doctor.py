"""``redis-queue doctor`` and ``incidents``: findings, advice and repairs; and what is wrong now."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

import click

from redis_queue.basics.options import counted
from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.actions import act
from redis_queue.cli.listing import Column, show_rows
from redis_queue.cli.output import FAILED, harmless, show_json, show_location, wants_json
from redis_queue.doctor import Finding
from redis_queue.doctor.finding import ORDER
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Plan, Result
from redis_queue.operate.actions.queues import One
from redis_queue.operate.diagnosis import examine, repair
from redis_queue.operate.incidents.registry import current

REPAIR: Final = Action(One("doctor"), "repair", "Repair", "repaired", repair)


@click.command(cls=StoreCommand)
@click.option("--fix", is_flag=True, help="Show repairs; with --yes, make them.")
@click.option("--yes", is_flag=True, help="With --fix: make the repairs.")
@click.option("--all", "everything", is_flag=True, help="Also show checks without a finding.")
@options.json_flag("Print one JSON object instead of a table.")
@with_access
def doctor(access: Access, *, fix: bool, yes: bool, everything: bool) -> None:
    """Check Redis and the keys of redis_queue; print problems and advice.

    It changes nothing, except with --fix --yes. Repairs lose no data.

    Exit code 0: no errors, maybe warnings. 1: errors, or Redis cannot be reached. 2: invalid arguments or settings.

    Example: redis-queue doctor
    """
    if yes and not fix:
        raise click.UsageError("--yes needs --fix")
    repairs = repair(access, dry_run=not yes) if fix else []
    made = [finding.check for finding in repairs if finding.severity == "ok"]
    if made:
        names = ", ".join(dict.fromkeys(made))
        plan = Plan("Repair", len(made), lambda: iter([Result(len(made))]), ["all queues"], names)
        act(access, REPAIR, plan)
    findings = examine(access, ask=True)
    if wants_json():
        shown: dict[str, Any] = {"findings": [asdict(finding) for finding in findings]}
        if fix:
            shown |= {"repairs": [asdict(finding) for finding in repairs], "dry_run": not yes}
        show_json(shown)
    else:
        if fix:
            _show_repairs(repairs, yes=yes)
        _show(findings, everything=everything)
        show_location(access.catalog)
    if any(finding.severity == "error" for finding in [*findings, *repairs]):
        sys.exit(FAILED)


@click.command(cls=StoreCommand)
@options.as_json
@with_access
def incidents(access: Access) -> None:
    """List what is wrong now, the most urgent first: since when, why, and what to do. It sends no broadcast.

    Exit code 0: no errors, maybe warnings. 1: errors, or Redis cannot be reached.

    Example: redis-queue -A shop incidents
    """
    found, now = current(access), access.inspector.now()
    columns: dict[str, Column] = {
        "": "severity",
        "kind": "kind",
        "cause": "cause",
        "since": lambda row: "-" if row["since"] is None else f"{span_text(now - row['since'], parts=1)} ago",
        "hits": "hits",
        "what to do": "advice",
    }
    rows = [asdict(incident) for incident in found]
    show_rows(
        access,
        {"at": now, "incidents": rows},
        columns,
        keep=("", "kind"),
        below=("cause", "what to do"),
        nothing="no incidents",
    )
    if any(incident.severity == "error" for incident in found):
        sys.exit(FAILED)


def _show_repairs(repairs: list[Finding], *, yes: bool) -> None:
    for finding in repairs:
        click.echo(f"{finding.check}: {harmless(finding.found)}")
    done = "repaired" if yes else "would be repaired; nothing was changed: --fix --yes makes the repairs"
    click.echo(f"{len(repairs):,} {done}\n")


def _show(findings: list[Finding], *, everything: bool) -> None:
    shown = [finding for finding in findings if everything or not finding.silent]
    if shown:
        _table(sorted(shown, key=lambda finding: ORDER[finding.severity]))
    if not everything:
        click.echo(f"{counted(sum(finding.silent for finding in findings), 'check')} ok: --all shows them")
    errors, warnings = (sum(finding.severity == kind for finding in findings) for kind in ("error", "warning"))
    click.echo(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")


_STYLES: Final = {"error": "bold red", "warning": "yellow", "ok": "green"}
NARROWEST: Final = 80


def _table(findings: Iterable[Finding]) -> None:
    rows = [[harmless(text) for text in (row.severity, row.check, row.found, row.advice)] for row in findings]
    try:
        from rich.console import Console  # noqa: PLC0415 - celery's command line goes without it
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        for row in rows:
            click.echo("  ".join(part for part in row if part))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "check", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for severity, *texts in rows:
        # As Text, stored names are not parsed as markup.
        table.add_row(Text(severity, style=_STYLES[severity]), *map(Text, texts))
    width = max(NARROWEST, shutil.get_terminal_size().columns)
    Console(width=width, highlight=False).print(table)
