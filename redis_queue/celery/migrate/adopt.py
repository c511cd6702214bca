"""Adopt: move delayed tasks that stock workers left in the Redis broker into the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from celery import Celery

from redis_queue.celery.brokers.open import broker_of
from redis_queue.celery.message.body import retries_of
from redis_queue.celery.message.entry import content_of
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.migrate import Progress
from redis_queue.celery.migrate.kombu_backlog import BacklogTask, KombuBacklog, RemainingTask
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.model import Push
from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.store.chunks import chunks

PING_TIMEOUT: Final = 5.0
"""Seconds for all workers to answer; an idle worker needs milliseconds."""

LIST_TIMEOUT: Final = 60.0
"""Seconds for the answers to inspect, which can be long."""

NOBODY: Final = "nobody@redis_queue"

PASSES: Final = 4
"""Maximum number of passes over the backlog: the second one finds tasks that moved during the first."""

MARGIN: Final = 60.0
"""Seconds by which clocks may differ, plus the time between two passes."""


class SilentWorkersError(RedisQueueError):
    """A live worker does not answer."""


class LiveWorkers:
    """The workers of *app* on a Redis broker.

    Redis tells how many workers receive a broadcast, so a worker that is too busy to answer counts as alive.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._count = 0
        self.names: list[str] = []

    def ping(self) -> int:
        """Return how many workers are alive. Raises SilentWorkersError unless all of them answer."""
        self._count = self._receivers()
        if not self._count:
            return 0
        replies = self._app.control.ping(timeout=PING_TIMEOUT, limit=self._count) or []
        self.names = sorted(name for reply in replies for name in reply)
        self._check(len(self.names), "ping")
        return self._count

    def held(self, overdue: Iterable[str]) -> set[str]:
        """Return the ids of all tasks that workers hold in memory. Raises SilentWorkersError.

        Workers are asked for *overdue* by id: a due task that waits for its rate limit is in none of their lists.
        """
        inspect = self._app.control.inspect(timeout=LIST_TIMEOUT, limit=self._count)
        found: set[str] = set()
        for command in ("scheduled", "reserved", "active"):
            replies: Mapping[str, Any] = getattr(inspect, command)() or {}
            self._check(len(replies), f"inspect {command}")
            found.update(id_ for rows in replies.values() for id_ in ids_of(rows))
        for chunk in chunks(overdue):
            replies = inspect.query_task(*chunk) or {}
            self._check(len(replies), "inspect query_task")
            found.update(id_ for rows in replies.values() for id_, (_, row) in rows.items() if not row.get("stored"))
        return found

    def _check(self, answered: int, what: str) -> None:
        if answered < self._count:
            raise SilentWorkersError(
                f"{self._count - answered} of {self._count} live workers did not answer {what}: their tasks are "
                "unknown. Stop all stock workers first; a warm shutdown puts their tasks back into the queues"
            )

    def _receivers(self) -> int:
        """Send a command that is addressed to nobody; return how many workers received it."""
        exchange = self._app.control.mailbox.exchange
        with self._app.connection_for_write() as connection:
            channel = connection.default_channel
            counts: list[int] = []
            channel.conn_or_acquire = _counting(channel.conn_or_acquire, counts)
            command: dict[str, Any] = {
                "method": "ping",
                "arguments": {},
                "destination": [NOBODY],
                "pattern": None,
                "matcher": None,
            }
            connection.Producer(channel, auto_declare=False).publish(
                command,
                exchange=exchange.name,
                routing_key="",
                declare=[exchange],
                headers={"clock": self._app.clock.forward(), "expires": 0},
                serializer="json",
            )
            # Behind Sentinel kombu may also publish to an old name of the channel, which the same workers receive.
            return max(counts, default=0)


def ids_of(rows: Any) -> Iterator[str]:
    """Yield the task ids in the answer of one worker."""
    for row in rows if isinstance(rows, list) else ():
        request = row.get("request", row)
        # Workers with DurableTasks list stored tasks as well.
        if not request.get("stored"):
            yield str(request.get("id"))


