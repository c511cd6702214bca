"""Groups of failures that match a search: their number, over time too, and the release with which they began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redis_queue.basics.options import Conditions
from redis_queue.monitor.failures import MAX_GROUPS
from redis_queue.monitor.model import Failure, FailureGroup, GroupRow, ReleaseRow
from redis_queue.operate.access import Access
from redis_queue.operate.items import FailureList

MAX_LOOKED_AT: Final = 2000
"""Failures that are looked at, the latest ones first."""

HOURS: Final = 24
"""Hours whose failures are counted one by one."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group; its *row* counts the matching failures only. *hours* counts those of each of the last 24 hours.

    *release* is the newest one, if the group has had its first failure after the first report of it.
    """

    row: GroupRow
    hours: Sequence[int]
    release: str = ""


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Groups, the one with the last failure first.

    *looked* failures were looked at, and *is_all* says whether these were all: else older ones are not in the hours,
    and with conditions not in the counts.
    """

    groups: Sequence[GroupSummary]
    looked: int
    is_all: bool


def failure_groups(access: Access, conditions: Conditions) -> FailureGroups:
    """Return the groups of the failures that match, from up to :data:`MAX_LOOKED_AT` of them. Raises StoreError."""
    listing, now = FailureList(access, conditions), access.inspector.now()
    page = listing.page(None, MAX_LOOKED_AT, most=MAX_LOOKED_AT)
    found: dict[FailureGroup, list[Failure]] = {}
    for failure in page.items:
        found.setdefault(FailureGroup(failure.task, failure.exception), []).append(failure)
    known = {row.group: row for row in access.monitor.failures.groups()}
    if not conditions:
        rows = list(known.values())
    else:
        rows = [_row(group, failures, known.get(group)) for group, failures in found.items()]
    releases = access.monitor.releases()
    ages = {
        group: Counter(int((now - failure.failed_at).total_seconds() // 3600) for failure in failures)
        for group, failures in found.items()
    }
    none = Counter[int]()
    groups = [
        GroupSummary(row, [ages.get(row.group, none)[HOURS - 1 - hour] for hour in range(HOURS)], _new(row, releases))
        for row in sorted(rows, key=lambda row: row.last_at, reverse=True)[: MAX_GROUPS + 1]
    ]
    return FailureGroups(groups, page.looked, page.next is None)


def _row(group: FailureGroup, failures: Sequence[Failure], known: GroupRow | None) -> GroupRow:
    """Return the row of the failures that match; when the whole group began is known better."""
    first = known.first_at if known is not None else failures[-1].failed_at
    return GroupRow(group, len(failures), first, failures[0].failed_at, failures[0].id)


def _new(row: GroupRow, releases: Sequence[ReleaseRow]) -> str:
    """Return the newest release if *row* began with it; without an earlier release nobody knows."""
    newest = releases[0] if len(releases) > 1 else None
    return newest.release if newest is not None and row.first_at >= newest.first_at else ""
