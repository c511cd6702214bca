"""What redis_queue uses of kombu, Celery, billiard and asgiref beyond their public interfaces, and whether it is there.

Everything that is private, or whose parameters matter, is listed here, and checked by its shape at the start. With
another kombu or Celery, an app sends as Celery does, and a worker consumes as without atomic fetch: never half. A
worker does not start without what its leases need. Steps of workers replace methods of their objects by
:func:`around`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, Final

import celery
import kombu
from celery import Celery, Task, _state, group
from celery.app import base
from celery.app.amqp import AMQP
from celery.app.autoretry import add_autoretry_behaviour
from celery.backends.redis import ResultConsumer
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request
from celery.worker.worker import WorkController
from kombu.asynchronous import Hub
from kombu.connection import Connection
from kombu.messaging import Consumer, Producer
from kombu.transport import redis, virtual

from redis_queue.basics.logs import logger_of
from redis_queue.errors import ConfigurationError

logger = logger_of(__name__)

KNOWN: Final = "'celery<5.8' 'kombu<5.8'"
"""Requirements of versions that have all that is listed here."""

FETCH_IS_OFF: Final = "atomic fetch is off, so a worker that is killed may lose a message that it has just popped"
"""How a warning begins if a worker consumes without atomic fetch."""

CONSUMER: Final = "celery.worker.consumer:Consumer"
"""Imported when a worker starts: its module keeps what it imports, so what patches Celery must come before it."""

METHODS: Final[dict[Any, tuple[str, ...]]] = {
    redis.Channel: (
        "basic_consume queue",
        "_after_fork",
        "_connparams",
        "_basic_cancel consumer_tag",
        "_q_for_pri queue pri",
        "_get_message_priority message",
        "conn_or_acquire client",
        "_do_restore_message payload exchange routing_key pipe leftmost",
        "close",
    ),
    redis.QoS: (
        "append message delivery_tag",
        "ack delivery_tag",
        "reject delivery_tag requeue",
        "can_consume",
        "can_consume_max_estimate",
        "restore_unacked client",
        "restore_by_tag tag client leftmost",
        "restore_visible start num interval",
    ),
    virtual.QoS: ("append message delivery_tag", "ack delivery_tag", "restore_unacked_once stderr"),
    virtual.Message: ("__init__ payload channel",),
    redis.MultiChannelPoller: (
        "add channel",
        "close",
        "get callback timeout",
        "handle_event fileno event",
        "on_poll_init poller",
        "on_poll_start",
        "on_readable fileno",
        "_pause_brpop channel fileno",
        "_register_BRPOP channel",
        "_unregister_from_poll fileno",
    ),
    redis.Transport: ("_deliver message queue", "register_with_event_loop connection loop"),
    Connection: ("_ensure_connection errback",),
    Hub: ("call_later delay callback",),
    CONSUMER: ("connect", "create_task_handler", "ensure_connected conn"),
    WorkController: ("_process_task req",),
    Request: ("acknowledge",),
}
"""Methods with the names of their parameters, which may be followed by others."""

ATTRIBUTES: Final[dict[Any, tuple[str, ...]]] = {
    redis.Channel: ("_queue_cycle", "active_fanout_queues", "handlers"),
    redis.MultiChannelPoller: ("_channels", "_fd_to_chan", "_paused_brpop", "poller"),
    virtual.QoS: ("_delivered", "_dirty"),
    virtual.Channel: ("_active_queues", "_qos"),
    virtual.Transport: ("_avail_channels", "_callbacks", "channels", "cycle"),
    CONSUMER: ("on_task_request", "controller", "hub"),
}
"""Attributes that the initialisers set."""

CLASS_ATTRIBUTES: Final[dict[Any, tuple[str, ...]]] = {
    redis.Channel: (
        "Message",
        "QoS",
        "_fanout_queues",
        "active_queues",
        "global_keyprefix",
        "priority_steps",
        "unacked_index_key",
        "unacked_key",
        "visibility_timeout",
    ),
    redis.MultiChannelPoller: ("eventflags", "fds"),
    redis.Transport: ("Channel", "driver_type"),
}


_Names = Mapping[Any, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Part:
    """What a part of redis_queue needs of classes, functions and modules, and what is so *without* it.

    *methods*, *attributes* that an initialiser or a function sets, and *class_attributes*, which may be a module's.
    """

    without: str
    methods: _Names = field(default_factory=dict)
    attributes: _Names = field(default_factory=dict)
    class_attributes: _Names = field(default_factory=dict)


FETCH: Final = Part(FETCH_IS_OFF, METHODS, ATTRIBUTES, CLASS_ATTRIBUTES)

SENDING: Final = Part(
    "messages are sent as by Celery alone, and one whose reply is lost may arrive twice",
    {
        AMQP: ("_create_task_sender",),
        Task: ("_get_exec_options",),
        group: ("_apply_tasks tasks producer app",),
        Producer: ("_publish",),
        redis.Channel: ("_put queue message", "_q_for_pri queue pri", "_get_message_priority message reverse"),
        ResultConsumer: ("_consume_from task_id", "reconnect_on_error"),
    },
    {Celery: ("_tasks",), ResultConsumer: ("subscribed_to",)},
    {Connection: ("_default_channel",), ResultConsumer: ("_pubsub",)},
)
"""Of messages that are made without Celery, and of batches."""

LEASES: Final = Part(
    "turn leases off: DurableTasks(app, leases=False)",
    {
        redis.Channel: ("_do_restore_message", "_get_message_priority"),
        redis.QoS: ("restore_by_tag", "restore_visible"),
        Connection: ("_ensure_connection",),
        WorkController: ("_process_task",),
    },
    {
        virtual.QoS: ("_delivered", "_dirty"),
        virtual.Channel: ("_consumers", "_qos"),
        virtual.Message: ("_raw",),
        Consumer: ("_active_tags",),
        CONSUMER: ("_maximum_prefetch_restored",),
    },
)

ASYNC_TASKS: Final = Part(
    "let no task be `async def`",
    attributes={add_autoretry_behaviour: ("_orig_run",), base.pydantic_wrapper: ("task_fun",)},
    class_attributes={_state: ("_task_stack",)},
)

MONITOR: Final = Part(
    "the worker does not report how runs of tasks end",
    {Request: ("_announce_revoked",)},
    class_attributes={Request: ("_already_cancelled", "_already_revoked")},
)

POOL: Final = Part(
    "after a lost connection a prefork pool may hang, or run tasks twice, as with Celery alone",
    {"billiard.pool:Pool": ("did_start_ok", "maintain_pool")},
    {
        "billiard.pool:Pool": ("_cache", "_pool", "on_process_down", "on_process_up"),
        "billiard.pool:ApplyResult": ("_accepted", "_worker_pid"),
        "celery.concurrency.asynpool:AsynPool": (
            "_all_inqueues",
            "_fileno_to_inq",
            "_fileno_to_outq",
            "_fileno_to_synq",
        ),
    },
    {"billiard.pool:ApplyResult": ("_write_to",)},
)

BEAT: Final = Part(
    "a beat that cannot send skips what is due, as with Celery alone",
    attributes={"celery.beat:Service": ("_is_shutdown",)},
)

ASGIREF: Final = Part(
    "thread-sensitive calls of asgiref run in a thread of their own, whose database connections Celery does not close",
    class_attributes={
        "asgiref.sync:SyncToAsync": ("context_to_thread_executor", "thread_sensitive_context", "threadlocal"),
        "asgiref.sync:AsyncToSync": ("executors",),
        "asgiref.sync": ("ThreadSensitiveContext",),
    },
)

OPTIONAL: Final = frozenset(
    {
        "_batch_local",
        "_dump_pydantic_arguments",
        "_expires",
        "_locked",
        "_quick_release",
        "_retry_worker_lost",
        "_success_was_stored",
    }
)
"""Names that only some of the versions have, and that are looked up where they are used."""


def around(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Replace the method *name* of one Celery or kombu object by *call*; its first argument is the original."""
    setattr(owner, name, partial(call, getattr(owner, name)))


