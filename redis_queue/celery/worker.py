"""The boot steps of workers, and the one of every worker, which says what the extension does."""

from __future__ import annotations

from typing import Any, Final

import click
from celery import Celery, bootsteps

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.waits import Background
from redis_queue.celery.admission.policy import FlowPolicy, UniquePolicy
from redis_queue.celery.admission.sender import check_admission, uses_admission
from redis_queue.celery.async_tasks import wrap_async_tasks
from redis_queue.celery.control.panel import wrap_panel
from redis_queue.celery.control.revokes import RevokeStep
from redis_queue.celery.dispatch.loop import DispatchStep
from redis_queue.celery.intake import IntakeStep
from redis_queue.celery.kombu.internals import (
    LEASES,
    check,
    is_known_prefork,
    keep_partial_results,
    lacking,
    replace_killed_processes,
    versions,
)
from redis_queue.celery.kombu.keys import lease_of
from redis_queue.celery.leases.connections import (
    active_defaults,
    disabled_settings,
    low_visibility_timeout,
    visibility_timeout_of,
)
from redis_queue.celery.leases.poison import DeliveryLimitStep
from redis_queue.celery.leases.step import LeaseStep
from redis_queue.celery.monitor.step import MonitorStep
from redis_queue.celery.queues.names import known_queues
from redis_queue.celery.schedules.declaration import Declaration
from redis_queue.celery.settings import NAMESPACE, extension_of
from redis_queue.celery.store import Store
from redis_queue.celery.store_consumer.step import StoreConsumerStep
from redis_queue.celery.stored_tasks import delayed_of, has_leases
from redis_queue.errors import ConfigurationError, StoreError, UnsupportedServerError
from redis_queue.store.commands import DELAYS, FLOWS, require
from redis_queue.store.connection import check_server
from redis_queue.store.scripts import Scripts

logger = logger_of(__name__)

_background: Final = Background()


class StartupStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Logs one line about the extension, and warns of a store that evicts keys."""

    # Start after the pool: a process should not fork while its threads run.
    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, without_dispatch: bool = False, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._dispatches = Store.of(parent.app).settings.dispatch and not without_dispatch
        if delayed_of(parent.app) is not None:
            wrap_panel()
        if has_leases(parent.app):
            check(LEASES)
        check_flows(parent.app)
        wrap_async_tasks(parent.app)
        if self._dispatches and Store.of(parent.app).settings.schedules and delayed_of(parent.app) is not None:
            Declaration(extension_of(parent.app).schedules).static()
        warn_of_flows(parent.app)

    def start(self, parent: Any) -> None:
        """Log the line, and check the store. Raises ConfigurationError if it lacks a command that the app needs."""
        check_commands(parent.app)
        if parent.hub is not None and is_known_prefork(parent.pool):
            keep_partial_results(parent.hub, parent.pool)
            replace_killed_processes(parent.pool)
        logger.info(describe(parent.app, dispatches=self._dispatches), extra={"action": "worker_starts"})
        if low := low_visibility_timeout(parent.app):
            logger.warning("%s: %s", *low, extra={"action": "visibility_timeout_low"})
        store = Store.of(parent.app)
        _background.run(lambda: warn_of_eviction(store))

    def close(self, parent: Any) -> None:
        """Tell the consumer that the worker stops, if by its remote control as well, and that its loop has ended."""
        for step in getattr(getattr(parent, "consumer", None), "steps", ()):
            if isinstance(step, DeliveryLimitStep):
                step.told_to_stop()
            elif isinstance(step, LeaseStep):
                step.end_loop()


def install_steps(app: Celery, *, delays: bool, leases: bool) -> None:
    """Add the boot steps of both parts, and their option, to the workers of *app*."""
    app.steps["worker"].add(StartupStep)
    app.steps["consumer"].update((MonitorStep, IntakeStep))
    if leases:
        app.steps["consumer"].update((LeaseStep, DeliveryLimitStep, StoreConsumerStep))
    if delays:
        app.steps["worker"].add(DispatchStep)
        app.steps["consumer"].add(RevokeStep)
        app.user_options["worker"].add(
            click.Option(["--without-dispatch"], is_flag=True, help="Leave due entries to other workers (redis_queue).")
        )


def check_flows(app: Celery) -> None:
    """Raise ConfigurationError if *app* has flows that are wrong, or that its workers cannot keep.

    Imports the tasks of the app. Connects to no server.
    """
    policy, unique = FlowPolicy.of(app), UniquePolicy.of(app)
    if not policy.all() and not unique.all():
        return
    # First: without leases, acks_late is off, which the checks of tasks would report instead.
    if not has_leases(app) or delayed_of(app) is None:
        raise ConfigurationError("flows and unique tasks need DurableTasks(app) with delays and leases")
    policy.check()
    unique.check()
    check_admission(app)
    if not Store.of(app).settings.atomic_fetch or lacking():
        raise ConfigurationError(f"flows and unique tasks need atomic fetch: {versions()}, {NAMESPACE}atomic_fetch")


def unknown_flow_queues(app: Celery) -> list[str]:
    """Return a text for each flow of a queue to which no task of *app* goes; workers with ``-Q`` may consume it."""
    policy = FlowPolicy.of(app)
    return policy.unknown_queues(sorted(known_queues(app))) if policy.all() else []


def warn_of_flows(app: Celery) -> None:
    """Log a warning for each flow of an unknown queue, and each task that its queue does not count as it runs."""
    for text in unknown_flow_queues(app):
        logger.warning("%s", text, extra={"action": "flow_queue_unknown"})
    for name in FlowPolicy.of(app).early():
        logger.warning(
            "task %s is acknowledged when it starts: limits of its queue do not count it while it runs",
            name,
            extra={"action": "flow_early_ack"},
        )


def describe(app: Celery, *, dispatches: bool) -> str:
    """Return one line that describes what the extension does in a worker of *app*."""
    store = Store.of(app)
    delays, leases = delayed_of(app) is not None, has_leases(app)
    parts = [f"store {hide_secrets(store.url)}", f"delays {_on(delays)}"]
    if delays:
        parts += [f"delay queue {store.delay_queue_name}", f"dispatching {_on(dispatches)}"]
        parts += ["schedules on"] if store.settings.schedules else []
    parts += [f"reports {_on(store.settings.monitor)}", f"leases {_on(leases)}"]
    if leases:
        parts += [f"{name} on by default" for name in active_defaults(app)]
        parts += [f"{name} off: a killed worker loses its tasks" for name in disabled_settings(app)]
        parts += _parts_of_redis(app, fetches=store.settings.atomic_fetch and not lacking())
    return f"redis_queue: {', '.join(parts)}"


def check_commands(app: Celery) -> None:
    """Raise ConfigurationError if the store of *app* is there, and lacks a command that delays or flows need."""
    store = Scripts(Store.of(app).client)
    if delayed_of(app) is not None:
        require(store, DELAYS, "redis_queue_url")
    if uses_admission(app):
        require(store, FLOWS, "redis_queue_url")


def warn_of_eviction(store: Store) -> None:
    """Log a warning if the Redis of *store* may evict keys."""
    try:
        check_server(store.client)
    except UnsupportedServerError as error:
        logger.warning("the store: %s", error, extra={"action": "store_unsafe"})
    except StoreError as error:
        logger.info("the store cannot be checked: %s", error, extra={"action": "store_unknown"})


def _parts_of_redis(app: Celery, *, fetches: bool) -> list[str]:
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return []
        lease = lease_of(connection.transport_options, visibility_timeout_of(connection.transport_options))
        return [f"task_lease {lease:g} s", f"atomic fetch {_on(fetches)}"]


def _on(value: bool) -> str:
    return "on" if value else "off"
