"""Rows: messages and entries with the versions that a preview counted. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from redis_queue.catalog import AnyQueue, kind_of

GONE: Final = "gone"
"""Version of a message or entry that does not exist."""


class Row(NamedTuple):
    """A message or entry in one version; "" if the version is unknown."""

    queue: AnyQueue
    id: str
    version: str = ""


def with_versions(rows: Sequence[Row]) -> list[Row]:
    """Return *rows* with their current versions; GONE for those that no longer exist."""
    now = {_key(queue): queue.versions(versions) for queue, versions in by_queue(rows)}
    return [row._replace(version=now[_key(row.queue)].get(row.id, GONE)) for row in rows]


def by_queue(rows: Sequence[Row]) -> list[tuple[AnyQueue, dict[str, str]]]:
    """Return each queue of *rows* once, with the versions of its ids."""
    groups: dict[tuple[str, str], tuple[AnyQueue, dict[str, str]]] = {}
    for queue, id_, version in rows:
        groups.setdefault(_key(queue), (queue, {}))[1][id_] = version
    return list(groups.values())


def unchanged(queue: AnyQueue, versions: Mapping[str, str]) -> list[str]:
    """Return the ids of *versions* (version by id) whose version is still the same."""
    now = queue.versions(versions)
    return [id_ for id_, version in versions.items() if now.get(id_) == version]


def _key(queue: AnyQueue) -> tuple[str, str]:
    return kind_of(queue), queue.name
