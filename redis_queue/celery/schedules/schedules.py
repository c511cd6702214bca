"""Schedules: periodic tasks of an app that are kept in its store, and can be changed at run time."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal
from uuid import uuid4

from celery import Celery

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import logger_of
from redis_queue.basics.options import did_you_mean
from redis_queue.basics.times import Seconds, duration_ms, from_ms, point_ms
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.schedules.calendar import check_timezone, tzdata_version
from redis_queue.celery.schedules.rules import read_exclusions, read_rules, rules_text
from redis_queue.celery.schedules.runs import Runs, calendar_of, next_runs
from redis_queue.celery.settings import extension_of
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import ConfigurationError, DuplicateTaskError, InvalidValueError, RedisQueueError
from redis_queue.monitor.monitor import Workers
from redis_queue.schedules.definition import Definition, Dst, Missed, Overlap
from redis_queue.schedules.state import NEVER, NONE, REASONS, Event, Run, State, resumed, runs_of
from redis_queue.schedules.store import Change, ScheduleStore, Stored, new_generation
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.store.keys import is_name

logger = logger_of(__name__)

MAX_BACKFILL: Final = 1000
"""Maximum number of runs of one backfill."""

MAX_NEXT: Final = 1000

MAX_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is now. *error* says why it cannot be sent, if it cannot be read; then most fields are empty.

    *next_run* is the next due time; None if it is paused or over. *pause_ends*: when a pause ends by itself. *skipped*
    counts runs by reason: "late", "overlap", "paused", "taken". *failures* counts the last runs that failed in a row.
    """

    name: str
    task: str = ""
    rules: str = ""
    timezone: str = ""
    next_run: datetime | None = None
    paused: bool = False
    pause_ends: datetime | None = None
    static: bool = False
    app: str = ""
    runs: int = 0
    failed: int = 0
    failures: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    since: datetime | None = None
    running: str = ""
    error: str = ""
    definition: Definition | None = None

    @classmethod
    def of(cls, stored: Stored) -> Schedule:
        """Return *stored* as people read it."""
        state, definition = stored.state, stored.definition
        if state is None or definition is None:
            return cls(stored.name, error=stored.error)
        error = ""
        try:
            rules = rules_text(definition.rules)
            calendar_of(definition)
        except RedisQueueError as found:
            rules, error = "", str(found)
        ends = stored.look if state.is_paused and stored.look != NEVER else None
        return cls(
            name=stored.name,
            task=definition.task,
            rules=rules,
            timezone=definition.timezone,
            next_run=from_ms(state.due) if state.due and not state.is_paused else None,
            paused=state.is_paused,
            pause_ends=None if ends is None else from_ms(ends),
            static=definition.static,
            app=definition.app,
            runs=state.runs,
            failed=state.failed,
            failures=state.streak,
            skipped={reason: state.skipped_for(reason) for reason in REASONS},
            since=from_ms(state.since),
            running="" if state.active == NONE else state.active,
            error=error,
            definition=definition,
        )


