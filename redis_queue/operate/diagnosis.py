"""Diagnosis: the doctor's findings of a Redis and, for a Celery app, of its workers, dispatchers and messages."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import celery
import kombu
import redis
from kombu.exceptions import OperationalError
from packaging.version import Version

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.options import counted, some_of
from redis_queue.basics.times import span_text
from redis_queue.celery.admission.admission import task_id_of
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.leases.connections import disabled_settings, low_visibility_timeout
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.queues.open import connected, on_redis
from redis_queue.celery.stored_tasks import has_leases
from redis_queue.doctor import Finding
from redis_queue.doctor import examine as examine_redis
from redis_queue.doctor import repair as repair_redis
from redis_queue.doctor.examination import each
from redis_queue.doctor.finding import CHECK_BROKER, Check, error, run, run_all, warning
from redis_queue.doctor.server import lacking
from redis_queue.errors import StoreUnavailableError
from redis_queue.operate.access import Access
from redis_queue.operate.incidents.registry import findings
from redis_queue.operate.incidents.situation import look
from redis_queue.operate.listing import LOOK_BYTES
from redis_queue.operate.schedules import ScheduleList
from redis_queue.operate.work_checks import ANSWER_WITHIN, CHECKS, consumed_queues, flow_places
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.codec import read_document
from redis_queue.store.commands import FETCH, LEASES
from redis_queue.store.ids import MAX_ID, readable
from redis_queue.store.scripts import Scripts

SAMPLE: Final = 10_000
"""Maximum number of messages in flight that are read; a random sample of more."""

MENDED: Final = Version("5.7")
"""The first release of Celery and of kombu without the faults of :func:`_old_versions`."""

NAMED: Final = 5
"""Maximum number of messages or names in a finding."""

LARGE: Final = 65_536
"""Bytes of a message above which it is not read for its task id."""

NO_INDEX, NO_LEASE, LEASE = b"123"


def examine(access: Access, *, ask: bool) -> list[Finding]:
    """Return the findings of all checks. With *ask* the workers of the app are asked, which writes to its broker.

    Raises StoreUnavailableError if Redis cannot be reached.
    """
    context = CheckContext(access, _workers(access.app) if ask and access.app is not None else {})
    elsewhere = consumed_queues(access.app) if ask and access.app is not None else None
    found = [
        *examine_redis(access.catalog.client, access.catalog.prefix),
        *run_all(CHECKS, [access]),
        *findings(look(access, elsewhere)),
        *run_all(IN_FLIGHT, [context]),
    ]
    if access.app is None:
        return found
    return [
        *found,
        *run_all({"dispatchers": _dispatchers, "tasks": _unknown_tasks}, [context]),
        *run("lease settings", _lease_settings, [access.app]),
        *run("versions", _old_versions, [access.app]),
        *run("flow places", flow_places, [access]),
    ]


def repair(access: Access, *, dry_run: bool) -> list[Finding]:
    """Make all possible repairs, as :func:`redis_queue.doctor.repair`, also of the messages in flight at the broker.

    Raises StoreUnavailableError if Redis cannot be reached, and StoreRefusedError if nothing can be read.
    """
    client, prefix = access.catalog.client, access.catalog.prefix
    return [*repair_redis(client, prefix, dry_run=dry_run), *_repair_in_flight(access, dry_run=dry_run)]


def _dispatchers(context: CheckContext) -> Iterator[Finding]:
    """A dispatcher sends due entries."""
    queue = context.access.delay_queue()
    if queue.dispatch_log.dispatchers():
        return
    say, what = (error, "entries wait, and") if queue.count() else (warning, "no entries wait yet, but")
    if context.answers:
        found = f"{what} none of the running workers dispatches: {some_of(sorted(context.answers), NAMED)}"
        advice = (
            "put DurableTasks(app) into the module that the workers load, or remove --without-dispatch or "
            "redis_queue_dispatch=False, and restart them; or run celery -A app redis-queue dispatch"
        )
    else:
        found = f"{what} no dispatcher was seen within the last minute"
        advice = "start a worker whose app has DurableTasks(app), or run celery -A app redis-queue dispatch"
    yield say(f"delay {queue.name}: {found}", advice)


def _lease_settings(app: Any) -> Iterator[Finding]:
    """With leases, tasks of a killed worker are redelivered."""
    if low := low_visibility_timeout(app):
        yield warning(*low)
    for name in disabled_settings(app) if has_leases(app) else ():
        yield warning(f"{name} is off: a task whose worker is killed is lost", f"leave {name} out, or set it to True")


def _old_versions(app: Any) -> Iterator[Finding]:
    """Celery and kombu have no known fault that concerns redelivered tasks or killed clients."""
    if Version(celery.__version__) < MENDED:
        yield warning(
            f"Celery {celery.__version__}: a task of a chord that runs twice may be counted twice, and the body of "
            "the chord starts too early",
            f"upgrade Celery to {MENDED} or later",
        )
    if on_redis(app) and Version(kombu.__version__) < MENDED:
        yield warning(
            f"kombu {kombu.__version__}: reply queues of clients that were killed stay in the broker forever",
            f"upgrade kombu to {MENDED} or later; delete old keys that end with .reply.celery.pidbox",
        )


def _unknown_tasks(context: CheckContext) -> Iterator[Finding]:
    """The workers know the tasks that wait, and those of schedules."""
    queue, known = context.access.delay_queue(), _known_tasks(context)
    # Only the next ones: reading all would take long.
    entries = queue.list(limit=CHUNK, max_bytes=LOOK_BYTES)
    tasks = Counter(TaskEntry.of(entry).task for entry in entries)
    strange = [f"{name} ({count:,})" for name, count in tasks.most_common() if name and name not in known]
    if strange:
        named = some_of(strange, NAMED)
        yield warning(
            f"delay {queue.name}: of the next {len(entries):,}, some call tasks that no worker knows: {named}",
            "deploy workers that have these tasks, or redis-queue scheduled cancel --task NAME",
        )
    rows = ScheduleList(context.access).page(None, CHUNK).items
    unsent = [f"{row.name} ({row.task})" for row in rows if row.task and row.state != "over" and row.task not in known]
    if unsent:
        yield warning(
            f"schedules call tasks that no worker knows: {some_of(unsent, NAMED)}",
            "deploy workers that have these tasks, or redis-queue schedules delete NAME",
        )


def _known_tasks(context: CheckContext) -> frozenset[str]:
    """Return the tasks of the workers that answered; those of the app if none did."""
    names = frozenset[str]().union(*context.answers.values())
    if names:
        return names
    app = context.access.app
    app.loader.import_default_modules()
    return frozenset(app.tasks)


def _workers(app: Any) -> dict[str, frozenset[str]]:
    # Errors of the broker, of any type, are not checked here.
    with contextlib.suppress(Exception):
        answers = app.control.inspect(timeout=ANSWER_WITHIN).registered() or {}
        # As "name [rate_limit=10/m]" where a task has one.
        return {str(name): frozenset(str(row).partition(" ")[0] for row in rows) for name, rows in answers.items()}
    return {}


@dataclass(frozen=True, slots=True)
class InFlightBroker:
    """The messages in flight at one Redis, and kombu's visibility *timeout*, if known. All methods raise StoreError."""

    scripts: Scripts
    keys: InFlightKeys
    timeout: float | None = None

    def sample(self) -> list[bytes]:
        """Return up to :data:`SAMPLE` delivery tags."""
        found: list[bytes] = self.scripts.command("HRANDFIELD", self.keys.unacked, SAMPLE)
        return found

    def flags(self, tags: Sequence[bytes], *, repair: bool = False) -> bytes:
        """Return a flag for each of *tags* (see lua/broker/repair.lua); with *repair* add lost ones to the index."""
        script = self.scripts.bind("broker/repair", None, **self.keys.by_name)
        return b"".join(script(now=0, repair=int(repair), more=chunk) for chunk in chunks(tags))

    def task_id(self, tag: bytes) -> str:
        """Return the id of the task in a message; "" if it is unknown."""
        if self.scripts.command("HSTRLEN", self.keys.unacked, tag) > LARGE:
            return ""
        try:
            found = task_id_of(read_document(self.scripts.command("HGET", self.keys.unacked, tag) or b"")[0])
        except (ValueError, TypeError, LookupError, RecursionError):
            return ""
        return readable(found[:MAX_ID])


