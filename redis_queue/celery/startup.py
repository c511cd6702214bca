"""Log on the startup of a worker that the extension is active, and warn if its Redis may evict keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps

from redis_queue.basics.logs import logger_of
from redis_queue.celery.background import Background
from redis_queue.celery.consume.connections import low_visibility_timeout, visibility_timeout_of
from redis_queue.celery.consume.safe_settings import ATTRIBUTE, active_defaults, disabled_settings
from redis_queue.celery.consume.steps import DeliveryLimitStep, LeaseStep
from redis_queue.celery.flow.gate import check_gate
from redis_queue.celery.flow.policy import FlowPolicy
from redis_queue.celery.flow.unique_policy import UniquePolicy
from redis_queue.celery.kombu.internals import lacking, versions
from redis_queue.celery.kombu.keys import lease_of
from redis_queue.celery.queues.known import known_queues
from redis_queue.celery.settings import NAMESPACE
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.errors import ConfigurationError, StoreError, UnsupportedServerError
from redis_queue.store.connection import check_server
from redis_queue.store.redis_errors import redact

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

_background: Final = Background()


class StartupStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Logs one line about the extension, and warns of a store that evicts keys."""

    # Start after the pool: a process should not fork while its threads run.
    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, without_dispatch: bool = False, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._dispatches = Store.of(parent.app).settings.dispatch and not without_dispatch
        check_flows(parent.app)
        warn_of_flows(parent.app)

    def start(self, parent: Any) -> None:
        """Log the line, and check the store in the background."""
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


def check_flows(app: Celery) -> None:
    """Raise ConfigurationError if *app* has flows that are wrong, or that its workers cannot keep.

    Imports the tasks of the app. Connects to no server.
    """
    policy, unique = FlowPolicy.of(app), UniquePolicy.of(app)
    if not policy.all() and not unique.all():
        return
    # First: without leases, acks_late is off, which the checks of tasks would report instead.
    if ATTRIBUTE not in vars(app) or delayed_of(app) is None:
        raise ConfigurationError("flow control needs DelayedTasks(app, leases=True)")
    policy.check()
    unique.check()
    check_gate(app)
    if not Store.of(app).settings.atomic_fetch or lacking():
        raise ConfigurationError(f"flow control needs atomic fetch: {versions()}, {NAMESPACE}atomic_fetch")


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
    parts = [f"store {redact(store.url)}"]
    if delayed_of(app) is not None:
        parts += [f"delay queue {store.delay_queue_name}", f"dispatching {_on(dispatches)}"]
    leases = ATTRIBUTE in vars(app)
    parts += [f"leases {_on(leases)}"]
    if leases:
        parts += [f"{name} on by default" for name in active_defaults(app)]
        parts += [f"{name} off: a killed worker loses its tasks" for name in disabled_settings(app)]
        parts += _parts_of_redis(app, fetches=store.settings.atomic_fetch and not lacking())
    return f"redis_queue: {', '.join(parts)}"


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
