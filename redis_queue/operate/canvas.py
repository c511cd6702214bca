"""Canvas: the tasks that one task has led to, as a tree with their states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from redis_queue.celery.message.next_steps import Link
from redis_queue.celery.results import TaskLink
from redis_queue.errors import ConfigurationError
from redis_queue.monitor.model import Run, RunningTask
from redis_queue.operate.access import Access
from redis_queue.operate.chain import steps_after, stops
from redis_queue.operate.items import task_of
from redis_queue.operate.queue_row import BROKEN
from redis_queue.operate.task_life import RESULT_STATES, WORDS, TaskLife
from redis_queue.store.chunks import CHUNK
from redis_queue.store.ids import is_id

MAX_NODES: Final = 200

MAX_LOOKS: Final = 50
"""Maximum number of entries that are looked up for the states of tasks."""

MAX_FAILED: Final = 10
"""Maximum number of failed tasks whose messages are read for the tasks that come after them."""

MAX_DEPTH: Final = 20
"""Levels of a tree; deeper tasks are shown at the last one."""


@dataclass(frozen=True, slots=True)
class Node:
    """A task of a canvas. *state* is "unknown" if no source tells it; *depth* is its level, from 0.

    *error* is that of its last run. *stopped*: it failed, and this chain or chord with it.
    """

    id: str
    state: str = "unknown"
    task: str = ""
    queue: str = ""
    parent: str = ""
    group: str = ""
    depth: int = 0
    is_current: bool = False
    error: str = ""
    stopped: Link | None = None


@dataclass(frozen=True, slots=True)
class Canvas:
    """The *nodes* of a tree, each after its parent; with *more* there are others."""

    nodes: tuple[Node, ...]
    more: bool = False

    @property
    def failed(self) -> list[Node]:
        """The other tasks that failed, those that stopped a chain or chord first."""
        found = [node for node in self.nodes if node.state == "failed" and not node.is_current]
        return sorted(found, key=lambda node: node.stopped is None)

    @property
    def groups(self) -> dict[str, Counter[str]]:
        """How many members of each group are known, by state."""
        found: dict[str, Counter[str]] = {}
        for node in self.nodes:
            if node.group:
                found.setdefault(node.group, Counter())[node.state] += 1
        return found


def canvas(access: Access, life: TaskLife) -> Canvas | None:
    """Return the tree of the tasks around a task, up to :data:`MAX_NODES`; None if it is alone.

    Sources are the kept runs, running tasks, the messages of failures, the result backend if it is Redis, and delayed
    tasks among those found. The members of a group that no task has sent are found among the 500 runs that ended next
    to this one.

    Raises StoreError.
    """
    root, parent, group = life.lineage
    root = root or life.id
    nodes = _Nodes()
    nodes.add(Node(life.id, life.state, life.task, life.queue, parent, group, is_current=True))
    runs, workers = access.monitor.runs, access.monitor.workers
    for run in runs.tree(root):
        nodes.add(_of_row(run, run.outcome, run.error))
    # A task that a chord has sent may not name the group, but the member that ended last is its parent.
    group = group or (nodes.found[parent].group if parent in nodes.found else "")
    # The members of a group that was sent outside a task have no common root.
    for run in runs.near(_time_of(life), CHUNK) if group else ():
        if run.group == group:
            nodes.add(_of_row(run, run.outcome, run.error))
    for task in [*workers.related(root), *(workers.related(group) if group else [])]:
        nodes.add(_of_row(task, "running"), replace_state=True)
    for id_ in (root, parent):
        if id_:
            nodes.add(Node(id_))
    _add_next(access, nodes, life)
    _add_results(access, nodes, group)
    _add_stored(access, nodes)
    if len(nodes.found) == 1:
        return None
    return Canvas(tuple(_in_order(nodes.found, root)), nodes.more)


class _Nodes:
    """The nodes found so far, by id."""

    def __init__(self) -> None:
        self.found: dict[str, Node] = {}
        self.more = False

    def add(self, node: Node, *, replace_state: bool = False) -> bool:
        """Add *node*, or what else it knows; return whether it is new."""
        known = self.found.get(node.id)
        if known is None:
            if len(self.found) >= MAX_NODES or not is_id(node.id):
                self.more = self.more or is_id(node.id)
                return False
            self.found[node.id] = node
            return True
        better = replace_state and not known.is_current
        self.found[node.id] = replace(
            known,
            state=node.state if better or known.state == "unknown" else known.state,
            task=known.task or node.task,
            queue=known.queue or node.queue,
            parent=known.parent or node.parent,
            group=known.group or node.group,
            error=known.error or node.error,
            stopped=known.stopped or node.stopped,
        )
        return False

    def unknown(self) -> list[str]:
        """Return the ids of tasks whose state is unknown."""
        return [node.id for node in self.found.values() if node.state == "unknown"]


def _of_row(row: Run | RunningTask, state: str, error: str = "") -> Node:
    return Node(row.id, state, row.task, row.queue, row.parent, row.group, error=error)


def _time_of(life: TaskLife) -> datetime:
    """Return when the members of its group may have ended."""
    if life.runs:
        return life.runs[0].started_at or life.runs[0].ended_at
    if life.running is not None:
        return life.running.since
    return life.at if life.stop is None else life.stop.failure.failed_at


def _add_next(access: Access, nodes: _Nodes, life: TaskLife) -> None:
    """Add the tasks that messages name: that of this task, and those of failed ones."""
    failed = [node.id for node in nodes.found.values() if node.state == "failed"][:MAX_FAILED]
    try:
        found = stops(access.monitor.failures, dict.fromkeys([life.stop.failure.id, *failed] if life.stop else failed))
    except BROKEN:
        # Failures that cannot be read must not hide the runs.
        found = []
    for stop in found:
        failure = stop.failure
        nodes.add(Node(failure.id, "failed", failure.task, failure.queue, error=failure.error, stopped=stop.link))
        for step, before in stop.unsent:
            nodes.add(Node(step.id, "not sent", step.task, parent=before, group=step.group))
    for step, before in steps_after(life.id, life.next or ()):
        nodes.add(Node(step.id, "comes next", step.task, parent=before, group=step.group))


def _add_results(access: Access, nodes: _Nodes, group: str) -> None:
    """Follow the children of results, level by level."""
    try:
        records = access.result_records
    except ConfigurationError:
        records = None
    if records is None:
        return
    if group:
        _add_links(nodes, records.group(group), group)
    waiting, read = list(nodes.found), set[str]()
    while waiting:
        found = records.tasks(waiting)
        read.update(waiting)
        for record in found.values():
            state = RESULT_STATES.get(record.state, record.state.lower())
            lineage = record.parent, record.group
            nodes.add(Node(record.id, state, record.task, record.queue, *lineage, error=record.error))
            _add_links(nodes, record.links)
        waiting = [id_ for id_ in nodes.found if id_ not in read]


def _add_links(nodes: _Nodes, links: Iterable[TaskLink], group: str = "") -> None:
    for link in links:
        nodes.add(Node(link.child, parent=link.parent, group=link.group or group))


def _add_stored(access: Access, nodes: _Nodes) -> None:
    unknown = nodes.unknown()[:MAX_LOOKS]
    if not unknown or access.catalog.find("delay", access.default_delay_queue) is None:
        return
    queue = access.delay_queue()
    for id_ in unknown:
        item = queue.look(id_, max_bytes=0)
        if item is not None:
            task = task_of(item)
            nodes.add(Node(id_, WORDS[item.state], task.task, task.queue))


def _in_order(found: dict[str, Node], root: str) -> list[Node]:
    """Return each node once, after its parent; those in a circle begin at the root, or at their first."""
    children: dict[str, list[str]] = {}
    for node in found.values():
        if node.parent in found and node.id not in (node.parent, root):
            children.setdefault(node.parent, []).append(node.id)
    below = {id_ for group in children.values() for id_ in group}
    starts = [*([root] if root in found else []), *(id_ for id_ in found if id_ not in below), *found]
    ordered: dict[str, Node] = {}
    for start in starts:
        waiting = [(start, 0)]
        while waiting:
            id_, depth = waiting.pop()
            if id_ not in ordered:
                ordered[id_] = replace(found[id_], depth=min(depth, MAX_DEPTH))
                waiting += [(child, depth + 1) for child in reversed(children.get(id_, []))]
    return list(ordered.values())
