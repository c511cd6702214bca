"""Send the runs of schedules that are due, and make their messages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, Final

from celery import Celery

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.times import from_ms, monotonic
from redis_queue.celery.entries import MessageWriter
from redis_queue.celery.message.apply_async import ApplyAsync
from redis_queue.celery.message.headers import SCHEDULE, SCHEDULED_FOR, new_call
from redis_queue.celery.publish.send import Sends
from redis_queue.celery.schedules.calendar import Calendar, check_timezone
from redis_queue.celery.schedules.rules import check_rules, read_exclusions
from redis_queue.celery.tracing import schedule_spans
from redis_queue.delay.model import Push
from redis_queue.errors import DuplicateTaskError, StoreError, quoted
from redis_queue.monitor.monitor import Workers
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import NONE, Event, State, Step, dues_of, following, plan, resumed, text_of
from redis_queue.schedules.store import Change, ScheduleStore, Stored
from redis_queue.store.redis_errors import is_outage

logger = logger_of(__name__)

BATCH: Final = 50
"""Schedules that one step looks at."""

RETRY: Final = 10_000, 3_600_000
"""Shortest and longest time in ms after which a schedule that cannot be sent is tried again: as long as it is late."""

MAX_CALLS: Final = 1000
"""Maximum number of calls that are kept until their messages are stored."""

NOT_SENT: Final = "not sent by the task"
"""Why a run was skipped whose task has an ``apply_async`` that sent nothing."""

UNREADABLE: Final = 300_000
"""Time in ms after which a schedule that cannot be read is looked at again: a newer version may have written it."""


class NotSentError(DuplicateTaskError):
    """The ``apply_async`` of a task sent nothing, as that of a library does for a duplicate."""


class Runs:
    """Sends the runs of the schedules in *store*, as messages of *app*, which *sends* collects for *writer*.

    A run is stored in the step in which its schedule moves on. So any number of processes may send at once.
    """

    def __init__(
        self, app: Celery, store: ScheduleStore, sends: Sends, writer: MessageWriter, workers: Workers
    ) -> None:
        self._app = app
        self._store = store
        self._sends = sends
        self._writer = writer
        self._workers = workers
        # By task id: those whose messages are not stored yet.
        self._calls: dict[str, tuple[Definition, dict[str, Any]]] = {}

    def run(self, budget: float = math.inf) -> float:
        """Send the runs that are due, until *budget* seconds have passed; return the seconds until the next ones.

        Raises StoreError if Redis refuses work for now, or the keys of schedules cannot be used. Whatever else fails
        concerns one schedule, and is noted among its events.
        """
        stop_at = monotonic() + budget
        while True:
            now, left, found = self._store.due(BATCH)
            if not found:
                return left
            changes: list[Change] = []
            for stored in found:
                changes += self._changes(stored, now)
                if monotonic() >= stop_at:
                    break
            for change, is_made in zip(changes, self._store.change(changes), strict=True):
                if is_made and change.message is not None:
                    self._calls.pop(str(change.message.id), None)
            if monotonic() >= stop_at:
                return 0.0

    def message(
        self, definition: Definition, id_: str, due: int, now: int, *, at: int = 0, following: int = 0
    ) -> Push | None:
        """Return the message of a run that is due at *due* and sent *now*; None if it is stored already.

        The ``apply_async`` of its task makes the call. Only the message of a unique task may be stored already. Its eta
        is *at*, by default now; *following* is the next due time. All times are in ms. Raises DuplicateTaskError if its
        key is taken, NotSentError if ``apply_async`` sends nothing, RedisQueueError if it raises, and Celery's errors.
        """
        times = {}
        if definition.expires == "next":
            times = {} if not following else {"expires": from_ms(definition.fire_ms(following))}
        elif definition.expires is not None:
            times["expires"] = from_ms(now + definition.expires)
        # What waited for Redis must not expire meanwhile.
        given = {**self._call(definition, id_, due, times), **times, "add_to_parent": False}
        countdown = given.pop("countdown", None) or 0
        given["eta"] = given.get("eta") or from_ms((at or now) + countdown * 1000)
        with self._sends.keep(id_) as kept:
            result = self._app.send_task(**given)
        if not kept:
            if str(result.id) != id_:
                raise DuplicateTaskError(task_id=str(result.id))
            return None
        ((envelope, moment),) = kept
        call = new_call()
        with schedule_spans([(envelope.with_call(call), moment)]) as traced:
            ((message, _),) = traced
            push = self._writer.as_push(message, moment, mark=call)
        # Here it is the error of one schedule; in the call that stores all of a batch it would be that of all.
        self._store.check(push)
        return push

    def _call(self, definition: Definition, id_: str, due: int, times: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call of a run, which the task made before if its message could not be stored then."""
        known = self._calls.get(id_)
        if known is not None and known[0] == definition:
            return known[1]
        options = dict(definition.options)
        headers = {**(options.pop("headers", None) or {}), SCHEDULE: definition.name, "celery_beat_task": True}
        options |= {"headers": {**headers, SCHEDULED_FOR: from_ms(due).isoformat()}, **times}
        apply_async = ApplyAsync.of(self._app).tried
        call, result = apply_async(definition.task, definition.args, definition.kwargs, id_, options)
        if call is None:
            raise NotSentError(f"{definition.task}: its apply_async sent nothing, and returned {quoted(result)}")
        if len(self._calls) >= MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[id_] = definition, call
        return call

    def _changes(self, stored: Stored, now: int) -> Iterator[Change]:
        state, definition = stored.state, stored.definition
        if state is None or definition is None:
            logger.error(
                "schedule %s cannot be read: %s", stored.name, stored.error, extra={"action": "schedule_unreadable"}
            )
            self._store.set_aside(stored.name, now + UNREADABLE)
            return
        try:
            yield from self._step(stored, definition, state, now)
        except Exception as error:  # it must not keep other schedules from being sent
            if isinstance(error, StoreError) and is_outage(error):
                raise
            text = hide_secrets(text_of(error))
            logger.error("schedule %s is not sent: %s", stored.name, text, extra={"action": "schedule_failed"})
            late = max(0, now - state.due)
            look = now + min(max(late, RETRY[0]), RETRY[1])
            yield Change(stored.name, stored.state_text, state, look=look, events=[Event("error", now, text=text)])

    def _step(self, stored: Stored, definition: Definition, state: State, now: int) -> Iterator[Change]:
        times = calendar_of(definition)
        if state.is_paused:
            step = resumed(definition, state, now, times)
        else:
            step = plan(definition, state, now, times, lambda: self.is_over(definition, state, now))
        if step.cancels:
            self._app.control.revoke(state.active, terminate=True)
        yield from self.sent(stored, definition, step, now)

    def sent(self, stored: Stored, definition: Definition, step: Step, now: int) -> Iterator[Change]:
        """Yield the changes that send the runs of *step*, one after the other."""
        state, events = step.state, step.events
        messages: list[tuple[int, str, Push | None]] = []
        dues = [*step.sends, step.state.due]
        for due, after_due in pairwise(dues):
            id_ = self._store.run_id(definition.name, due)
            try:
                at = definition.fire_ms(due)
                messages.append((due, id_, self.message(definition, id_, due, now, at=at, following=after_due)))
            except DuplicateTaskError as error:
                state = state.skip("taken", 1)
                why = NOT_SENT if isinstance(error, NotSentError) else "taken"
                events = [*events, Event("skipped", now, error.task_id or NONE, due, due, 1, why)]
        before, last = stored.state_text, len(messages) - 1
        if not messages:
            yield Change(stored.name, before, state, look=step.look, events=events)
        for number, (due, id_, message) in enumerate(messages):
            next_due = messages[number + 1][0] if number < last else step.state.due
            after = replace(state, due=next_due, runs=state.runs + number + 1, active=id_, active_at=now)
            look = now if number < last else step.look
            events = [*events, Event("sent", now, id_, due)]
            yield Change(stored.name, before, after, look=look, events=events, message=message)
            before, events = str(after).encode(), []

    def is_over(self, definition: Definition, state: State, now: int) -> bool:
        """Return whether the run that has not ended, as far as is known, can block no more.

        It is a dead letter, or since so long no worker has reported that it runs, and it does not wait in the store.
        """
        place = self._store.place_of(state.active)
        if place == "dead":
            return True
        if place == "waiting" or now - state.active_at <= definition.overlap_timeout:
            return False
        return self._workers.find_running(state.active) is None


def next_runs(definition: Definition, state: State, limit: int, now: int) -> list[datetime]:
    """Return the next due times after *state*, up to *limit*, as if it were not paused.

    Those of a paused one are later than *now* (ms): a resume skips what fell due before.
    """
    most = limit if definition.max_runs is None else min(limit, max(0, definition.max_runs - state.runs))
    times, first = calendar_of(definition), state.due
    if state.is_paused and 0 < first <= now:
        first = following(definition, state.since, now, times) or 0
    return [from_ms(due) for due in islice(dues_of(definition, state.since, first, times), most)]


def calendar_of(definition: Definition) -> Calendar:
    """Return the due times of *definition*. Raises InvalidValueError for a stored one that is not valid."""
    return _calendar(json.dumps([definition.rules, definition.timezone, definition.exclude, definition.dst]))


@lru_cache(maxsize=20_000)
def _calendar(text: str) -> Calendar:
    rules, timezone, exclude, dst = json.loads(text)
    return Calendar(check_rules(rules), check_timezone(timezone), read_exclusions(exclude), dst)