def _counting(acquire: Any, counts: list[int]) -> Any:
    @contextmanager
    def conn_or_acquire(client: Any = None) -> Iterator[Any]:
        with acquire(client) as found:
            publish = found.publish

            def counted(*args: Any, **kwargs: Any) -> Any:
                counts.append(publish(*args, **kwargs))
                return counts[-1]

            found.publish = counted
            try:
                yield found
            finally:
                del found.publish

    return conn_or_acquire


class HeldByWorkersError(RedisQueueError):
    """A live worker holds these tasks in its memory and would run them as well."""


class Adoption:
    """Moves the delayed tasks that stock workers of *app* left in its Redis broker into the store.

    They are in the lists of the app's queues, and among the messages that workers fetched and never acknowledged. Each
    task is stored as if it had just been sent through DurableTasks. No task is lost or doubled: if broker and store are
    one Redis, each task moves in one atomic step. Elsewhere it is stored first and then taken out of the broker; after
    a crash, the next run finds it stored and only takes it out. (A task that is dispatched between the crash and the
    next run, runs twice.)

    If the id of a task is already stored, the stored entry is kept. The message is taken out of the broker if that
    loses nothing: if the stored message is the same, or a later attempt (a retry has the id of the attempt before it,
    whose message a killed worker did not acknowledge). Of several attempts in the broker the last one is stored. Any
    other message with the same id is another call: it stays in the broker, runs there, and is reported.

    Installs nothing in *app*. May be interrupted at any point. Raises ConfigurationError unless the broker is Redis,
    HeldByWorkersError if a live worker holds one of these tasks, SilentWorkersError if a worker does not answer,
    BrokerUnavailableError if the broker is away, StoreUnavailableError if the store is away.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._stored = StoredTasks.of(app)
        self._queue = self._stored.queue
        #: Messages stored and taken out of the broker.
        self.adopted = 0
        #: Messages only taken out: a stored entry covers them.
        self.removed = 0
        #: Tasks that stay in the broker.
        self.left: list[RemainingTask] = []

    def find(self) -> Iterator[BacklogTask]:
        """Yield every delayed task in the broker; :attr:`left` gets unreadable tasks. Changes nothing."""
        with broker_of(self._app, self._queue.client) as broker:
            yield from self._find(KombuBacklog(self._app, broker))

    def run(self, progress: Progress = lambda _done, _all: None) -> None:
        """Adopt all delayed tasks that are now in the broker."""
        with broker_of(self._app, self._queue.client) as broker:
            backlog = KombuBacklog(self._app, broker)
            snapshot = _Snapshot(self._find(backlog))
            if not snapshot.tries:
                return
            self._refuse_if_held(snapshot)
            for number in range(PASSES):
                self.left = []
                if not self._pass(backlog, snapshot, progress, first=number == 0) and number:
                    break

    def _find(self, backlog: KombuBacklog) -> Iterator[BacklogTask]:
        self.left = []
        for page in backlog.pages():
            yield from self._readable(page)

    def _readable(self, page: Sequence[BacklogTask | RemainingTask]) -> list[BacklogTask]:
        self.left += [item for item in page if isinstance(item, RemainingTask)]
        return [item for item in page if isinstance(item, BacklogTask)]

    def _refuse_if_held(self, snapshot: _Snapshot) -> None:
        workers = LiveWorkers(self._app)
        held = workers.held(snapshot.overdue) & snapshot.tries.keys() if workers.ping() else set()
        if held:
            raise HeldByWorkersError(
                f"live workers ({', '.join(workers.names)}) hold {len(held)} of these tasks in memory, such as "
                f"{min(held)}: stop them first; a warm shutdown puts their tasks back into the queues"
            )

    def _pass(self, backlog: KombuBacklog, snapshot: _Snapshot, progress: Progress, *, first: bool) -> bool:
        """Adopt what can be adopted; return whether any task moved, or may move in another pass."""
        before, again = self.adopted + self.removed, False
        for page in backlog.pages():
            ours: list[tuple[BacklogTask, Push]] = []
            for found in self._readable(page):
                if not snapshot.has(found):
                    self._leave(found, "a worker has just fetched it")
                elif not first or snapshot.is_last(found):
                    ours += self._pushable(found)
            again |= self._adopt(backlog, ours)
            progress(self.adopted + self.removed, snapshot.count)
        return again or self.adopted + self.removed > before

    def _pushable(self, found: BacklogTask) -> list[tuple[BacklogTask, Push]]:
        push = self._stored.writer.as_push(found.envelope, (None, found.due_at))
        try:
            self._queue.check(push)
        except InvalidValueError as error:
            self._leave(found, str(error))
            return []
        return [(found, push)]

    def _adopt(self, backlog: KombuBacklog, ours: Sequence[tuple[BacklogTask, Push]]) -> bool:
        """Adopt *ours*; return whether another pass may adopt more."""
        if backlog.shared:
            flags = self._queue.foreign.adopt([(push, found.foreign) for found, push in ours])
        else:
            flags = self._store_and_take_out(backlog, ours)
        self.adopted += sum(map(bool, flags))
        stored = [pair for pair, flag in zip(ours, flags, strict=True) if flag is None]
        covered = [found for found, push in stored if self._is_covered(found, push)]
        # An adoption may have moved it in its list; then the next pass takes it out.
        taken = self._queue.foreign.take_out([found.foreign for found in covered], backlog.server)
        self.removed += sum(taken)
        missed = [found for (found, _), flag in zip(ours, flags, strict=True) if flag is False]
        missed += [found for found, flag in zip(covered, taken, strict=True) if not flag]
        for found in missed:
            self._leave(found, "it moved during the adoption")
        return bool(missed)

    def _store_and_take_out(self, backlog: KombuBacklog, ours: Sequence[tuple[BacklogTask, Push]]) -> list[bool | None]:
        flags: list[bool | None] = [
            True if kept else None for kept in self._queue.marked.keep_many(push for _, push in ours)
        ]
        stored = [number for number, flag in enumerate(flags) if flag]
        gone = self._queue.foreign.take_out([ours[number][0].foreign for number in stored], backlog.server)
        for number, taken in zip(stored, gone, strict=True):
            if not taken:
                # It has moved meanwhile, so it still is in the broker.
                self._queue.cancel(ours[number][0].id)
                flags[number] = False
        return flags

    def _leave(self, found: BacklogTask, reason: str) -> None:
        self.left.append(RemainingTask(found.id, found.place, reason))

    def _is_covered(self, found: BacklogTask, push: Push) -> bool:
        entry = self._queue.get(found.id)
        reason = "a dead letter has its id"
        if entry is not None:
            if entry.payload == push.payload:
                return True
            try:
                stored = content_of(entry)
                if isinstance(stored, Envelope) and retries_of(stored) > retries_of(found.envelope):
                    return True
            except InvalidValueError:
                pass
            reason = "another task with its id is stored"
        self._leave(found, reason)
        return False


class _Snapshot:
    """The tasks found by the first pass. Only they are adopted: the workers were asked about no others."""

    def __init__(self, tasks: Iterable[BacklogTask]) -> None:
        #: The highest number of retries for each id.
        self.tries: dict[str, int] = {}
        self.count = 0
        #: Ids of fetched tasks that are due.
        self.overdue: set[str] = set()
        self._fetched: dict[int | bytes, float | None] = {}
        for found in tasks:
            self.count += 1
            self.tries[found.id] = max(self.tries.get(found.id, 0), retries_of(found.envelope))
            if found.foreign.index:
                self._fetched[found.foreign.place] = found.foreign.score
                if found.due_at.timestamp() <= time.time() + MARGIN:
                    self.overdue.add(found.id)

    def has(self, found: BacklogTask) -> bool:
        """Return whether no worker has it: it is in a list, or was not fetched again since the first pass."""
        foreign = found.foreign
        return not foreign.index or self._fetched.get(foreign.place, _NEVER) == foreign.score

    def is_last(self, found: BacklogTask) -> bool:
        """Return whether there is no later attempt of the same task."""
        return retries_of(found.envelope) >= self.tries.get(found.id, 0)


_NEVER: Final = -1.0