@contextmanager
def in_flight_broker(access: Access) -> Iterator[InFlightBroker | None]:
    """Yield the broker of the app; without an app the Redis, as one without ``global_keyprefix``.

    None if it is not Redis. Raises StoreUnavailableError if it is away.
    """
    client = access.catalog.client
    if access.app is None:
        # kombu uses no Cluster.
        yield InFlightBroker(Scripts(client), InFlightKeys.under("")) if isinstance(client, redis.Redis) else None
    elif not on_redis(access.app):
        yield None
    else:
        try:
            with connected(access.app) as connection:
                channel = connection.default_channel
                timeout = float(channel.visibility_timeout)
                yield InFlightBroker(Scripts(client_of(channel)), InFlightKeys.of(channel), timeout)
        except OperationalError as failure:
            raise StoreUnavailableError(hide_secrets(str(failure))) from failure


@dataclass(frozen=True, slots=True)
class MessagesInFlight:
    """The messages in flight: a flag of each (see lua/broker/repair.lua), and names of the first lost ones.

    Lost ones are not in kombu's *index*. Those without a lease have kombu's *timeout* in seconds, if it is known.
    *failure* tells why the broker could not be asked.
    """

    flags: bytes = b""
    lost: Sequence[str] = ()
    index: str = ""
    timeout: float | None = None
    failure: str = ""