class Schedules:
    """The schedules of *app*: ``DurableTasks(app).schedules``. Creating it does no I/O; all methods raise StoreError.

    Dispatchers send their runs: those of workers, of ``redis-queue dispatch``, and ``celery beat -S redis_queue``. A
    run is a message like any other; its headers have ``schedule``, the name, and ``scheduled_for``, the due time.
    Without an app, those whose runs *queue* gets can be seen, paused, resumed and deleted.
    """

    def __init__(self, app: Celery | None, queue: DelayQueue | None = None) -> None:
        self._known_app = app
        self._queue = queue
        self._warned: set[str] = set()

    @property
    def app(self) -> Celery:
        """The app. Raises ConfigurationError without one."""
        if self._known_app is None:
            raise ConfigurationError("the schedule needs the Celery app that sends it: name it with -A APP")
        return self._known_app

    @LazyProperty
    def _stored(self) -> StoredTasks:
        return StoredTasks.of(self.app)

    @LazyProperty
    def store(self) -> ScheduleStore:
        """What is stored."""
        return ScheduleStore(self._stored.queue if self._queue is None else self._queue)

    @LazyProperty
    def dispatch(self) -> Runs:
        """Sends the runs that are due. Raises ConfigurationError without DurableTasks with delays."""
        extension = extension_of(self.app)
        if extension is None or not extension.delays:
            raise ConfigurationError("schedules need DurableTasks(app) with delays")
        workers = Workers(self._stored.store.client, self._stored.store.prefix, self._stored.store.clock)
        return Runs(self.app, self.store, extension.sends, self._stored.writer, workers)

    def put(
        self,
        name: str,
        rules: Any,
        task: Any,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timezone: str | None = None,
        exclude: Iterable[Any] = (),
        dst: Dst = "wall",
        missed: Missed = "latest",
        window: Seconds | None = None,
        overlap: Overlap = "allow",
        overlap_timeout: Seconds = 3600,
        jitter: Seconds = 0,
        expires: Seconds | Literal["next"] | None = None,
        until: datetime | None = None,
        max_runs: int | None = None,
        pause_after_failures: int | None = None,
        **options: Any,
    ) -> Schedule:
        """Store the schedule *name*, which sends *task* at the times of *rules*; return it.

        *rules* is one rule or a list of rules: a cron expression, "every 10 s", seconds, a timedelta, or Celery's
        ``schedule``, ``crontab`` or ``solar``; *exclude* are dates without runs. They count in *timezone* (default:
        that of the app). *dst*: "celery" computes crontabs as Celery does where clocks change.

        *missed* says what is sent after an outage: the "latest" run, "all", or none ("skip"), if it is at most *window*
        late (default: any time). *overlap* says what happens while the run before has not ended: "allow" both, "skip"
        the new one, "queue" one, or "cancel" the running one; a run that no worker has reported for *overlap_timeout*
        does not count. *jitter* delays each run by up to so much. *expires*: workers discard a run so long after it
        was sent, or when the next one is due. It ends at *until* or after *max_runs*, and is paused after
        *pause_after_failures* in a row. *options* are those of ``apply_async``, such as ``queue=`` and ``priority=``.
        Durations are in seconds or timedelta.

        An equal schedule stays as it is, with its next run and its counts; another one begins from now, at zero. Raises
        InvalidValueError for invalid values, BodyError for arguments that JSON lacks, and nothing is stored then.
        """
        definition = self.definition(
            name,
            task,
            args=args,
            kwargs=kwargs,
            options=options,
            rules=read_rules(rules),
            timezone=timezone,
            exclude=read_exclusions(exclude),
            dst=dst,
            missed=missed,
            window=None if window is None else duration_ms(window, name="window"),
            overlap=overlap,
            overlap_timeout=duration_ms(overlap_timeout, name="overlap_timeout"),
            jitter=duration_ms(jitter, name="jitter"),
            expires=expires if expires in (None, "next") else duration_ms(expires, name="expires"),  # type: ignore[arg-type]
            until=None if until is None else point_ms(until, name="until"),
            max_runs=max_runs,
            pause_after_failures=pause_after_failures,
        )
        if definition.task not in self.app.tasks and definition.task not in self._warned:
            # Another app may have it.
            self._warned.add(definition.task)
            extra = {"action": "schedule_task_unknown"}
            logger.warning("schedule %s: this app does not have the task %s", name, definition.task, extra=extra)
        self.put_definition(definition)
        return self.find(name)

    def put_definition(self, definition: Definition, begin: State | None = None) -> bool:
        """Store *definition*, and return whether anything changed; else raise as :meth:`put` does.

        A new schedule begins with the state *begin*, by default from now, and so if that has no due time. One that
        exists is not due before it.
        """
        return self.store.update(definition.name, self.putting(definition, begin))

    def putting(
        self, definition: Definition, begin: State | None = None, *, now: int | None = None
    ) -> Callable[[Stored | None], Change | None]:
        """Return the change that :meth:`put_definition` makes, for each stored schedule. Raises what `put` raises.

        *now*: the time of the server in ms, if it is known.
        """
        now = self.store.now() if now is None else now
        first = begin.due if begin is not None and begin.due else self._first_due(definition, now)

        def make(stored: Stored | None) -> Change | None:
            before = None if stored is None else stored.definition
            old = None if stored is None else stored.state
            state = State(new_generation(), first, now) if begin is None else replace(begin, due=first)
            if before is not None:
                self._check_owner(before, definition)
            if old is not None:
                # What was paused here stays so, and what runs here is not sent again.
                paused = old.is_paused or state.is_paused
                if before is not None and before.means_the_same(definition):
                    later = begin if begin is not None and 0 < old.due < begin.due else old
                    state = replace(old, due=later.due, since=later.since, is_paused=paused)
                    if state == old:
                        return None
                else:
                    due, since = (first, state.since) if not old.runs else (self._first_due(definition, now), now)
                    state = replace(state, due=due, since=since, is_paused=paused)
                    state = replace(state, active=old.active, active_at=old.active_at)
            look = definition.fire_ms(state.due) if state.due else NEVER
            if state.is_paused:
                look = stored.look if stored is not None and old is not None and old.is_paused else NEVER
            text = b"" if stored is None else stored.state_text
            return Change(definition.name, text, state, definition.text(), look)

        return make

    def get(self, name: str) -> Schedule | None:
        """Return the schedule *name*, or None."""
        (stored,) = self.store.get([name])
        return None if stored is None else Schedule.of(stored)

    def find(self, name: str) -> Schedule:
        """Return the schedule *name*. Raises InvalidValueError, with a suggestion, for an unknown one."""
        found = self.get(name)
        if found is None:
            known = self.store.names(limit=CHUNK)
            hint = did_you_mean(name, known) if known else "there are none"
            raise InvalidValueError(f"unknown schedule {name!r}: {hint}")
        return found

    def list(self, *, offset: int = 0, limit: int = 100) -> builtins.list[Schedule]:
        """Return a page of up to *limit* (1 to 500) schedules, those first that are sent next."""
        check_limit(limit, CHUNK)
        # Other programs may have written names that no call takes.
        names = filter(is_name, self.store.names(offset, limit))
        return [Schedule.of(stored) for stored in self.store.get(names) if stored is not None]

    def next_runs(self, name: str, limit: int = 10) -> builtins.list[datetime]:
        """Return the next due times, up to *limit* (1 to 1,000), as if it were not paused."""
        check_limit(limit, MAX_NEXT)
        return next_runs(*self._readable(name), limit, self.store.now())

    def runs(self, name: str) -> builtins.list[Run]:
        """Return the last runs, at most about 30, the newest first."""
        self._readable(name)
        return runs_of(self.events(name))

    def events(self, name: str) -> builtins.list[Event]:
        """Return what happened to a schedule, at most about 60 events, the newest first."""
        return self.store.events(name)

    def pause(self, name: str, *, until: datetime | None = None, reason: str = "") -> Schedule:
        """Send no more runs, until *until* (aware) or :meth:`resume`. Runs that were sent are not affected."""
        ends = None if until is None else point_ms(until, name="until")
        if not isinstance(reason, str) or len(reason) > MAX_REASON:
            raise InvalidValueError(f"reason={reason!r}: must be a text of up to {MAX_REASON} characters")
        now = self.store.now()
        if ends is not None and ends <= now:
            raise InvalidValueError(f"until={until}: must be later than now")

        def make(stored: Stored | None) -> Change:
            known, _, state = self._known(name, stored)
            event = Event("paused", now, until=ends or 0, text=reason)
            look = NEVER if ends is None else ends
            # Else a dispatcher that has read the end of an earlier pause could still resume it.
            after = replace(state, generation=new_generation(), is_paused=True)
            return Change(name, known.state_text, after, look=look, events=[event])

        self.store.update(name, make)
        return self.find(name)

    def resume(self, name: str, *, catch_up: bool = False) -> Schedule:
        """End a pause. The runs of its time are skipped and counted; with *catch_up* they count as missed."""

        def make(stored: Stored | None) -> Change | None:
            known, definition, state = self._known(name, stored)
            if not state.is_paused:
                return None
            now = self.store.now()
            if catch_up:
                state = replace(state, is_paused=False, streak=0)
                look = definition.fire_ms(state.due) if state.due else NEVER
                event = Event("resumed", now, text="catches up")
                return Change(name, known.state_text, state, look=look, events=[event])
            step = resumed(definition, state, now, calendar_of(definition))
            return Change(name, known.state_text, step.state, look=step.look, events=step.events)

        # A long pause of a fast schedule takes several steps; a dispatcher goes on with them if this process dies.
        while self.store.update(name, make):
            pass
        return self.find(name)

    def run_now(self, name: str) -> str:
        """Send a run at once, besides those that are due; return its task id.

        Raises DuplicateTaskError if its task is unique, and waits or runs already.
        """
        id_ = self.store.run_id(name, uuid4().int)

        def make(stored: Stored | None) -> Change:
            now = self.store.now()
            change = self._extra_run(name, stored, Event("sent", now, id_, now, text="by hand"))
            if change.after is not None and change.after.active == NONE:
                change = replace(change, after=replace(change.after, active=id_, active_at=now))
            return change

        self.store.update(name, make)
        return id_

    def backfill(self, name: str, start: datetime, end: datetime) -> builtins.list[str]:
        """Send the runs that were due from *start* to before *end* (aware, up to now), at once; return their task ids.

        Runs among the last events that were sent are left out, and those that the schedule has not passed yet: it sends
        or counts them itself. So are those of a unique task while it waits or runs. Raises InvalidValueError for more
        than 1,000.
        """
        sent: builtins.list[str] = []
        for due in self.unsent(name, start, end):
            id_ = self.store.run_id(name, due)

            def make(stored: Stored | None, due: int = due, id_: str = id_) -> Change | None:
                if any(event.id == id_ and event.kind == "sent" for event in self.events(name)):
                    return None
                try:
                    return self._extra_run(name, stored, Event("sent", self.store.now(), id_, due, text="backfill"))
                except DuplicateTaskError:
                    return None

            if self.store.update(name, make):
                sent.append(id_)
        return sent

    def _extra_run(self, name: str, stored: Stored | None, event: Event) -> Change:
        known, definition, state = self._known(name, stored)
        message = self.dispatch.message(definition, event.id, event.due, event.at)
        state = replace(state, runs=state.runs + 1)
        return Change(name, known.state_text, state, look=known.look, events=[event], message=message)

    def unsent(self, name: str, start: datetime, end: datetime) -> builtins.list[int]:
        """Return the due times (ms) of the runs that :meth:`backfill` would send; raises what it raises."""
        definition, state = self._readable(name)
        now = self.store.now()
        low, high = point_ms(start, name="start"), min(point_ms(end, name="end"), now, state.due or now)
        dues = calendar_of(definition).occurrences(low - 1, high - 1, MAX_BACKFILL + 1, state.since)
        if len(dues) > MAX_BACKFILL:
            raise InvalidValueError(f"more than {MAX_BACKFILL:,} runs were due: choose a shorter time")
        sent = {event.id for event in self.events(name) if event.kind == "sent"}
        return [due for due in dues if self.store.run_id(name, due) not in sent]

    def delete(self, name: str, *, force: bool = False) -> bool:
        """Delete a schedule; False if there is none. Runs that were sent are not affected.

        Raises InvalidValueError for one of ``beat_schedule``: a worker that starts would store it again. *force*
        deletes it all the same, for an app that is gone.
        """

        def make(stored: Stored | None) -> Change | None:
            if stored is None:
                return None
            if not force:
                check_deletable(name, stored.definition)
            return Change(name, stored.state_text, None)

        return self.store.update(name, make)

    def definition(
        self,
        name: str,
        task: Any,
        *,
        args: Any,
        kwargs: Any,
        options: Mapping[str, Any],
        timezone: str | None = None,
        **known: Any,
    ) -> Definition:
        """Return the definition of a call of *task*.

        Raises InvalidValueError, BodyError for its arguments, and ConfigurationError for what needs reports of workers.
        """
        zone = check_timezone(str(self.app.timezone) if timezone is None else timezone)
        given = dict(options)
        countdown = given.pop("countdown", None)
        for what, value in (("args", args), ("kwargs", kwargs)):
            if callable(value):
                raise InvalidValueError(f"{what}: must be data; a function that makes them is not stored")
        call, own = TaskCall.of(task, args, kwargs, given)
        # The dispatcher that sends it may have another app, with other routes.
        call = call.routed(self.app)
        countdown = own.get("countdown") if countdown is None else countdown
        payload = call.payload(self.app)
        if countdown:
            payload["options"]["countdown"] = duration_ms(countdown, name="countdown") / 1000
        app, tzdata = self.app_name, tzdata_version()
        found = Definition(name=name, app=app, tzdata=tzdata, timezone=zone, **payload, **known)
        if not self._stored.settings.monitor and (found.overlap != "allow" or found.pause_after_failures):
            raise ConfigurationError(
                f"schedule {name!r}: overlap and pause_after_failures need the reports of workers: "
                "redis_queue_monitor = True"
            )
        if found.missed == "all" and found.expires == "next":
            raise InvalidValueError("missed='all' and expires='next': missed runs would expire; give one of them")
        if 0 < found.every <= found.jitter:
            raise InvalidValueError(
                f"jitter={found.jitter / 1000:g}: must be shorter than the interval of the schedule"
            )
        found.text()
        return found

    def _check_owner(self, before: Definition, definition: Definition) -> None:
        """Raise InvalidValueError if *definition* must not replace *before*."""
        if before.app != definition.app:
            raise InvalidValueError(
                f"schedule {definition.name!r} belongs to the app {before.app!r}: choose another name, or delete it"
            )
        if before.static and not definition.static:
            raise InvalidValueError(
                f"schedule {definition.name!r} is in the app's beat_schedule: change it there, or choose another name"
            )
        if definition.static and not before.static:
            raise InvalidValueError(
                f"schedule {definition.name!r} was put at run time: delete that one, or choose another name"
            )

    def _first_due(self, definition: Definition, now: int) -> int:
        """Return the first due time after *now*, in ms. Raises InvalidValueError if there is none."""
        if definition.until is not None and definition.until <= now:
            raise InvalidValueError(f"until={from_ms(definition.until)}: must be later than now")
        first = calendar_of(definition).next(now, now)
        if first is None or (definition.until is not None and first > definition.until):
            raise InvalidValueError(f"schedule {definition.name!r}: its rules have no due time before its end")
        return first

    def _readable(self, name: str) -> tuple[Definition, State]:
        (stored,) = self.store.get([name])
        _, definition, state = self._known(name, stored)
        return definition, state

    def _known(self, name: str, stored: Stored | None) -> tuple[Stored, Definition, State]:
        if stored is None:
            self.find(name)
            raise InvalidValueError(f"schedule {name!r} was deleted meanwhile")
        if stored.definition is None or stored.state is None:
            raise InvalidValueError(f"schedule {name!r}: {stored.error}")
        return stored, stored.definition, stored.state

    @property
    def app_name(self) -> str:
        """The name of the app, which owns its schedules."""
        return str(self.app.main or "app")


def check_deletable(name: str, definition: Definition | None) -> None:
    """Raise InvalidValueError if *definition* is in the ``beat_schedule`` of its app."""
    if definition is not None and definition.static:
        raise InvalidValueError(
            f"schedule {name!r} is in the beat_schedule of the app {definition.app!r}, and comes back when a worker "
            "starts: remove it there, or pause it; if the app is gone, delete it with force"
        )