def method_of(owner: Any, name: str) -> Callable[[], Callable[..., Any]]:
    """Return a function that returns the method *name* that *owner* has now, else that which its class has then.

    So what patches the class later, as a tracer that is initialised by a worker, takes part. A method that is a cached
    property is made at the first call: until then the app may be configured.
    """
    own = vars(owner).get(name)
    made = cache(lambda found: found.func(owner))

    def method() -> Any:
        found = getattr(type(owner), name)
        if isinstance(found, cached_property):
            return made(found)
        # A mock is not a descriptor.
        return found.__get__(owner) if hasattr(found, "__get__") else found

    return method if own is None else lambda: own


def keep_partial_results(hub: Any, pool: Any) -> None:
    """Let a prefork *pool* read on, after a lost connection, the results that had arrived in part.

    Celery forgets these parts with the readers of its *hub*, and takes what follows for the size of the next result: it
    waits for gigabytes that never come, and runs no more tasks, or ends with an error of pickle.
    """
    parts: dict[int, tuple[Any, Any]] = {}

    def owners() -> Any:
        return getattr(pool._pool, "_fileno_to_outq", {})

    def reset(original: Callable[[], None]) -> None:
        for fd, (reader, _) in hub.readers.items():
            if getattr(reader, "gi_frame", None) and fd in owners():
                parts[fd] = owners()[fd], reader
        original()

    def register(original: Callable[[Any], None], loop: Any) -> None:
        original(loop)
        for fd, (owner, reader) in parts.items():
            # Another process may have the number by now.
            if owners().get(fd) is owner:
                loop.add_reader(fd, reader)
        parts.clear()

    around(hub, "reset", reset)
    around(pool, "register_with_event_loop", register)


