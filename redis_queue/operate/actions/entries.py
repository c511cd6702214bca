"""Actions on waiting entries and on dead letters."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import quote, unquote

from redis_queue.basics.times import When, read_time, span_text
from redis_queue.catalog import KINDS, AnyQueue, kind_of
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidDelayError, InvalidValueError
from redis_queue.model import CancelOutcome, Entry, State
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Result
from redis_queue.operate.actions.rows import INVALID_ROW, Rows
from redis_queue.operate.audit import MAX_SUBJECTS, Subject
from redis_queue.operate.items import Entries, Letter, Letters, task_of
from redis_queue.operate.listing import SearchReport, Selection
from redis_queue.operate.queue_row import BROKEN, Faults
from redis_queue.store.chunks import CHUNK, chunks, gap_ms
from redis_queue.store.ids import is_id

MAX_LOOKS: Final = 100
"""Maximum number of messages and entries that are read to show the first ones."""

ANY: Final[Sequence[State]] = ("ready", "delayed", "in_flight", "dead")
DEAD: Final[Sequence[State]] = ("dead",)

GONE: Final = "gone"
"""Version of a message or entry that does not exist."""


class Row(NamedTuple):
    """A message or entry in one version; "" for any version."""

    queue: AnyQueue
    id: str
    version: str = ""


def reference(queue: AnyQueue, id_: str, version: str = "") -> str:
    """Return a reference to a message or entry for a form, or to one *version* of it."""
    known = f"{kind_of(queue)}:{quote(queue.name, safe='')}:{quote(id_, safe='', errors='surrogateescape')}"
    return f"{known}:{version}" if version else known


class StoredRows(Rows[Row]):
    """Messages and entries in one of *states*."""

    gone = "gone, replaced, or in another state"
    states: ClassVar[Sequence[State]] = ANY
    kinds: ClassVar[Sequence[str]] = KINDS
    #: An error of one queue does not end the work on the others.
    isolated: ClassVar[bool] = False

    def read(self, access: Access, choice: Choice) -> list[Row]:
        """Return the rows with these references, each id once."""
        open_queue = functools.cache(access.queue)
        found: dict[tuple[str, str, str], Row] = {}
        for text in choice.references:
            kind, name, id_, version = (unquote(part) for part in [*text.split(":"), "", "", ""][:4])
            if kind not in self.kinds or not name or not is_id(id_):
                raise InvalidValueError(INVALID_ROW)
            found.setdefault((kind, name, id_), Row(open_queue(kind, name), id_, version))
        return list(found.values())

    def current(self, access: Access, choice: Choice, items: Sequence[Row]) -> list[Row]:  # noqa: ARG002
        """Return the rows with their versions; GONE for those that no longer exist."""
        now = {_key(queue): queue.versions(list(versions)) for queue, versions in _by_queue(items)}
        return [row._replace(version=now[_key(row.queue)].get(row.id, GONE)) for row in items]

    def reference(self, item: Row) -> str:
        return reference(*item)

    def subjects(self, choice: Choice, items: Sequence[Row]) -> list[Subject]:
        """Return the first rows that exist; once they are confirmed, the first ones, unread."""
        if choice.confirmed is not None:
            return [Subject(row.id, row.queue.name) for row in items[:MAX_SUBJECTS]]
        return subjects(((row.queue, row.id) for row in items), self.states)

    def queues(self, choice: Choice, items: Sequence[Row], subjects: Sequence[Subject]) -> Sequence[str]:
        """Return the names of the queues; given ids may be in some of them only."""
        return [row.queue.name for row in items] if choice.ids is None else super().queues(choice, items, subjects)

    def run(
        self, action: Action, access: Access, choice: Choice, items: Sequence[Row], faults: Faults
    ) -> Iterator[Result]:
        """Apply *action* queue by queue to the rows whose version is the same."""
        for queue, versions in _by_queue(items):
            left = len(versions)
            with faults.of_queue(queue) if self.isolated else nullcontext():
                now = queue.versions(list(versions)) if any(versions.values()) else versions
                ids = [id_ for id_, version in versions.items() if now.get(id_) == version]
                # Read before the action: they may be gone afterwards. The plan has also those that were replaced.
                is_read = choice.confirmed is not None and not action.names_items
                found = subjects(((queue, id_) for id_ in ids), self.states) if is_read else []
                for done in action.function(access, queue, ids, choice):
                    left -= done.tried
                    done.subjects, found = done.subjects or found, []
                    yield done
            if left:
                yield Result(0, tried=left)


class EntryRows(StoredRows):
    """Entries that wait in a DelayQueue: that of *scope*, by default the one for Celery tasks."""

    name, noun, plural, at = "scheduled", "waiting entry", "entries", "due"
    scope: ClassVar = {"queue": False}
    kinds = ("delay",)

    def find(self, access: Access, choice: Choice) -> Selection[Row]:
        """Return the entries with the ids of *choice*, or those that match."""
        queue = access.delay_queue(choice.scope.get("queue"))
        if choice.ids is not None:
            return Selection([Row(queue, id_) for id_ in choice.ids if not choice.exact or queue.get(id_) is not None])
        listing = Entries(access, queue, choice.conditions)
        # Ids written by other tools may be invalid for any call.
        return listing.gather(choice.most, lambda found: Row(queue, found[0].id) if is_id(found[0].id) else None)


class LetterRows(StoredRows):
    """Dead letters of the queues with the name of *scope*, or of all."""

    name, noun, plural, at = "dead", "dead letter", "dead letters", "died"
    scope: ClassVar = {"name": False}
    states, isolated = DEAD, True

    def find(self, access: Access, choice: Choice) -> Selection[Row]:
        """Return the letters with the ids of *choice*, or those that match."""
        name = choice.scope.get("name")
        if choice.ids is not None and not choice.exact:
            # The action itself checks whether they are dead.
            report = SearchReport()
            rows = [Row(queue, id_) for queue in access.queues(name, report.faults) for id_ in choice.ids]
            return Selection(rows, report=report)
        wanted = None if choice.ids is None else frozenset(choice.ids)

        def row_of(letter: Letter) -> Row | None:
            is_meant = is_id(letter.id) and (wanted is None or letter.id in wanted)
            return Row(letter.queue, letter.id) if is_meant else None

        return Letters(access, name, choice.conditions).gather(choice.most, row_of)


def subjects(pairs: Iterable[tuple[AnyQueue, str]], states: Sequence[State] = ANY) -> list[Subject]:
    """Return the first :data:`MAX_SUBJECTS` of *pairs* (queue, id) that exist in one of *states*.

    It reads at most :data:`MAX_LOOKS` of them. Unreadable queues are left out.
    """
    found: list[Subject] = []
    for (queue, id_), _ in zip(pairs, range(MAX_LOOKS), strict=False):
        with contextlib.suppress(*BROKEN):
            item = queue.look(id_)
            if item is not None and item.state in states:
                found.append(Subject(id_, queue.name, task_of(item).task, item.at))
        if len(found) == MAX_SUBJECTS:
            break
    return found


def cancel(access: Access, queue: DelayQueue, ids: Sequence[str], _: Choice) -> Iterator[Result]:
    """Cancel entries. They never run, except those that were claimed before and may have been sent.

    With a Celery app, their tasks become REVOKED in its result backend, too.

    Example: redis-queue scheduled cancel --task shop.remind --due-before 2h --dry-run
    """
    for chunk in chunks(ids, CHUNK):
        found = zip(chunk, access.removal(queue).cancel_many(chunk), strict=True)
        removed = [(id_, removal) for id_, removal in found if removal.outcome.taken_out]
        maybe_sent = sum(removal.outcome == CancelOutcome.MAYBE_SENT for _, removal in removed)
        first = [_subject(queue, id_, removal.entry) for id_, removal in removed[:MAX_SUBJECTS]]
        yield Result(len(removed), maybe_sent, len(chunk), subjects=first)


def _subject(queue: AnyQueue, id_: str, entry: Entry | None) -> Subject:
    return Subject(id_, queue.name, *((TaskEntry.of(entry).task, entry.due_at) if entry is not None else ()))


def reschedule(access: Access, queue: DelayQueue, ids: Sequence[str], choice: Choice) -> Iterator[Result]:
    """Change when entries are due.

    Example: redis-queue scheduled reschedule order-42 --to 2h
    """
    for id_ in ids:
        yield Result(access.reschedule(queue, id_, choice.arguments["when"]), tried=1)


def run_now(access: Access, queue: DelayQueue, ids: Sequence[str], _: Choice) -> Iterator[Result]:
    """Make entries due at once.

    Example: redis-queue scheduled run-now order-42
    """
    for id_ in ids:
        yield Result(access.reschedule(queue, id_, None), tried=1)


def redrive(_: Access, queue: AnyQueue, ids: Sequence[str], choice: Choice) -> Iterator[Result]:
    """Make dead letters ready again, with their deliveries counted from zero.

    With --rate the dead letters of each queue are delayed, one after the other, and the command does not wait.

    Example: redis-queue dead redrive --reason Timeout --rate 50
    """
    for flags in queue.redrive_batches(ids, rate=choice.arguments.get("rate")):
        yield Result(sum(flags), tried=len(flags))


def delete(access: Access, queue: AnyQueue, ids: Sequence[str], choice: Choice) -> Iterator[Result]:
    """Delete dead letters by id, or those that match.

    Messages that die after the command began stay, even under the same id. To delete all: redis-queue dead purge.

    Example: redis-queue dead delete order-42 --dry-run
    """
    until = choice.at or access.inspector.now()
    for chunk in chunks(ids, CHUNK):
        yield Result(access.deletion(queue).delete_dead(chunk, until=until), tried=len(chunk))


def _by_queue(rows: Sequence[Row]) -> list[tuple[AnyQueue, dict[str, str]]]:
    groups: dict[tuple[str, str], tuple[AnyQueue, dict[str, str]]] = {}
    for queue, id_, version in rows:
        groups.setdefault(_key(queue), (queue, {}))[1][id_] = version
    return list(groups.values())


def _key(queue: AnyQueue) -> tuple[str, str]:
    return kind_of(queue), queue.name


def _new_time(text: str) -> When:
    when = read_time(text)
    if isinstance(when, timedelta) and when < timedelta(0):
        raise InvalidDelayError(f"{text!r}: must not be in the past; run-now makes entries due at once")
    return when


def _time_text(when: When) -> str:
    return f"in {span_text(when)}" if isinstance(when, timedelta) else f"{when:%Y-%m-%dT%H:%M:%S%z}"


def _due(given: Mapping[str, Any]) -> str:
    return f", due {_time_text(given['when'])}"


def read_rate(text: str) -> float:
    """Return the rate in *text*, per second. Raises InvalidValueError."""
    try:
        rate = float(text)
    except ValueError:
        raise InvalidValueError(f"rate={text[:60]!r}: must be a number") from None
    gap_ms(rate)
    return rate


WHEN: Final = Argument(
    "when",
    "New due time: 2030-01-01T00:00Z, or 2h from now.",
    _new_time,
    _time_text,
    missing="Reschedule needs a time: 2030-01-01T00:00Z, or 2h from now.",
    metavar="TIME",
    option="--to",
)
RATE: Final = Argument(
    "rate",
    "At most this many per second.  [default: all at once]",
    read_rate,
    lambda rate: f"rate {rate:g}",
    metavar="NUMBER",
)

_entries, _letters = EntryRows(), LetterRows()

ACTIONS: Final = (
    Action(_entries, "cancel", "Cancel", "cancelled", cancel, destroys=True, names_items=True),
    Action(_entries, "run-now", "Run now", "made due", run_now),
    Action(_entries, "reschedule", "Reschedule", "rescheduled", reschedule, (WHEN,), phrase=_due),
    Action(_letters, "redrive", "Redrive", "redriven", redrive, (RATE,)),
    Action(_letters, "delete", "Delete", "deleted", delete, destroys=True, takes_all=False),
)
