"""Find an app and prepare it for a test: its store, and what it has instead of a broker and a result backend."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from datetime import datetime, timedelta
from functools import cached_property
from importlib import import_module
from inspect import signature
from typing import Any, Final

from celery import Celery, _state
from celery.backends.base import KeyValueStoreBackend

from redis_queue.celery.durable_tasks import DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.producer import InterceptingProducer
from redis_queue.celery.settings import ATTRIBUTE, extension_of
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.delay.entries import EntryWriter
from redis_queue.delay.model import Conflict, Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.store.base_queue import Shards
from redis_queue.store.scripts import Clock

_MISSING: Final = object()

_BROKER: Final = "memory://"


def find_app(name: str) -> Any:
    """Return the app ``package.module:attribute``; without an attribute, the module's ``app`` or ``celery``.

    Raises ImportError or AttributeError for an unknown name, TypeError for another kind of object.
    """
    place, _, attribute = name.partition(":")
    module = import_module(place)
    apps = (name for name in ("app", "celery") if isinstance(getattr(module, name, None), Celery))
    names = attribute.split(".") if attribute else [next(apps, "app")]
    found: Any = module
    for part in names:
        found = getattr(found, part)
    if not isinstance(found, Celery):
        raise TypeError(f"{'.'.join(names)} of {place} is a {type(found).__name__}, not a Celery app")
    return found


class Patches:
    """Set attributes and items; :meth:`undo` restores the former values, last change first."""

    def __init__(self) -> None:
        self._undoing: list[Callable[[], None]] = []

    def put(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Set an item; ``vars(object)`` is a mapping too."""
        self._remember(mapping, key)
        mapping[key] = value

    def drop(self, mapping: MutableMapping[Any, Any], key: Any) -> None:
        """Remove an item if it exists; :meth:`undo` also removes one that was set later."""
        self._remember(mapping, key)
        mapping.pop(key, None)

    def keep(self, items: set[Any]) -> None:
        """Remember the members of a set."""
        before = set(items)

        def undo() -> None:
            items.clear()
            items.update(before)

        self._undoing.append(undo)

    def undo(self) -> None:
        """Restore all former values."""
        while self._undoing:
            self._undoing.pop()()

    def _remember(self, mapping: MutableMapping[Any, Any], key: Any) -> None:
        before = mapping.get(key, _MISSING)

        def undo() -> None:
            if before is _MISSING:
                mapping.pop(key, None)
            else:
                mapping[key] = before

        self._undoing.append(undo)