@contextlib.contextmanager
def written_jobs_kept(pool: Any) -> Iterator[None]:
    """Within the block, a prefork *pool* that is flushed does not forget the jobs that it has sent to a child.

    Celery forgets those that no child has confirmed yet, and the child runs them all the same.
    """
    jobs = tuple(pool._pool._cache.values()) if is_known_prefork(pool) else ()
    written = [job for job in jobs if not getattr(job, "_accepted", True) and getattr(job, "_write_to", None)]
    for job in written:
        job._accepted = True
    try:
        yield
    finally:
        for job in written:
            # Unless a child has confirmed it meanwhile.
            job._accepted = job._worker_pid is not None


def replace_killed_processes(pool: Any) -> None:
    """Replace the processes of a prefork *pool* that signals kill before its worker is ready, as Celery does later.

    Celery takes them for processes that cannot start, and the worker ends. If an attempt to connect fails meanwhile, it
    looks for a place for a new process before that of the dead one is free, and ends with StopIteration.
    """
    processes = pool._pool

    def did_start(original: Callable[[], bool]) -> bool:
        codes = [process.exitcode for process in processes._pool]
        if any(code is not None and code >= 0 for code in codes):
            return original()
        pool.maintain_pool()
        return True

    def on_process_up(process: Any) -> None:
        processes._fileno_to_outq[process.outqR_fd] = process

    def on_process_down(process: Any) -> None:
        # What it had written is read before: that it is up, too. The next one has the same descriptors.
        processes._fileno_to_inq.pop(process.inqW_fd, None)
        processes._fileno_to_synq.pop(process.synqW_fd, None)
        processes._all_inqueues.discard(process.inqW_fd)

    around(pool, "did_start_ok", did_start)
    # Until the pool joins the event loop, and sets its own: without the second one it gives no place back.
    processes.on_process_up, processes.on_process_down = on_process_up, on_process_down


def is_known_prefork(pool: Any) -> bool:
    """Return whether *pool* is a prefork pool that has what is used here of it."""
    return pool.uses_semaphore and has(POOL)


def lacking(part: Part = FETCH) -> list[str]:
    """Return what the installed packages lack for *part*, each as ``class.name(parameters)``."""
    return [*_methods(part), *_attributes(part)]


@cache
def has(part: Part) -> bool:
    """Return whether they have what *part* needs; if not, say once what is so without it."""
    found = lacking(part)
    if found:
        text = "%s: %s has no %s"
        logger.warning(text, part.without, versions(), ", ".join(found), extra={"action": "version_unsupported"})
    return not found


def check(part: Part) -> None:
    """Raise ConfigurationError if they lack what *part* needs."""
    found = lacking(part)
    if found:
        raise ConfigurationError(
            f"{versions()} has no {', '.join(found)}: install versions that redis_queue knows "
            f"(pip install {KNOWN}), or {part.without}"
        )


def versions() -> str:
    """Return the versions of kombu and Celery, for messages."""
    return f"kombu {kombu.__version__}, Celery {celery.__version__}"


def _methods(part: Part) -> Iterator[str]:
    for key, wanted in part.methods.items():
        owner = symbol_by_name(key)
        for line in wanted:
            name, *parameters = line.split()
            function = getattr(owner, name, None)
            found = list(inspect.signature(function).parameters)[1:] if callable(function) else None
            if found is None or found[: len(parameters)] != parameters:
                yield f"{owner.__name__}.{name}({', '.join(parameters)})"


def _attributes(part: Part) -> Iterator[str]:
    for key, wanted in part.attributes.items():
        owner = symbol_by_name(key)
        code = inspect.unwrap(owner if inspect.isfunction(owner) else owner.__init__).__code__
        initialised = (*code.co_names, *code.co_varnames)
        yield from (f"{owner.__name__}.{name}" for name in wanted if name not in initialised)
    for key, wanted in part.class_attributes.items():
        owner = symbol_by_name(key)
        yield from (f"{owner.__name__}.{name}" for name in wanted if not hasattr(owner, name))
