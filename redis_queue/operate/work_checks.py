"""The doctor's checks of flows: their limits, workers, places and keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import redis
from kombu.exceptions import OperationalError

from redis_queue.admission.declarations import Declaration, Declarations
from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.options import counted, some_of
from redis_queue.celery.admission.admission import AdmissionKeys, places_without_message
from redis_queue.celery.brokers.redis import is_same_database
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.queues.open import connected, on_redis
from redis_queue.celery.schedules.calendar import tzdata_version
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.doctor import Finding
from redis_queue.doctor.finding import CHECK_BROKER, first, warning
from redis_queue.doctor.keyspace import foreign_keys
from redis_queue.errors import StoreError
from redis_queue.monitor.model import WorkerRow
from redis_queue.operate.access import Access
from redis_queue.operate.flows import KINDS, LimitsRow
from redis_queue.operate.queue_row import BROKEN
from redis_queue.operate.schedules import ScheduleList
from redis_queue.store.chunks import CHUNK
from redis_queue.store.redis_errors import UnlessRefused
from redis_queue.store.scripts import Scripts

ANSWER_WITHIN: Final = 1.0
"""Seconds to wait for answers of workers."""

MAX_APPS: Final = 5
"""Maximum number of apps that a finding names."""


def flow_limits(access: Access) -> Iterator[Finding]:
    """All apps declare the same limits for a flow."""
    catalog = access.catalog
    found = Declarations(Scripts(catalog.client), access.flows.redis_keys, catalog.clock).read()
    different = {name: apps for name, apps in found.items() if len({(app.limits, app.kind) for app in apps}) > 1}

    def finding(name: str) -> Finding:
        texts = some_of([f"{_text(app)} in {app.app}" for app in different[name]], MAX_APPS, " apps")
        return warning(
            f"flow {name} has {texts}: the worker that started last sets them for all",
            f"give all apps the same limits, or set them for all: redis-queue flow set {name}",
        )

    return first(sorted(different), finding, "flows have different limits in several apps", "redis-queue flow list")


def flow_places(access: Access) -> Iterator[Finding]:
    """The places of dead workers are freed."""
    catalog = access.catalog
    if _leased(access) != [] or not Scripts(catalog.client).command("HLEN", access.flows.redis_keys.held):
        # Workers with leases free them.
        return
    try:
        taken = _places_in_vain(access)
    except OperationalError as failure:
        yield warning(f"could not be checked: {hide_secrets(str(failure))}", CHECK_BROKER)
        return
    if taken:
        yield warning(
            f"{counted(taken, 'place')} in flows held by messages that are not in flight: no worker frees them",
            "start a worker of an app with flows: it frees them within one and a half times the visibility timeout",
        )


def schedule_zones(access: Access) -> Iterator[Finding]:
    """The time zone data of this host are as new as those of the hosts that stored schedules."""
    own, rows = tzdata_version(), ScheduleList(access).page(None, CHUNK).items
    newer = {row.name: row.schedule.definition.tzdata for row in rows if row.schedule.definition is not None}
    newer = {name: version for name, version in newer.items() if own and version > own}
    if newer:
        yield warning(
            f"this host has the time zone data {own}, and schedules were stored with newer ones: "
            f"{some_of([f'{name} ({version})' for name, version in newer.items()], MAX_APPS)}: here they may be due at "
            "other times",
            "update the time zone data of this host: the package tzdata of the system, or of PyPI",
        )


def flow_keys(access: Access) -> Iterator[Finding]:
    """The keys of flows have the expected types."""
    return foreign_keys(Scripts(access.catalog.client), access.flows.redis_keys.types(), "flows do not work")


def _leased(access: Access) -> list[WorkerRow] | None:
    """Return the workers with leases, which alone take tasks of flows; None if reports cannot be read."""
    with contextlib.suppress(*BROKEN):
        return [row for row in access.monitor.workers.rows() if row.keeper is not None]
    return None


def _places_in_vain(access: Access) -> int:
    flows, client = access.flows.redis_keys, access.catalog.client
    if on_redis(access.app):
        with connected(access.app) as connection:
            channel = connection.default_channel
            if _shares_store(access.app, channel):
                keys = AdmissionKeys(InFlightKeys.of(channel), flows)
                return len(places_without_message(keys, client_of(channel)))
    keys = AdmissionKeys(InFlightKeys.under(flows.taken), flows)
    return len(places_without_message(keys, client)) if isinstance(client, redis.Redis) else 0


def _shares_store(app: Any, channel: Any) -> bool:
    """Return whether the Redis of kombu's *channel*, the broker of *app*, is its store; True if that is unknown."""
    found = True
    if CelerySettings.of(app).url is not None:
        store = Store.of(app)
        with contextlib.suppress(StoreError), UnlessRefused():
            found = is_same_database(client_of(channel), store.client, store.prefix)
    return found


def _text(declaration: Declaration) -> str:
    kind = KINDS.get(declaration.kind, "")
    return " and ".join(filter(None, [f'"{LimitsRow.of(declaration.limits).text}"', kind]))


def consumed_queues(app: Any) -> frozenset[str]:
    """Return the queues that the workers of *app* consume by their answers: not all workers report."""
    # Errors of the broker, of any type, are not checked here.
    with contextlib.suppress(Exception):
        answers = app.control.inspect(timeout=ANSWER_WITHIN).active_queues() or {}
        return frozenset(str(queue.get("name")) for queues in answers.values() for queue in queues)
    return frozenset()


CHECKS: Final[dict[str, Callable[[Access], Iterator[Finding]]]] = {
    "flow limits": flow_limits,
    "flow keys": flow_keys,
    "schedule time zones": schedule_zones,
}
"""Checks of any Redis by what workers and producers write into it; the others need an app."""