class CheckContext:
    """What several checks look at: the messages in flight at the broker of *access*, read once, and its workers.

    *answers*: the workers that answered a broadcast, if they were asked, with their tasks.
    """

    def __init__(self, access: Access, answers: Mapping[str, frozenset[str]]) -> None:
        self.access = access
        self.answers = answers

    @LazyProperty
    def in_flight(self) -> MessagesInFlight:
        """The messages in flight. Raises StoreError."""
        try:
            with in_flight_broker(self.access) as broker:
                return MessagesInFlight() if broker is None else _messages_in_flight(broker)
        except StoreUnavailableError as failure:
            return MessagesInFlight(failure=str(failure))

    def workers(self) -> tuple[list[str], list[str], list[str]]:
        """Return the workers with leases, those without, and those that do not report. Raises StoreError.

        Without their answers, of those that report only those count whose broker is the store.
        """
        rows = {row.name: row for row in self.access.monitor.workers.rows()}
        here = sorted(self.answers or (name for name, row in rows.items() if row.lists))
        reporting = [rows[name] for name in here if name in rows]
        return (
            [row.name for row in reporting if row.keeper is not None],
            [row.name for row in reporting if row.keeper is None],
            [name for name in here if name not in rows],
        )


def _messages_in_flight(broker: InFlightBroker) -> MessagesInFlight:
    tags = broker.sample()
    flags = broker.flags(tags)
    lost = [_named(broker, tag) for tag in _lost(tags, flags)[:NAMED]]
    return MessagesInFlight(flags, lost, broker.keys.index.decode(), broker.timeout)


def _lost(tags: Sequence[bytes], flags: bytes) -> list[bytes]:
    return sorted(tag for tag, flag in zip(tags, flags, strict=True) if flag == NO_INDEX)


def _named(broker: InFlightBroker, tag: bytes) -> str:
    text = tag.decode(errors="replace")[:MAX_ID]
    id_ = broker.task_id(tag)
    return f"task {id_} ({text})" if id_ else text


def unindexed(context: CheckContext) -> Iterator[Finding]:
    """Every message in flight at the broker is in kombu's index."""
    in_flight = context.in_flight
    if in_flight.failure:
        yield warning(f"could not be checked: {in_flight.failure}", CHECK_BROKER)
    if count := in_flight.flags.count(NO_INDEX):
        some = "at least " if len(in_flight.flags) >= SAMPLE else ""
        more = f" and {count - NAMED:,} more" if count > NAMED else ""
        yield error(
            f"{some}{counted(count, 'message')} in flight, but not in {in_flight.index}: lost if the worker is gone: "
            f"{', '.join(in_flight.lost)}{more}",
            "redis-queue doctor --fix",
            repairable=True,
        )


def broker_commands(context: CheckContext) -> Iterator[Finding]:
    """The broker has all commands of leases and atomic fetch."""
    app = context.access.app
    if app is not None and not has_leases(app):
        return
    with contextlib.suppress(StoreUnavailableError), in_flight_broker(context.access) as broker:
        if broker is None:
            return
        for need in (LEASES, FETCH):
            yield from lacking(broker.scripts, need, "the broker: ")


def workers_without_leases(context: CheckContext) -> Iterator[Finding]:
    """Workers without leases do not consume beside workers with leases."""
    in_flight, without_lease = context.in_flight, context.in_flight.flags.count(NO_LEASE)
    if in_flight.failure:
        yield warning(f"could not be checked: {in_flight.failure}", CHECK_BROKER)
        return
    leased, bare, silent = context.workers() if in_flight.index else ([], [], [])
    if not (leased or LEASE in in_flight.flags) or not (bare or without_lease):
        return
    if without_lease:
        # Workers of stock Celery, or of an app with another store, whose leases nobody knows.
        bare += [f"{name} (no report)" for name in silent]
    who = f": {some_of(bare, NAMED)}" if bare else ""
    all_of = counted(len(in_flight.flags), "message")
    held = f"; without a lease: {without_lease:,} of {all_of} in flight" if without_lease else ""
    timeout = "" if in_flight.timeout is None else f" ({span_text(in_flight.timeout)})"
    yield warning(
        f"workers without leases consume beside workers with leases{who}{held}. If they are killed, their tasks come "
        f"back only by kombu's visibility timeout{timeout}; tasks that run for longer than it run twice",
        "start these workers from an app with DurableTasks(app)",
    )


def _repair_in_flight(access: Access, *, dry_run: bool) -> list[Finding]:
    """Add lost messages in flight to kombu's index: they come back after its visibility timeout.

    A message that was settled meanwhile stays away.
    """

    def work() -> Iterator[tuple[str, bool]]:
        with in_flight_broker(access) as broker:
            if broker is not None:
                tags = broker.sample()
                if count := len(_lost(tags, broker.flags(tags, repair=not dry_run))):
                    yield f"add {counted(count, 'message')} in flight to {broker.keys.index.decode()}", not dry_run

    try:
        return list(each("in flight", work))
    except StoreUnavailableError as failure:
        return [Finding("in flight", "error", f"could not be repaired: {failure}", CHECK_BROKER)]


IN_FLIGHT: Final[dict[str, Check[CheckContext]]] = {
    "in flight": unindexed,
    "broker commands": broker_commands,
    "workers without leases": workers_without_leases,
}
