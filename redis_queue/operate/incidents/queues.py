"""Incidents of queues: stuck, unread or slow ones, late entries, stopped flows, dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from datetime import timedelta
from shlex import quote
from typing import Final

from redis_queue.admission.flows import OF_QUEUE
from redis_queue.admission.rules import FlowState, KeyState
from redis_queue.basics.options import MAX_NAMES, counted, nearest, some_of
from redis_queue.basics.times import span_text
from redis_queue.monitor.report import OTHER
from redis_queue.operate.incidents.situation import LONG, Incident, Situation, grouped, page_of, tasks_text, waits_text
from redis_queue.operate.items import Letter
from redis_queue.operate.liveness import HEALTHY, WorkerState
from redis_queue.operate.queue_row import CeleryQueueRow

WAITS: Final = 60.0
"""Seconds for which a message has waited before its queue is an incident."""

TOO_LONG: Final = 300.0
"""The same for a queue whose tasks end, and whose workers are not all busy."""

ENDED_MINUTES: Final = 2
"""Minutes, the current one included, in which no task of a stuck queue has ended."""

SIMILAR: Final = 0.7
"""Minimum similarity of a consumed queue that the advice names."""

NAMED: Final = 3
"""Maximum number of workers that a cause names."""


def stuck_queues(now: Situation) -> Iterator[Incident]:
    """Tasks end in every queue that workers read and in which messages wait."""
    for row, workers in _read_queues(now):
        waits, count = _wait_of(row, now, workers), (row.ready or 0) + now.held[row.name]
        if waits < WAITS or _moves(now, row, workers):
            continue
        what = f"{waits_text(count)} for up to {span_text(waits, parts=1)}, and none ends"
        yield Incident(
            row.name,
            "error",
            f"Celery queue {row.name}: {what}: {_holders(now, workers)}",
            "terminate the tasks that hang, or restart these workers: redis-queue running",
            page_of("celery-queue", name=row.name),
            now.at - timedelta(seconds=waits),
            count,
        )


def similar(queue: str, consumed: Iterable[str], among: Sized) -> tuple[str | None, str]:
    """Return a consumed queue with a similar name and a hint at it; None and "" if *queue* is *among* too many."""
    near = nearest(queue, consumed, similarity=SIMILAR) if len(among) <= MAX_NAMES else []
    return (near[0], f"; workers consume {near[0]}, which has a similar name") if near else (None, "")


def unread_queues(now: Situation) -> Iterator[Incident]:
    """Every Celery queue with messages is consumed."""
    asked, reading = now.read_elsewhere is not None, {row.name for row in now.celery_queues if row.consumers}
    consumed, who = reading | (now.read_elsewhere or set()), "" if asked else " that reports"
    # Messages that wait for a place in a flow are not in the lists, and have a check of their own.
    rows = (row for row in now.celery_queues if row.is_unconsumed and row.listed and row.name not in consumed)
    unread = [row for row in rows if f"{OF_QUEUE}{row.name}" not in now.stops]
    for row in unread:
        # Workers without the extension do not report: while they take messages, none waits for long.
        if not asked and row.oldest_age is not None and row.oldest_age < WAITS:
            continue
        (near, hint), name = similar(row.name, consumed, unread), quote(row.name)
        yield Incident(
            row.name,
            # Of messages of other producers nobody knows whether they wait for long.
            "error" if asked or row.oldest_age is not None else "warning",
            f"Celery queue {row.name}: {waits_text(row.listed)}, and no worker{who} consumes it{hint}",
            f"start a worker with -Q {name}, or move them: redis-queue -A APP celery-queue {name} move "
            f"--all --to {quote(near) if near else 'QUEUE'}",
            page_of("celery-queue", name=row.name),
            None if row.oldest_age is None else now.at - timedelta(seconds=row.oldest_age),
            row.listed,
        )


def unread_flows(now: Situation) -> Iterator[Incident]:
    """A worker with redis_queue consumes every queue in which tasks wait for a place."""
    read = {name for name, workers in now.readers.items() if any(one.row.keeper is not None for one in workers)}
    for flow, count in now.backlog.items():
        queue = flow.removeprefix(OF_QUEUE)
        if not count or not flow.startswith(OF_QUEUE) or queue in read or flow in now.stops:
            continue
        yield Incident(
            queue,
            "error",
            f"Celery queue {queue}: {waits_text(count, 'task')} for a place in a flow, and no worker that reports "
            "leases consumes it: other workers do not see them",
            f"start a worker of an app with DurableTasks(app) and -Q {quote(queue)}",
            page_of("flow", name=flow),
            hits=count,
        )


def slow_queues(now: Situation) -> Iterator[Incident]:
    """Messages wait in no queue for long."""
    for row, workers in _read_queues(now):
        waits = _oldest(row, now) or 0.0
        is_full = _is_full(workers)
        if not row.ready or waits < (WAITS if is_full else TOO_LONG) or not _moves(now, row, workers):
            continue
        rates = {"end": row.executed_per_minute, "come": row.put_per_minute}
        told = "".join(f"{rate:,.0f} tasks {what} per minute; " for what, rate in rates.items() if rate is not None)
        yield Incident(
            row.name,
            "warning",
            f"Celery queue {row.name}: the oldest of {counted(row.ready, 'message')} has waited for "
            f"{span_text(waits, parts=1)}; {told}{_holders(now, workers)}",
            f"start more workers with -Q {quote(row.name)}, or look at its slowest tasks: redis-queue history",
            page_of("celery-queue", name=row.name),
            now.at - timedelta(seconds=waits),
            row.ready or 0,
        )


def late_entries(now: Situation) -> Iterator[Incident]:
    """Entries are sent when they are due."""
    for row in now.queues:
        dispatchers = now.dispatchers.get(row.name) if row.kind == "delay" else None
        late = 0.0 if row.oldest_at is None else now.age(row.oldest_at)
        if dispatchers is None or not (late >= LONG or (dispatchers == 0 and row.ready + row.delayed)):
            continue
        first = f", the first one for {span_text(late, parts=1)}" if row.ready else ""
        total = counted(row.ready + row.delayed, "entry", "entries")
        what = f"dispatchers run: {dispatchers:,}" if dispatchers else "nobody dispatches"
        yield Incident(
            row.name,
            "warning" if dispatchers else "error",
            f"delay {row.name}: {row.ready:,} of {total} due{first}, and {what}",
            "look at the errors of the dispatchers on the page of workers, and whether the broker takes messages"
            if dispatchers
            else "start a worker whose app has DurableTasks(app), or run celery -A app redis-queue dispatch",
            page_of("queue", kind="delay", name=row.name),
            row.oldest_at if row.ready else None,
            row.ready,
        )


def stopped_flows(now: Situation) -> Iterator[Incident]:
    """No flow with waiting tasks is paused, or has a limit of 0."""
    rows_of = grouped((f"{OF_QUEUE}{row.name}", row) for row in now.celery_queues)
    for state in now.stops.values():
        # A pause keeps back all messages of a queue.
        rows = rows_of.get(state.name, []) if state.paused else []
        waiting = state.waiting + sum(row.listed for row in rows)
        if not waiting:
            continue
        line = now.pauses.get(state.name)
        ages = [now.at - timedelta(seconds=row.oldest_age) for row in rows if row.oldest_age is not None]
        who = f"; set by {line.user} {span_text(now.age(line.at), parts=1)} ago" if line else ""
        yield Incident(
            state.name,
            "warning",
            f"flow {state.name} {_stop(state)}, and {waits_text(waiting, 'task')}{who}",
            _advice(state),
            page_of("flow", name=state.name),
            line.at if line else min(ages, default=None),
            waiting,
        )


def stopped_keys(now: Situation) -> Iterator[Incident]:
    """No key of a flow with waiting tasks is paused, or has a limit of 0."""
    for flow, state in now.stopped_keys:
        if state.waiting:
            verb = "resume" if state.paused else "reset"
            yield Incident(
                f"{state.key} of {flow}",
                "warning",
                f"key {state.key} of flow {flow} {_stop(state)}, and {waits_text(state.waiting, 'task')}",
                f"if the reason is gone: redis-queue flow {verb} {quote(flow)} --key {quote(state.key)}",
                page_of("flow", name=flow),
                hits=state.waiting,
            )


def dead_letters(now: Situation) -> Iterator[Incident]:
    """There are no dead letters."""
    for row in now.queues:
        if row.dead and not row.error:
            first, last = now.dead.get((row.kind, row.name), (None, None))
            lately = "" if last is None else _of_letter(now, last)
            yield Incident(
                row.name,
                "warning",
                f"{row.kind} {row.name}: {counted(row.dead, 'dead letter')}{lately}",
                "inspect their reasons, then redrive or delete them: redis-queue dead list",
                page_of("dead", name=row.name),
                first,
                row.dead,
            )


def _of_letter(now: Situation, last: Letter) -> str:
    """Return what the last dead letter tells: of a task its name, its queue and the cause."""
    ago = f"{span_text(now.age(last.letter.died_at), parts=1)} ago"
    if not last.task:
        return f"; the last one died {ago}"
    cause = f": {last.reason}" if last.reason else ""
    return f"; the last one, {last.task} of queue {last.called.queue or '-'}, died {ago}{cause}"


def _read_queues(now: Situation) -> Iterator[tuple[CeleryQueueRow, list[WorkerState]]]:
    """Yield the queues whose messages wait, also at workers, with the workers that may start them."""
    for row in now.celery_queues:
        workers = now.readers.get(row.name, [])
        if (row.ready or now.held[row.name]) and workers and not row.error and f"{OF_QUEUE}{row.name}" not in now.stops:
            yield row, workers


def _wait_of(row: CeleryQueueRow, now: Situation, workers: Sequence[WorkerState]) -> float:
    """Return how many seconds messages wait: without their times at most as long as the processes were busy."""
    if (oldest := _oldest(row, now)) is not None:
        return oldest
    full = workers if _is_full(workers) else ()
    return max((now.age(task.since) for one in full for task in now.runs.get(one.row.name, ())), default=0.0)


def _oldest(row: CeleryQueueRow, now: Situation) -> float | None:
    """Return how many seconds the oldest message waits; None if a person may have stopped it, as a flow or a key."""
    return None if _may_wait_in(now.held_back, row) else row.oldest_age


def _may_wait_in(flows: Collection[str], row: CeleryQueueRow) -> bool:
    """Return whether messages of a queue may wait in one of these *flows*: its own, or those of tasks."""
    return bool(row.waiting_for_place) and ("" in flows or f"{OF_QUEUE}{row.name}" in flows)


def _moves(now: Situation, row: CeleryQueueRow, workers: Sequence[WorkerState]) -> bool:
    """Return whether runs of a queue ended lately, take no longer than usual, or are started at a rate."""
    queue = row.name
    if not (row.listed or _is_full(workers)) and _may_wait_in(now.rated, row):
        return True
    if _ended(now, queue) or (_ended(now, OTHER.queue) and any(worker.row.executed_per_minute for worker in workers)):
        return True
    return any(worker.row.name in now.as_usual for worker in workers if worker.state in HEALTHY)


def _ended(now: Situation, queue: str) -> int:
    return sum(
        minute.executed
        for series, minutes in now.ended.items()
        if series.queue == queue
        for minute in minutes[-ENDED_MINUTES:]
    )


def _is_full(workers: Sequence[WorkerState]) -> bool:
    return all(worker.row.busy >= worker.row.concurrency > 0 for worker in workers)


def _holders(now: Situation, workers: Sequence[WorkerState]) -> str:
    """Return what the *workers* of a queue do instead of starting its messages."""
    rows = [worker.row for worker in workers]
    faults = [f"{one.row.name} is {one.state} ({one.reason})" for one in workers if one.state not in HEALTHY]
    runs = [task for row in rows for task in now.runs.get(row.name, ())]
    if len(faults) == len(workers) and not runs:
        return some_of(faults, NAMED)
    busy, places = sum(row.busy for row in rows), sum(row.concurrency for row in rows)
    where = rows[0].name if len(rows) == 1 else f"{len(rows):,} workers"
    if not _is_full(workers):
        limited = sum(row.limited for row in rows)
        held = f", and rate limits hold {counted(limited, 'task')} back" if limited else ""
        return f"{busy:,} of {places:,} processes of {where} are busy{held}"
    who = {1: "the only process", 2: "both processes"}.get(places, f"all {places:,} processes")
    return f"{who} of {where} {'is' if places == 1 else 'are'} busy{': ' if runs else ''}{tasks_text(now, runs)}"


def _stop(state: FlowState | KeyState) -> str:
    return "is paused" if state.paused else "has a limit of 0"


def _advice(state: FlowState) -> str:
    if state.paused:
        return f"if the reason is gone: redis-queue flow resume {quote(state.name)}"
    option = "--limit-each" if state.limits.limit != 0 and state.kind == "fair" else "--limit"
    return f"if the reason is gone: redis-queue flow set {quote(state.name)} {option} N"
