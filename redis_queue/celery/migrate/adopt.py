"""Adopt: delayed tasks that stock workers left in kombu's Redis transport move into the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from redis_queue.celery.brokers.outage import broker_of
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.protocol import retries_of
from redis_queue.celery.message.reading import read_entry
from redis_queue.celery.migrate.kombu_backlog import Found, Left, Stranded
from redis_queue.celery.migrate.live_workers import Listeners
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.model import Push
from redis_queue.errors import InvalidValueError, RedisQueueError

if TYPE_CHECKING:
    from celery import Celery

PASSES: Final = 4
"""Most looks at everything: a second one finds what moved during the first."""

MARGIN: Final = 60.0
"""Seconds by which clocks may differ, and between two looks."""

Progress = Callable[[int, int], None]
"""Takes how many are done and how many there are."""


class HeldByWorkersError(RedisQueueError):
    """A live worker holds these tasks in its memory and would run them as well."""


class Adoption:
    """Moves the delayed tasks that stock workers of *app* left in its Redis broker into the store.

    They are in the lists of the app's queues, and among what workers fetched and never acknowledged. Each is stored as
    if it had just been sent through DelayedTasks. None is lost or doubled: where broker and store are one Redis, each
    moves in one atomic step. Elsewhere it is stored first and then taken out of the broker; running again after a crash
    finds it stored and only takes it out. (One that falls due and is sent on between the crash and the next run, runs
    twice.)

    One whose id is stored already is left stored as it is. It is taken out of the broker where that loses nothing: when
    what is stored is the same message, or a later attempt (a retry has the id of the attempt before it, whose message
    a killed worker did not acknowledge). Of several attempts in the broker the last one is stored. Anything else with
    the same id is another call: it stays in the broker, where it runs as it would have, and is reported.

    Raises ConfigurationError where the broker is no Redis, HeldByWorkersError where a live worker holds one of these
    tasks, SilentWorkersError where one does not answer, BrokerUnavailableError and StoreUnavailableError where one of
    the two is away. May be interrupted at any point.
    """

    def __init__(self, app: Celery, *, progress: Progress | None = None) -> None:
        self._app = app
        self._delayed = StoredTasks.of(app)
        self._progress = progress
        self._queue = self._delayed.queue
        #: Messages stored and taken out of the broker.
        self.adopted = 0
        #: Messages only taken out: what is stored covers them.
        self.removed = 0
        #: What stays in the broker.
        self.left: list[Left] = []

    def find(self) -> Iterator[Found]:
        """Yield every delayed task in the broker; :attr:`left` gets those that cannot be read. Changes nothing."""
        with broker_of(self._app, self._queue.client) as broker:
            transport = Stranded(self._app, broker)
            self.left = []
            for page in transport.pages():
                yield from self._readable(page)

    def run(self) -> None:
        """Adopt everything that is there now."""
        with broker_of(self._app, self._queue.client) as broker:
            transport = Stranded(self._app, broker)
            known = self._look(transport)
            if not known.tries:
                return
            self._refuse_if_held(known)
            for number in range(PASSES):
                self.left = []
                if not self._pass(transport, known, first=number == 0) and number:
                    break

    def _look(self, transport: Stranded) -> _Known:
        known = _Known()
        self.left = []
        for page in transport.pages():
            for found in self._readable(page):
                known.add(found)
        return known

    def _readable(self, page: Sequence[Found | Left]) -> list[Found]:
        self.left += [item for item in page if isinstance(item, Left)]
        return [item for item in page if isinstance(item, Found)]

    def _refuse_if_held(self, known: _Known) -> None:
        listeners = Listeners(self._app)
        held = listeners.held(known.overdue) & known.tries.keys() if listeners.ask() else set()
        if held:
            raise HeldByWorkersError(
                f"live workers ({', '.join(listeners.names)}) hold {len(held)} of these tasks in memory, such as "
                f"{min(held)}: stop them first; a warm shutdown puts their tasks back into the queues"
            )

    def _pass(self, transport: Stranded, known: _Known, *, first: bool) -> bool:
        """Go through everything once; tell whether anything went, or may go the next time."""
        before, again = self.adopted + self.removed, False
        for page in transport.pages():
            ours: list[tuple[Found, Push]] = []
            for found in self._readable(page):
                if not known.has(found):
                    self._leave(found, "a worker has just fetched it")
                elif not first or known.is_last(found):
                    ours += self._pushable(found)
            again |= self._take(transport, ours)
            if self._progress is not None:
                self._progress(self.adopted + self.removed, known.count)
        return again or self.adopted + self.removed > before

    def _pushable(self, found: Found) -> list[tuple[Found, Push]]:
        push = self._delayed.writer.as_push(found.envelope, (None, found.due_at))
        try:
            self._queue.check(push)
        except InvalidValueError as error:
            self._leave(found, str(error))
            return []
        return [(found, push)]

    def _take(self, transport: Stranded, ours: Sequence[tuple[Found, Push]]) -> bool:
        """Take what can be taken; tell whether another look may find more."""
        if transport.shared:
            flags = self._queue.foreign.adopt([(push, found.foreign) for found, push in ours])
        else:
            flags = self._store_and_take_out(transport, ours)
        self.adopted += sum(map(bool, flags))
        stored = [pair for pair, flag in zip(ours, flags, strict=True) if flag is None]
        covered = [found for found, push in stored if self._is_covered(found, push)]
        # What was adopted before it moved it in its list; then the next pass takes it out.
        taken = self._queue.foreign.take_out([found.foreign for found in covered], transport.server)
        self.removed += sum(taken)
        missed = [found for (found, _), flag in zip(ours, flags, strict=True) if flag is False]
        missed += [found for found, flag in zip(covered, taken, strict=True) if not flag]
        for found in missed:
            self._leave(found, "it moved while it was looked at")
        return bool(missed)

    def _store_and_take_out(self, transport: Stranded, ours: Sequence[tuple[Found, Push]]) -> list[bool | None]:
        flags: list[bool | None] = [
            True if kept else None for kept in self._queue.calls.keep_many(push for _, push in ours)
        ]
        stored = [number for number, flag in enumerate(flags) if flag]
        gone = self._queue.foreign.take_out([ours[number][0].foreign for number in stored], transport.server)
        for number, taken in zip(stored, gone, strict=True):
            if not taken:
                # It went elsewhere meanwhile, so it is there and not here.
                self._queue.cancel(ours[number][0].id)
                flags[number] = False
        return flags

    def _leave(self, found: Found, reason: str) -> None:
        self.left.append(Left(found.id, found.place, reason))

    def _is_covered(self, found: Found, push: Push) -> bool:
        entry = self._queue.get(found.id)
        reason = "a dead letter has its id"
        if entry is not None:
            if entry.payload == push.payload:
                return True
            try:
                stored = read_entry(entry)
                if isinstance(stored, Envelope) and retries_of(stored) > retries_of(found.envelope):
                    return True
            except InvalidValueError:
                pass
            reason = "another task with its id is stored"
        self._leave(found, reason)
        return False


class _Known:
    """What the first look found: only that may be taken, for only that were the workers asked about."""

    def __init__(self) -> None:
        #: The highest number of retries for each id.
        self.tries: dict[str, int] = {}
        self.count = 0
        #: Those that workers fetched and whose time has passed.
        self.overdue: set[str] = set()
        self._fetched: dict[int | bytes, float | None] = {}

    def add(self, found: Found) -> None:
        """Note one."""
        self.count += 1
        self.tries[found.id] = max(self.tries.get(found.id, 0), retries_of(found.envelope))
        if found.foreign.index:
            self._fetched[found.foreign.place] = found.foreign.score
            if found.due_at.timestamp() <= time.time() + MARGIN:
                self.overdue.add(found.id)

    def has(self, found: Found) -> bool:
        """Tell whether no worker has it: it waits in a list, or has not been fetched again since the look."""
        foreign = found.foreign
        return not foreign.index or self._fetched.get(foreign.place, _NEVER) == foreign.score

    def is_last(self, found: Found) -> bool:
        """Tell whether no later attempt of the same task is there."""
        return retries_of(found.envelope) >= self.tries.get(found.id, 0)


_NEVER: Final = -1.0
