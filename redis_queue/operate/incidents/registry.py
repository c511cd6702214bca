"""The rules by which incidents are found, and the list of incidents that all surfaces show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from redis_queue.doctor.finding import Finding
from redis_queue.monitor.rows import MAX_TEXT
from redis_queue.operate.access import Access
from redis_queue.operate.incidents.queues import (
    dead_letters,
    late_entries,
    slow_queues,
    stopped_flows,
    stopped_keys,
    stuck_queues,
    unread_flows,
    unread_queues,
)
from redis_queue.operate.incidents.schedules import (
    failed_schedules,
    missed_schedules,
    refused_schedules,
    undispatched_schedules,
    unread_schedules,
    unsent_schedules,
)
from redis_queue.operate.incidents.situation import LIST_OF, Incident, Rule, Severity, Situation, look
from redis_queue.operate.incidents.work import broken_workers, failing_tasks, retry_storms, slow_tasks

MAX_OF_KIND: Final = 20
"""Maximum number of incidents of one kind that are listed one by one."""

MAX_CAUSE: Final = 1000
"""Maximum characters of a cause, and of an advice: other programs may have written names of any length."""


def pressure(now: Situation) -> Iterator[Incident]:
    """Redis has memory and replicas, and evicts nothing."""
    for finding in now.pressure:
        severity: Severity = "error" if finding.severity == "error" else "warning"
        yield Incident(finding.check, severity, finding.found, finding.advice, "doctor")


def unreadable(now: Situation) -> Iterator[Incident]:
    """All parts of the fleet can be read."""
    for what, why in now.unread.items():
        advice = "run redis-queue doctor, which names keys of other programs and missing permissions"
        yield Incident(what, "warning", f"{what} cannot be read: {why}", advice, "doctor")


RULES: Final[Mapping[str, Rule]] = {
    "stuck queues": stuck_queues,
    "unread queues": unread_queues,
    "flow workers": unread_flows,
    "workers": broken_workers,
    "servers": pressure,
    "late entries": late_entries,
    "schedule dispatchers": undispatched_schedules,
    "unsent schedules": unsent_schedules,
    "refused schedules": refused_schedules,
    "failing tasks": failing_tasks,
    "missed schedules": missed_schedules,
    "failed schedules": failed_schedules,
    "unread schedules": unread_schedules,
    "slow queues": slow_queues,
    "retry storms": retry_storms,
    "slow tasks": slow_tasks,
    "flow stops": stopped_flows,
    "key stops": stopped_keys,
    "dead letters": dead_letters,
    "unreadable": unreadable,
}
"""The rule of each kind of incident, the most urgent first; their docstrings say what holds without incidents."""

OF_DOCTOR: Final = (
    "unread queues",
    "flow workers",
    "flow stops",
    "key stops",
    "schedule dispatchers",
    "unsent schedules",
    "refused schedules",
    "missed schedules",
    "failed schedules",
    "unread schedules",
    "failing tasks",
    "slow tasks",
    "unreadable",
)
"""The kinds that are also checks of the doctor, which looks at the others itself, and at the rest of a server."""


def current(access: Access) -> list[Incident]:
    """Read the situation, and return its incidents. Raises StoreUnavailableError."""
    return incidents(look(access))


def incidents(now: Situation) -> list[Incident]:
    """Return the incidents: errors first, then by kind in the order of :data:`RULES`, those with most hits first.

    At most :data:`MAX_OF_KIND` of each kind, so that one cause with many victims hides no other; the last one then
    counts the rest.
    """
    found = [incident for kind, rule in RULES.items() for incident in _of_kind(kind, rule(now))]
    order = {kind: number for number, kind in enumerate(RULES)}
    return sorted(found, key=lambda one: (one.severity != "error", order[one.kind]))


def _of_kind(kind: str, found: Iterable[Incident]) -> list[Incident]:
    ranked = sorted(found, key=lambda one: (one.severity != "error", -one.hits, one.subject))
    shown, rest = ranked[:MAX_OF_KIND], ranked[MAX_OF_KIND:]
    if rest:
        hits = sum(one.hits for one in rest)
        path = rest[0].page.partition("?")[0]
        page = LIST_OF.get(path, path)
        shown.append(Incident("(other)", rest[0].severity, f"{len(rest):,} more {kind}", "as above", page, hits=hits))
    return [_short(replace(one, kind=kind)) for one in shown]


def _short(one: Incident) -> Incident:
    return replace(one, subject=one.subject[:MAX_TEXT], cause=one.cause[:MAX_CAUSE], advice=one.advice[:MAX_CAUSE])


def findings(now: Situation) -> Iterator[Finding]:
    """Yield the incidents of :data:`OF_DOCTOR` as findings; an "ok" finding for a kind without any, if all was read."""
    known = incidents(now)
    for kind in OF_DOCTOR:
        mine = [incident.finding for incident in known if incident.kind == kind]
        yield from mine
        if not mine and not now.unread:
            yield Finding(kind, "ok", (RULES[kind].__doc__ or kind).rstrip("."))
