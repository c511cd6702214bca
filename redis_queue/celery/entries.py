"""Entries of the DelayQueue: store Celery messages and calls as such, and remove them with the keys that they own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import redis
from celery import Celery
from kombu.utils.functional import retry_over_time

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.times import Seconds, point_ms
from redis_queue.celery.kombu.keys import ListNames
from redis_queue.celery.message.entry import TaskCall, unique_header_of
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.headers import CALL, UNIQUE, Attempt, UniqueHeader, new_call
from redis_queue.celery.message.producer import build, lifetime_ms
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.results import clear_revoked, mark_revoked
from redis_queue.celery.tracing import schedule_spans, scheduling_call
from redis_queue.delay.entries import MarkedEntries, PushFlag, Verb
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayPlace, DelayQueue
from redis_queue.errors import InvalidValueError, StoreError, StoreRefusedError, StoreUnavailableError
from redis_queue.model import CancelOutcome, Entry, OnConflict
from redis_queue.store.chunks import ANY_SIZE, CHUNK
from redis_queue.store.ids import check_id, check_ids, is_id, new_ids, retry_id
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Scripts

ATTEMPTS: Final = 5
"""How often an entry is read again that was replaced before it was removed."""

MAX_LISTS: Final = 1000
"""Maximum number of names of lists that are remembered."""


class MessageWriter:
    """Stores messages of *app* in the queue that *open_queue* returns; raises what a push raises."""

    def __init__(self, app: Celery, open_queue: Callable[[], DelayQueue]) -> None:
        self._app = app
        self._open_queue = open_queue

    @LazyProperty
    def _marked(self) -> MarkedEntries:
        # Opened late, which asks Redis: if that fails, the span of the schedule shows the error.
        return self._open_queue().marked

    def store(self, messages: Sequence[tuple[Envelope, Due]]) -> list[bool]:
        """Store messages in one round trip per 500; each replaces an entry that waits under its task id.

        Tell for each whether it certainly replaced one, which will not be sent.
        """
        calls = [new_call() for _ in messages]
        named = [(envelope.with_call(call), due) for (envelope, due), call in zip(messages, calls, strict=True)]
        with schedule_spans(named) as traced:
            pushes = [self.as_push(*message, mark=call) for message, call in zip(traced, calls, strict=True)]
            outcomes = self._marked.renew_many(pushes)
        for (envelope, _), outcome in zip(messages, outcomes, strict=True):
            if outcome == PushFlag.RENEWED:
                clear_revoked(self._app, envelope.id)
        return [outcome == PushFlag.REPLACED for outcome in outcomes]

    def store_attempt(self, envelope: Envelope, due: Due, attempt: Attempt) -> None:
        """Store a retry; it replaces an earlier attempt of the same call.

        An entry of another call with the same id is kept: then the retry gets an entry of its own.
        """
        with schedule_spans([(envelope.with_call(attempt.call), due)]) as traced:
            ((message, _),) = traced
            push = self.as_push(message, due)
            for id_ in attempt.ids(message.id):
                own = replace(push, payload=message.pack(id_), id=id_, mark=attempt.mark)
                if self._marked.replace_own(own):
                    return
            # Only possible if another tool wrote an entry with this id and without a call name.
            raise InvalidValueError(
                f"{message.id!r}: other calls wait under this id and under all ids for its retries: cancel one of them"
            )

    def as_push(self, envelope: Envelope, due: Due, *, mark: str = "") -> Push:
        """Return the entry for a message, with the *mark* of its call."""
        delay, due_at = due
        return Push(
            envelope.pack(),
            delay=delay,
            due_at=due_at,
            id=envelope.id or None,
            headers=envelope.storage_headers() or None,
            destination=self._destination(envelope),
            mark=mark,
        )

    def _destination(self, envelope: Envelope) -> str | None:
        """Return the list that the message goes to, if it is known without asking the broker."""
        if self._list_of is None or envelope.exchange or not envelope.routing_key:
            return None
        if any(isinstance(item, Mapping) and lifetime_ms(build(item)) for item in envelope.declare):
            return None
        return self._list_of(envelope.routing_key, envelope.priority)

    @LazyProperty
    def _list_of(self) -> Callable[[str, int], str] | None:
        lists = ListNames.of_app(self._app)
        return None if lists is None else lru_cache(maxsize=MAX_LISTS)(lists.of_queue)


def with_retries(store: Callable[[], Any], options: Mapping[str, Any]) -> Any:
    """Call *store*, and retry it under Celery's policy for a publish, which is in the *options* of the publish."""
    try:
        return store()
    except StoreUnavailableError as error:
        policy = options.get("retry_policy") or {}
        if not options.get("retry") or policy.get("max_retries") == 0 or _was_silent(error):
            raise
    return retry_over_time(
        store,
        (StoreUnavailableError,),
        errback=_next_interval,
        max_retries=policy.get("max_retries", 3),
        interval_start=policy.get("interval_start", 0),
        interval_step=policy.get("interval_step", 0.2),
        interval_max=policy.get("interval_max", 0.2),
    )