class OrderedWriter(EntryWriter):
    """Remember the order of pushes, also within a millisecond."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards)
        self.order: dict[str, int] = {}
        self._count = itertools.count(1)

    def push(self, items: Iterable[Push | Any], on_conflict: Conflict) -> Iterator[tuple[str, int]]:
        """Store *items* and number them."""
        for id_, flag in super().push(items, on_conflict):
            self.order[id_] = next(self._count)
            yield id_, flag


class TravelQueue(DelayQueue):
    """A DelayQueue that knows the order in which its entries were pushed."""

    _writer_class = OrderedWriter
    _writer: OrderedWriter

    @property
    def order(self) -> dict[str, int]:
        """Position of each id."""
        return self._writer.order


class TravelStore(Store):
    """The store of an app, with *clock* as the time of its DelayQueue."""

    def __init__(self, app: Celery, clock: Clock) -> None:
        super().__init__(app)
        self.clock = clock

    def delay_queue(self) -> TravelQueue:
        """Return the DelayQueue of task calls."""
        found = super().delay_queue()
        return TravelQueue(found.name, found.client, settings=found.settings, clock=self.clock)


def install(
    app: Celery,
    patches: Patches,
    *,
    url: str,
    clock: Clock,
    now: Callable[[], datetime],
    take: Take,
    after_send: Callable[[], None],
    before_wait: Callable[[str], None],
    flow_sender: Any,
) -> DurableTasks:
    """Let *app* store delayed tasks in the Redis *url* by *clock*, without a broker and a result backend.

    Messages that are sent at once go to *take*, those of flows to *flow_sender*. *patches* keeps the state of the app.
    *after_send* is called after each send, *before_wait* with the id of each task before its result is awaited.
    """
    _configure(app, patches, url)
    attributes = vars(app)
    before = type(app.amqp)  # read first: this may install DurableTasks
    if delayed_of(app) is None:
        _remember_parts(app, patches)
    patches.put(attributes, "amqp", capture_amqp(app, before, take, now))
    patches.put(attributes, "_pool", None)
    patches.put(attributes, "_backend_cache", MemoryResults(app, before_wait))
    patches.put(attributes, "redis_queue_store", TravelStore(app, clock))
    patches.put(attributes, "send_task", _followed(app.send_task, after_send))
    durable: DurableTasks = extension_of(app) or DurableTasks(app, leases=False)
    for name in ("settings", "queue", "writer", "flow", "unique"):
        patches.drop(vars(durable), name)
    patches.put(vars(durable), "flow_sender", flow_sender)
    durable.attach(app.amqp)
    # Shared tasks belong to the current app, which the fixture celery_app of Celery does not set.
    patches.put(vars(_state._tls), "current_app", app)
    # Threads without a current app use the default app.
    patches.put(vars(_state), "default_app", app)
    return durable


def _configure(app: Celery, patches: Patches, url: str) -> None:
    settings = {
        "task_always_eager": False,  # the test runs sent tasks itself
        **dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url"), _BROKER),
        "broker_transport_options": {},
        "broker_use_ssl": False,
        "redis_queue_url": url,
        "redis_queue_min_delay": 0,
        "redis_queue_on_store_error": "raise",
        "redis_queue_dispatch": False,  # only the test moves due entries
    }
    _ = app.conf.task_always_eager  # the first read loads the settings and drops earlier changes
    for name, value in settings.items():
        patches.put(app.conf.changes, name, value)


def _remember_parts(app: Celery, patches: Patches) -> None:
    patches.keep(app.steps["worker"])
    patches.keep(app.steps["consumer"])
    patches.keep(app.user_options["worker"])
    patches.drop(vars(app), ATTRIBUTE)
    patches.drop(vars(app), "control")
    patches.put(vars(app), "control_cls", app.control_cls)


def _followed(send: Callable[..., Any], after_send: Callable[[], None]) -> Callable[..., Any]:
    def send_task(*args: Any, **kwargs: Any) -> Any:
        result = send(*args, **kwargs)
        after_send()
        return result

    return send_task


Take = Callable[[Envelope], bool]
"""Called with each message that is sent at once; True: it was taken, False: the broker gets it."""


def capture_amqp(app: Celery, kind: Any, take: Take, now: Callable[[], datetime]) -> Any:
    """Return an AMQP object for *app*, a subclass of *kind*, that gives its messages to *take*.

    ``expires`` in seconds counts from *now*.
    """

    class CapturingAMQP(kind):  # type: ignore[misc]
        def _create_task_sender(self) -> Any:
            send = super()._create_task_sender()

            def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
                if isinstance(producer, InterceptingProducer):  # it has a delay: the store gets it
                    return send(producer, name, message, **options)

                by = InterceptingProducer(app, producer, lambda envelope, _: take(envelope))
                return send(by, name, message, **options)

            return send_task_message

        @cached_property
        def create_task_message(self) -> Any:
            make = self.task_protocols[app.conf.task_protocol]
            shape = signature(make)

            def create_task_message(*args: Any, **named: Any) -> Any:
                call = shape.bind(*args, **named)
                if isinstance(expires := call.arguments.get("expires"), numbers.Real):
                    call.arguments["expires"] = now() + timedelta(seconds=float(expires))
                return make(*call.args, **call.kwargs)

            return create_task_message

    return CapturingAMQP(app)


class MemoryResults(KeyValueStoreBackend):  # type: ignore[misc]
    """A result backend in this process that keeps the objects themselves, as Celery does for eager tasks.

    *before_wait* is called with the id of each task before its result is awaited.
    """

    implements_incr = True
    thread_safe = True

    def __init__(self, app: Any, before_wait: Callable[[str], None]) -> None:
        super().__init__(app=app)
        self._values: dict[bytes, Any] = {}
        self._before_wait = before_wait

    def get(self, key: bytes) -> Any:
        """Return a value, or None."""
        return self._values.get(key)

    def mget(self, keys: Iterable[bytes]) -> list[Any]:
        """Return several values."""
        return [self._values.get(key) for key in keys]

    def set(self, key: bytes, value: Any) -> None:
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        """Forget a value."""
        self._values.pop(key, None)

    def incr(self, key: bytes) -> int:
        value: int = self._values.get(key, 0) + 1
        self._values[key] = value
        return value

    def encode(self, data: Any) -> Any:
        return data

    decode = encode

    def prepare_exception(self, exc: Any, serializer: Any = None) -> Any:  # noqa: ARG002 - as Celery calls it
        """Keep the exception itself."""
        return exc

    def exception_to_python(self, exc: Any) -> Any:
        return exc

    def wait_for(self, task_id: str, *args: Any, **kwargs: Any) -> Any:
        self._before_wait(task_id)
        return super().wait_for(task_id, *args, **kwargs)

    def get_many(self, task_ids: Iterable[str], *args: Any, **kwargs: Any) -> Any:
        """Yield several results as they come."""
        ids = list(task_ids)
        for task_id in ids:
            self._before_wait(task_id)
        return super().get_many(ids, *args, **kwargs)
