"""CelerySettings: every ``redis_queue_*`` setting of a Celery app, with its default."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from celery import Celery

from redis_queue.admission.flows import check_flow_name
from redis_queue.admission.owners import field_of
from redis_queue.admission.rules import Flow, Unique
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import did_you_mean
from redis_queue.basics.times import Seconds, check_duration, duration_ms
from redis_queue.errors import ConfigurationError, InvalidDelayError, InvalidValueError
from redis_queue.keeper.renewal import DEFAULT_LEASE
from redis_queue.monitor.failures import MAX_DAYS, MAX_KEPT
from redis_queue.monitor.rows import MAX_RELEASE, release_text
from redis_queue.store.chunks import CHUNK, MAX_RATE, MIN_RATE
from redis_queue.store.settings import MAX_SHARDS

MAX_DELIVERIES: Final = 1000

NAMESPACE: Final = "redis_queue_"

OnStoreError = Literal["raise", "broker"]

Part = TypeVar("Part")


ATTRIBUTE: Final = "durable_tasks"
"""Attribute of an app that holds its DurableTasks."""


def extension_of(app: Celery) -> Any:
    """Return the DurableTasks of *app*, or None."""
    return vars(app).get(ATTRIBUTE)


def part_of(app: Celery, kind: Callable[[Celery], Part], name: str) -> Part:
    """Return what *app* keeps as *name*, made by *kind* at the first call."""
    attribute = f"{NAMESPACE}{name}"
    if attribute not in vars(app):
        vars(app).setdefault(attribute, kind(app))
    found: Part = vars(app)[attribute]
    return found


@dataclass(frozen=True, slots=True)
class Overdue:
    """Policy for entries that are long overdue, as after an outage.

    ``run``: send all at once. ``spread:N``: send at most N per second. ``skip:S``: entries overdue by more than S
    seconds become dead letters.
    """

    policy: Literal["run", "spread", "skip"] = "run"
    amount: float = 0.0

    @classmethod
    def parse(cls, text: Any) -> Overdue:
        """Read *text*; raises ConfigurationError."""
        name, _, number = str(text).partition(":")
        try:
            amount = float(number) if number else 0.0
        except ValueError:
            amount = math.nan
        if name == "run" and not number:
            return cls()
        if name == "spread" and MIN_RATE <= amount <= MAX_RATE:
            return cls("spread", amount)
        if name == "skip" and 0 < amount < math.inf:
            return cls("skip", amount)
        raise ConfigurationError(
            f"redis_queue_overdue={text!r}: must be 'run', 'spread:<number per second>' or 'skip:<seconds>'"
        )


@dataclass(frozen=True, slots=True)
class KeepFailures:
    """How many failed tasks are kept, and for how many days."""

    tasks: int = 1000
    days: float = 7.0

    @classmethod
    def parse(cls, value: Any) -> KeepFailures | None:
        """Read True, False (None is returned), or a mapping with *tasks* and *days*; raises ConfigurationError."""
        if isinstance(value, bool):
            return cls() if value else None
        if isinstance(value, Mapping) and not value.keys() - {"tasks", "days"}:
            found = cls(**value)
            days = found.days
            if not isinstance(days, bool) and isinstance(days, int | float) and 0 < days <= MAX_DAYS:
                _check_whole("keep_failures['tasks']", found.tasks, MAX_KEPT)
                return found
        raise ConfigurationError(
            f"{NAMESPACE}keep_failures={value!r}: must be True, False or {{'tasks': 1000, 'days': 7}}; "
            f"up to {MAX_KEPT:,} tasks and {MAX_DAYS} days"
        )


@dataclass(frozen=True)
class CelerySettings:
    """The settings of one app; each is ``redis_queue_<name>`` in its configuration."""

    #: URL of the Redis that keeps delayed tasks. Default: the broker, else the result backend, if that is one Redis.
    url: str | None = None
    #: First part of every key.
    prefix: str = "redis_queue"
    #: Name of the DelayQueue that keeps delayed tasks.
    delay_queue: str = "scheduled"
    #: Number of hash tags over which the DelayQueue is spread, for Redis Cluster. Fixed once entries exist.
    shards: int = 1
    #: Shorter delays (seconds or timedelta) are left to the broker and the worker's memory.
    min_delay: Seconds = 0.0
    #: Whether workers dispatch; like ``--without-dispatch``, but for all workers.
    dispatch: bool = True
    #: Longest time (seconds or timedelta) that a dispatcher trusts its wake-up before it looks by itself.
    dispatch_interval: Seconds = 5.0
    #: Entries per dispatch, 1 to 500.
    dispatch_batch: int = CHUNK
    #: Where the broker is not the store: how long (seconds or timedelta, 2 to 3600) a dispatcher may hold entries that
    #: it sends. Entries of a killed dispatcher are sent that much later.
    dispatch_lease: Seconds = 60.0
    #: Policy for long overdue entries: "run", "spread:<number per second>" or "skip:<seconds>".
    overdue: str = "run"
    #: With leases: how often a task that takes its worker down is started, 1 to 1000, before it becomes a dead
    #: letter. A task's own ``max_deliveries`` has precedence.
    max_deliveries: int = 5
    #: With leases: how long (seconds or timedelta, 2 to 3600) a worker leases the messages that it holds; it renews
    #: while it lives. Tasks of a killed worker start again within one and a half times as long. At most
    #: ``visibility_timeout`` of the broker.
    task_lease: Seconds = DEFAULT_LEASE
    #: With leases on a Redis broker: whether workers fetch and settle messages in batches, and record each as in
    #: flight in the step that takes it out of its queue. kombu records it afterwards, and a worker killed in between
    #: loses it. Needs kombu 5.7; with other versions workers log what they lack, and consume without it.
    atomic_fetch: bool = True
    #: Whether dispatchers send the app's ``beat_schedule``, so that no beat is needed. Stock beat must not run then.
    schedules: bool = False
    #: Whether workers report each second what they do, for the dashboard, metrics and probes.
    monitor: bool = True
    #: The release of your app that workers report: charts mark its changes, runs and failures name it. 1 to 64
    #: printable characters. Default: the first of the environment variables ``REDIS_QUEUE_RELEASE``, ``GIT_SHA``,
    #: ``GIT_COMMIT``, ``SOURCE_VERSION``, ``HEROKU_SLUG_COMMIT``, ``SENTRY_RELEASE`` and ``RELEASE`` that is set. Needs
    #: ``monitor``.
    release: str | None = None
    #: Tasks that failed for good, which workers keep to be looked at and retried: True (the last 1,000 for 7 days),
    #: False, or a mapping such as ``{"tasks": 1000, "days": 7}``, up to 100,000 tasks and 90 days. Needs ``monitor``.
    keep_failures: bool | Mapping[str, Any] = True
    #: Whether the start of the arguments, as Celery writes them for logs, is kept with running tasks, runs that ended,
    #: and failures. Without ``keep_failures``, runs have none either. The message of a failure, for its retry, contains
    #: them in any case.
    keep_arguments: bool = True
    #: URL of RabbitMQ's management API, such as ``http://user:password@host:15672``, for the counts that only it tells:
    #: messages in flight, and rates.
    management_url: str | None = None
    #: Further queues and exchanges, besides the configured ones, that stored tasks may be sent to (``*`` and ``?``
    #: allowed). They are declared as their senders declared them. Default: all; missing ones are made without bindings.
    allowed_queues: Sequence[str] | None = None
    #: Flow control: limits, rates and turns of queues and tasks, such as ``{"queue:reports": {"limit": 10}}``. A value
    #: has the arguments of :class:`redis_queue.Flow`; that of a task has precedence over ``flow=`` of its decorator.
    flow: Mapping[str, Any] = field(default_factory=dict)
    #: Unique tasks, of which only one may wait, or wait or run, such as ``{"shop.sync": {"key": "{shop_id}"}}``. A
    #: value has the arguments of :class:`redis_queue.Unique`, and precedence over ``unique=`` of the decorator.
    unique: Mapping[str, Any] = field(default_factory=dict)
    #: When the store is unavailable: "raise" or "broker" (the broker's own eta). Default: a publish raises, a retry
    #: goes to the broker, since Celery drops a task whose retry raises.
    on_store_error: OnStoreError | None = None

    def __post_init__(self) -> None:
        Overdue.parse(self.overdue)
        KeepFailures.parse(self.keep_failures)
        read_flows(self.flow)
        read_uniques(self.unique)
        for name in ("prefix", "delay_queue"):
            text = getattr(self, name)
            _require(isinstance(text, str) and text.isprintable(), name, text, "printable characters")
        known = self.release is None or release_text(self.release) == self.release
        _require(known, "release", self.release, f"1 to {MAX_RELEASE} printable characters")
        _check_whole("dispatch_batch", self.dispatch_batch, CHUNK)
        _check_whole("max_deliveries", self.max_deliveries, MAX_DELIVERIES)
        _check_whole("shards", self.shards, MAX_SHARDS)
        _check_seconds("min_delay", self.min_delay, 0, 86400)
        _check_seconds("dispatch_interval", self.dispatch_interval, 0.1, 60)
        _check_seconds("dispatch_lease", self.dispatch_lease, 2, 3600)
        _check_seconds("task_lease", self.task_lease, 2, 3600)
        for name in ("dispatch", "schedules", "atomic_fetch", "monitor", "keep_arguments"):
            _require(isinstance(value := getattr(self, name), bool), name, value, "True or False")
        if self.management_url is not None:
            _check_http("management_url", self.management_url)
        queues = () if self.allowed_queues is None else self.allowed_queues
        are_names = isinstance(queues, list | tuple) and all(isinstance(item, str) and item for item in queues)
        _require(are_names, "allowed_queues", queues, "a list of names")
        on_error = self.on_store_error
        _require(on_error in (None, "raise", "broker"), "on_store_error", on_error, "'raise' or 'broker'")

    @property
    def overdue_policy(self) -> Overdue:
        """The overdue policy."""
        return Overdue.parse(self.overdue)

    @property
    def failures_kept(self) -> KeepFailures | None:
        """How many failures are kept, and for how long; None for none."""
        return KeepFailures.parse(self.keep_failures) if self.monitor else None

    @property
    def flows(self) -> dict[str, Flow]:
        """The configured flows, by name."""
        return read_flows(self.flow)

    @property
    def uniques(self) -> dict[str, Unique]:
        """The configured unique tasks, by name."""
        return read_uniques(self.unique)

    @LazyProperty
    def min_delay_seconds(self) -> float:
        """The shortest delay that is stored, in seconds."""
        return duration_ms(self.min_delay) / 1000

    @property
    def dispatch_interval_seconds(self) -> float:
        """The dispatch interval in seconds."""
        return duration_ms(self.dispatch_interval) / 1000

    @property
    def task_lease_seconds(self) -> float:
        """The lease of messages that a worker holds, in seconds."""
        return duration_ms(self.task_lease) / 1000

    @property
    def dispatch_lease_seconds(self) -> float:
        """The dispatch lease in seconds."""
        return duration_ms(self.dispatch_lease) / 1000

    @classmethod
    def of(cls, app: Celery) -> CelerySettings:
        """Return the settings of *app*; raises ConfigurationError for unknown names and invalid values."""
        known = [item.name for item in fields(cls)]
        for name in _names(app.conf):
            if name not in known:
                hint = did_you_mean(name, known, show=f"{NAMESPACE}{{}}".format)
                raise ConfigurationError(f"unknown setting {NAMESPACE}{name}: {hint}")
        given = {name: app.conf.get(f"{NAMESPACE}{name}") for name in known}
        _check_timezone(app)
        return cls(**{name: value for name, value in given.items() if value not in (None, "")})


def read_flows(value: Any) -> dict[str, Flow]:
    """Return the flows that the setting ``redis_queue_flow`` describes; raises ConfigurationError."""
    return _read_each("flow", value, check_flow_name, Flow.of, "{'queue:mail': {'limit': 10}}")


def read_uniques(value: Any) -> dict[str, Unique]:
    """Return the unique tasks that the setting ``redis_queue_unique`` describes; raises ConfigurationError."""
    return _read_each(
        "unique", value, lambda name: field_of(name, ""), Unique.of, "{'shop.sync': {'key': '{shop_id}'}}"
    )


def _read_each(
    setting: str, value: Any, check: Callable[[Any], Any], read: Callable[[Any], Part], example: str
) -> dict[str, Part]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{NAMESPACE}{setting}={value!r}: must be a mapping such as {example}")
    found: dict[str, Part] = {}
    for name, given in value.items():
        try:
            check(name)
            found[name] = read(given)
        except InvalidValueError as error:
            raise ConfigurationError(f"{NAMESPACE}{setting}[{name!r}]: {error}") from None
    return found


def _names(conf: Any) -> Iterator[str]:
    """Yield the names that are set, without the namespace, however the app was configured."""
    # Read first: only then does Celery know the prefix.
    keys = [key for source in conf.maps for key in source if isinstance(key, str)]
    prefix = str(getattr(conf, "prefix", None) or "").lower()
    for key in keys:
        name = key.lower()
        # Without the app's prefix, Celery reads a name only in the exact spelling of its own code.
        if prefix and not name.startswith(prefix) and key != name:
            continue
        if name.removeprefix(prefix).startswith(NAMESPACE):
            yield name.removeprefix(prefix).removeprefix(NAMESPACE)


def _check_timezone(app: Celery) -> None:
    try:
        str(app.timezone)
    except (LookupError, ValueError, TypeError, AttributeError, OSError) as error:
        raise ConfigurationError(f"timezone={app.conf.timezone!r}: no time zone has this name") from error


def _require(valid: bool, name: str, value: object, what: str) -> None:
    if not valid:
        raise ConfigurationError(f"{NAMESPACE}{name}={value!r}: must be {what}")


def _check_http(name: str, url: object) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) and url.isprintable() else None
        valid = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        # The URL has a password, which no message shows.
        raise ConfigurationError(f"{NAMESPACE}{name}: must be like http://user:password@host:15672")


def _check_whole(name: str, value: object, high: int) -> None:
    valid = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high
    _require(valid, name, value, f"a whole number from 1 to {high}")


def _check_seconds(name: str, value: Seconds, low: float, high: float) -> None:
    try:
        check_duration(f"{NAMESPACE}{name}", value, low, high)
    except InvalidDelayError as error:
        raise ConfigurationError(str(error)) from None