def _next_interval(error: StoreUnavailableError, intervals: Iterator[float], _retries: int) -> float:
    if _was_silent(error):
        raise error
    return next(intervals)


def _was_silent(error: StoreUnavailableError) -> bool:
    """Return whether Redis timed out: more attempts would take as long, and the caller has already waited."""
    return isinstance(error.__cause__, redis.TimeoutError)


def push_task(
    delay_queue: DelayQueue,
    /,
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    delay: Seconds | None = None,
    due_at: datetime | None = None,
    id: str | None = None,
    on_conflict: OnConflict = "replace",
    **options: Any,
) -> str:
    """Store a call of *task* (a Celery task, its name or a signature) in *delay_queue* until it is due; return its id.

    *id* becomes the task id; a call that waits under it is replaced. *options* are those of ``apply_async``, such as
    ``queue=`` and ``priority=``; they, *delay*, *due_at* and *id* have precedence over those of a signature. Arguments
    may be of any type that Celery can write as JSON. Raises BodyError for other types, InvalidValueError for a chain,
    group or chord, and what :meth:`redis_queue.DelayQueue.push` raises.
    """
    call, own = TaskCall.of(task, args, kwargs, options)
    id = own.get("task_id") if id is None else id  # noqa: A001 - the name of the argument
    if delay is None and due_at is None:
        delay, due_at = own.get("countdown"), own.get("eta")
    app = getattr(task, "app", None)
    if app is not None:
        call = call.routed(app)
    name = new_ids(1)[0] if id is None else id
    with scheduling_call(call, name, delay, due_at) as traced:
        payload, mark = traced.payload(app), new_call()
        item = Push(payload, delay, due_at, name, headers={CALL: mark}, mark=mark)
        return delay_queue.push_many([item], on_conflict=on_conflict)[0]


class Removal(NamedTuple):
    """Outcome of a removal, the entry if it waited and can be read, and whether its script did all of the verb."""

    outcome: CancelOutcome
    entry: Entry | None
    noted: bool = False


NOTHING: Final = Removal(CancelOutcome.NOT_FOUND, None)
"""The outcome for an id without an entry."""


class EntryRemoval:
    """Removes entries of *queue*, and frees the keys of unique tasks, which *keys* names.

    All methods raise StoreError, and InvalidValueError for invalid ids.
    """

    def __init__(self, queue: DelayQueue, keys: FlowKeys) -> None:
        self._queue = queue
        self._keys = keys

    def cancel(self, verbs: Mapping[str, Verb]) -> dict[str, Removal]:
        """Cancel entries as :meth:`redis_queue.DelayQueue.cancel_many` does, and free their keys; return those found.

        A message of a unique task does not run even if it may have been sent before. It takes one call for every 1,000
        ids and shard, and more for those of unique tasks.
        """
        removed: dict[str, Removal] = {}
        left = verbs
        for attempt in range(ATTEMPTS + 1):
            held = self._take_out(left, removed)
            rows = [
                (id_, "" if attempt == ATTEMPTS else key.token, key.field, key.token) for id_, (_, key) in held.items()
            ]
            outcomes = zip(held, self._queue.marked.cancel_unique(rows, self._keys), strict=True)
            # Without an outcome, another message was stored under this id after it was read.
            removed |= {id_: Removal(outcome, held[id_][0]) for id_, outcome in outcomes if outcome is not None}
            left = {id_: left[id_] for id_ in held if id_ not in removed}
            if not left:
                break
        return removed

    def _take_out(
        self, verbs: Mapping[str, Verb], removed: dict[str, Removal]
    ) -> dict[str, tuple[Entry | None, UniqueHeader]]:
        """Cancel what owns no key; return by id the entries that do, None for a dead letter, and their keys."""
        owning: dict[str, tuple[Entry | None, UniqueHeader]] = {}
        others: dict[str, Entry | None] = {}
        # A packed message does not spell out its id, wherever it stands: a text of each record holds all of them.
        text = "v1 " if any(id_ in UNIQUE for id_ in verbs) else UNIQUE
        # Every other id is that of a retry, and has hardly ever an entry.
        for id_, row in zip(verbs, self._queue.marked.cancel(verbs.items(), held=text, size=2 * CHUNK), strict=True):
            entry, key = None if row.is_dead else row.entry, unique_header_of(row.entry)
            if row.outcome is None and key is not None:
                owning[id_] = entry, key
            elif row.outcome is None:
                others[id_] = entry
            elif row.outcome.taken_out:
                removed[id_] = Removal(row.outcome, entry, noted=True)
        for id_, row in zip(others, self._queue.marked.cancel((id_, verbs[id_]) for id_ in others), strict=True):
            if row.outcome is not None:
                removed[id_] = Removal(row.outcome, others[id_], noted=row.outcome.taken_out)
        return owning

    def cancel_many(self, ids: Iterable[str]) -> list[Removal]:
        """Cancel entries as :meth:`cancel` does, and return the removal of each."""
        names = [check_id(id_) for id_ in ids]
        removed = self.cancel(dict.fromkeys(names, "remove"))
        return [removed.pop(name, NOTHING) for name in names]

    def delete_dead(self, ids: Iterable[str], *, until: datetime | None = None) -> int:
        """Delete dead letters as :meth:`redis_queue.DelayQueue.delete_dead` does, and free their keys."""
        names = check_ids(ids)
        until_ms = ANY_SIZE if until is None else point_ms(until, name="until")
        found = self._queue.reader.find(names) if self._has_keys() else {}
        read = {id_: unique_header_of(entry) for id_, (entry, is_dead) in found.items() if is_dead}
        rows = [(id_, key.token, key.field, key.token) for id_, key in read.items() if key is not None]
        outcomes = self._queue.marked.cancel_unique(rows, self._keys, until_ms=until_ms)
        keys = {id_ for id_, *_ in rows}
        count = sum(outcome is not None and outcome.taken_out for outcome in outcomes)
        return count + self._queue.delete_dead([id_ for id_ in names if id_ not in keys], until=until)

    def purge(self, *places: DelayPlace, limit: int) -> int:
        """Delete up to *limit* (1 to 500) entries in *places*, and free the keys of dead letters; return how many."""
        if "dead" in places and self._has_keys():
            letters = self._queue.dead_letters(limit=limit, max_bytes=0)
            count = self.delete_dead([letter.id for letter in letters if is_id(letter.id)])
            if count:
                return count
        return self._queue.purge(*places, limit=limit)

    def _has_keys(self) -> bool:
        """Return whether any key of a unique task is owned; False for a user who may not know."""
        with suppress(StoreRefusedError):
            return bool(Scripts(self._queue.client).command("EXISTS", self._keys.owners))
        return False


class TaskRemoval(EntryRemoval):
    """Removes entries of *queue*, and makes their tasks REVOKED in the result backend of *app*."""

    def __init__(self, queue: DelayQueue, keys: FlowKeys, app: Celery) -> None:
        super().__init__(queue, keys)
        self._app = app

    def cancel_many(self, ids: Iterable[str]) -> list[Removal]:
        """Cancel tasks, and return the removal of each."""
        rows = self._tasks(ids, "cancel")
        # The entries are already removed. The note only lets a newer call clear the state REVOKED.
        with suppress(StoreError):
            self._queue.revokes.note_revoked(name for name, out, call, _ in rows if out.taken_out and not call.noted)
        return [call._replace(outcome=outcome) for _, outcome, call, _ in rows]

    def revoke(self, ids: Iterable[str]) -> set[str]:
        """Cancel tasks, and note that they are revoked, as :meth:`StoredTasks.revoke_many` does."""
        rows = self._tasks(ids, "revoke")
        # Neither the message nor an earlier attempt of its call ever left the store.
        entries = {name: call.entry for name, _, call, retried in rows if call.outcome and not retried}
        unseen = {name for name, entry in entries.items() if entry is not None and not TaskEntry.of(entry).retries}
        # Where no entry was found, the same call has noted it.
        self._queue.revokes.note_sent(name for name, _, call, _ in rows if call is not NOTHING and name not in unseen)
        return unseen

    def _tasks(self, ids: Iterable[str], verb: Verb) -> list[tuple[str, CancelOutcome, Removal, bool]]:
        """Cancel tasks; return id and outcome of each, the entry of its call, and whether a retry was removed."""
        names = [check_id(id_) for id_ in ids]
        verbs: dict[str, Verb] = {}
        for name in names:
            # An id may have two entries: a newer call, and a retry of the older call.
            verbs[name] = verb
            verbs.setdefault(retry_id(name), "remove")
        removed = self.cancel(verbs)
        rows: list[tuple[str, CancelOutcome, Removal, bool]] = []
        for name, call in zip(names, [removed.pop(name, NOTHING) for name in names], strict=True):
            retry = removed.pop(retry_id(name), NOTHING).outcome
            # If only the retry is found, the newer call is being sent, or was sent.
            is_sent = retry.taken_out and not call.outcome.taken_out
            outcome = CancelOutcome.MAYBE_SENT if is_sent else max(call.outcome, retry)
            rows.append((name, outcome, call, retry.taken_out))
            if outcome.taken_out:
                mark_revoked(self._app, name, call.entry)
        return rows
