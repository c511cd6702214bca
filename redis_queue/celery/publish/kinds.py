"""Kinds: make the messages of calls that differ only in ids, arguments and due times without Celery's work for each.

Celery makes the first message of a kind. Those that follow reuse all of it but the fields that may differ. Where
anything else could make a difference (a signal receiver, a router function, a link, a stamp, a time to live, a function
of app, task or kombu that is not their own), Celery makes every message. So it does if the message that this module
makes for the first call differs from Celery's by a single byte.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from json.encoder import encode_basestring_ascii
from types import FunctionType, MethodType
from typing import Any, Final

from celery import Celery, Signature, chain, group, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute, Router
from celery.backends.base import Backend
from celery.backends.redis import RedisBackend
from celery.exceptions import NotRegistered
from celery.utils.nodenames import anon_nodename
from celery.utils.saferepr import saferepr
from kombu.messaging import Producer
from kombu.serialization import dumps
from kombu.transport import redis, virtual
from kombu.utils.json import dumps as dump_element
from kombu.utils.uuid import uuid

from redis_queue.celery.kombu.internals import SENDING, has
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import ETA, SENT, sent_now
from redis_queue.celery.publish.lists import Seen
from redis_queue.store.chunks import CHUNK

MAX_KINDS: Final = 1000
"""Maximum number of kinds that are remembered: callers may make up names of queues."""

_FREE: Final = frozenset(
    {"name", "args", "kwargs", "task_id", "countdown", "group_id", "group_index", "root_id", "parent_id", "producer"}
    | {"add_to_parent", "reply_to", "result_cls", "task_type"}
)
"""Options in which the calls of a kind may differ."""

_ALIKE: Final[Mapping[str, type]] = {
    "queue": str,
    "routing_key": str,
    "exchange": str,
    "priority": int,
    "delivery_mode": int,
    "serializer": str,
    "ignore_result": bool,
    "time_limit": int,
    "soft_time_limit": int,
    "retry": bool,
}
"""Options that all calls of a kind have with the same value, of this type or None. All others must be None."""

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "args": (tuple, list, type(None)),
    "kwargs": (dict, type(None)),
    "countdown": (int, float, type(None)),
    "reply_to": (str, type(None)),
}
"""Types of options in which the calls of a kind may differ; Celery converts others."""

_NO_FOLLOWERS: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

POSITIONAL: Final = ("name", "args", "kwargs")
"""Names of the arguments of ``send_task`` that a call of a kind may have without them."""

WRAPPED: Final = ("create_task_message", "send_task_message")
"""Methods of an AMQP object that the extension wraps."""

CAPTURED: Final = "redis_queue_captured"
"""Attribute of a wrapped AMQP object: the WRAPPED methods that the instance itself had, not its class."""

_OF_KOMBU: Final = (
    (Producer, "publish"),
    (Producer, "_publish"),
    (virtual.Channel, "basic_publish"),
    (redis.Channel, "_put"),
)


@dataclass(slots=True)
class Call:
    """One call of ``send_task``, of a kind."""

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    key: Any
    id: str = ""
    root_id: str | None = None
    parent_id: str | None = None


class Form:
    """The text of *message* as kombu writes it, with gaps for its body and for what differs between calls."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        gaps = {
            part: {name: _GAP + name if name in _DIFFERS else value for name, value in message[part].items()}
            for part in _PARTS
        }
        text = dump_element({**message, **gaps, "body": f"{_GAP}body"})
        self._pieces = re.split(r'"\\u0000(\w+)"', text)
        self._names = self._pieces[1::2]

    def fill(self, values: Mapping[str, Any], body: str) -> str:
        """Return the text with *values* and *body*."""
        pieces = self._pieces.copy()
        pieces[1::2] = [_json(body if name == "body" else values[name]) for name in self._names]
        return "".join(pieces)


_GAP: Final = "\0"
_PARTS: Final = ("headers", "properties")
_DIFFERS: Final = frozenset(
    {"id", "group", "group_index", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", SENT}
    | {"correlation_id", "reply_to", "delivery_tag"}
)


def _json(value: Any) -> str:
    if type(value) is str:
        return encode_basestring_ascii(value)
    # Most others are one of these two, for which an encoder takes ten times as long.
    return "null" if value is None else f"{value}" if type(value) is int else str(dump_element(value))


class Kinds:
    """The kinds of calls of *app* that were made in this process."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        # Else that of the class: what patches it later, as a tracer does, takes part.
        self._send_task = vars(app).get("send_task")
        self._known: dict[Any, Seen | None] = {}
        self._checked: tuple[Any, ...] = ()
        self._changes: dict[str, Any] = {}
        self._is_quiet = self._is_plain = False
        self._levels: dict[str, Any] = {}

    def forget(self) -> None:
        """Let Celery make the next message of each kind: its connection declares the queues again."""
        self._known = {}

    def call(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call | None:
        """Return the call ``send_task(*args, **options)`` if it has a kind."""
        given = {**dict(zip(POSITIONAL, args, strict=False)), **options}
        name, countdown, producer = given.get("name"), given.get("countdown"), given.get("producer")
        if len(given) != len(args) + len(options) or type(name) is not str:
            return None
        if not self._is_certain(name, given.get("task_type")) or not _is_plain_producer(producer):
            return None
        # A serializer of another library may write these arguments as JSON does, and others not.
        if given.get("serializer") not in (None, "json"):
            return None
        if any(type(given.get(option)) not in types for option, types in _TYPES.items()):
            return None
        alike: list[Any] = [name, bool(countdown)]
        for option, value in given.items():
            if option not in _FREE:
                if value is not None and type(value) is not _ALIKE.get(option):
                    return None
                alike += option, value
        return Call(name, given.get("args") or (), given.get("kwargs") or {}, options, tuple(alike))

    def first(self, call: Call) -> Seen | None:
        """Return the message that Celery made of the kind of *call*; None if others may differ from it."""
        first = self._known.get(call.key)
        if first is None or first.declared is self._app.amqp.queues.get(first.declared_as):
            return first
        self.forget()
        return None

    def is_new(self, call: Call) -> bool:
        """Return whether Celery has made no message of this kind yet."""
        return call.key not in self._known

    def learn(self, call: Call, seen: Sequence[Seen]) -> None:
        """Keep the message that Celery made for *call* as that of its kind, if all others are like it."""
        if not seen:
            return
        if len(self._known) >= MAX_KINDS:
            self.forget()
        self._known[call.key] = None
        first = seen[0]
        headers, task_id = first.headers, first.headers.get("id")
        if len(seen) != 1 or not isinstance(task_id, str):
            return
        call.id, call.root_id, call.parent_id = task_id, headers.get("root_id"), headers.get("parent_id")
        if first.envelope is not None:
            exchange, queue = first.envelope.exchange, first.envelope.routing_key
            same = self.envelope(first.envelope, call, headers.get(ETA)) == first.envelope
        else:
            properties = first.message["properties"]
            exchange, queue = map(properties["delivery_info"].get, ("exchange", "routing_key"))
            first.form = Form(first.message)
            made = self.element(first.form, call, properties["delivery_tag"], headers.get(SENT))
            same = made == dump_element(first.message)
        # The queues of another exchange may change: kombu reads them from Redis for each message.
        if same and not exchange:
            first.declared_as, first.declared = queue, self._app.amqp.queues.get(queue)
            self._known[call.key] = first

    def envelope(self, known: Envelope, call: Call, eta: Any = None) -> Envelope:
        """Return the message of *call* for the store; *known* is that of another call of its kind."""
        headers = self._headers(known.headers, call)
        if ETA in headers:
            headers[ETA] = eta
        return known.like(_body(call).encode(), headers, self._properties(known.properties, call))

    def element(self, known: Form, call: Call, tag: str | None = None, sent: int | None = None) -> str:
        """Return the message of *call* as kombu writes it into a list; *known* is the form of its kind."""
        values = self._headers({}, call)
        values |= self._properties({}, call)
        values |= {SENT: sent or sent_now(), "delivery_tag": tag or uuid()}
        return known.fill(values, base64.b64encode(_body(call).encode()).decode())

    def eta(self, seconds: float) -> str:
        """Return the eta of a countdown, as Celery writes it."""
        # In UTC: a day on which the clocks change in the app's time zone does not have 24 hours.
        return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).astimezone(self._app.timezone).isoformat()

    def _headers(self, known: Mapping[str, Any], call: Call) -> dict[str, Any]:
        amqp, options = self._app.amqp, call.options
        return {
            **known,
            "id": call.id,
            "group": options.get("group_id"),
            "group_index": options.get("group_index"),
            "root_id": call.root_id or call.id,
            "parent_id": call.parent_id,
            "argsrepr": short_repr(call.args, amqp.argsrepr_maxsize, self._levels),
            "kwargsrepr": short_repr(call.kwargs, amqp.kwargsrepr_maxsize, self._levels),
            "origin": anon_nodename(),
        }

    def _properties(self, known: Mapping[str, Any], call: Call) -> dict[str, Any]:
        reply_to = call.options.get("reply_to") or self._app.thread_oid
        return {**known, "correlation_id": call.id, "reply_to": reply_to}

    def are_quiet(self) -> bool:
        """Return whether no code of the user sees or changes a message while it is sent."""
        if not has(SENDING):
            return False
        app = self._app
        functions, changes = self._functions(), app.conf.changes
        current = (*functions, app.conf, *app.amqp.router.routes)
        if current != self._checked or changes != self._changes:
            self.forget()
            self._checked, self._changes = current, dict(changes)
            self._is_quiet = _is_quiet(app) and all(map(_is_own, functions))
            self._is_plain = app.conf.task_serializer == "json" and not app.conf.task_inherit_parent_priority
            # Celery 5.5 has no such setting.
            levels = getattr(app.conf, "task_repr_maxlevels", None)
            self._levels = {} if levels is None else {"maxlevels": levels}
        return self._is_quiet and not any(signal.receivers for signal in _OBSERVED)

    def _is_certain(self, name: str, task: Any) -> bool:
        """Return whether Celery treats all calls of *task* alike that have the same options."""
        if not self.are_quiet() or not self._is_plain:
            return False
        # Celery takes the options of a task of the app that is called by its name.
        return task is not None or name not in self._app._tasks

    def _functions(self) -> tuple[Any, ...]:
        """Return the functions that make and send a message."""
        app, amqp = self._app, self._app.amqp
        wrapped = vars(amqp)
        return (
            self._send_task or type(app).send_task,
            app.now,
            amqp.as_task_v2,
            amqp._create_task_sender,
            amqp.router.route,
            # Each thread may have its own backend.
            getattr(app.backend.on_task_call, "__func__", None),
            *[wrapped.get(name) for name in WRAPPED],
            *wrapped.get(CAPTURED, ()),
            *[getattr(owner, name) for owner, name in _OF_KOMBU],
        )


class Like:
    """Makes calls like *call*, which was made of the signature *task*, and sends them by *send*.

    They are made without Celery's work for each if their signatures differ in arguments and _OWN_OPTIONS alone.
    """

    def __init__(self, task: Signature, call: Call, send: Callable[[Call, Any], Any]) -> None:
        self.send = send
        self._task = task
        self._call = call
        self._type = call.options.get("task_type")
        # A group, or a task that calls another one, makes calls that are not its own.
        self._left = CHUNK if task.task == call.name and _is_plain_task(self._type) else 0

    def call(self, task: Signature) -> Call | None:
        """Return the call that ``task.apply_async()`` makes; None if it may be of another kind, or after 500."""
        known, args, kwargs, options = self._call, task.args, task.kwargs, task.options
        self._left -= 1
        if self._left < 0 or task.task != known.name or task.type is not self._type:
            return None
        if type(args) is not tuple or type(kwargs) is not dict or not _are_alike(options, self._task.options):
            return None
        if self._type.typing:
            self._type.__header__(*args, **kwargs)
        own = {**known.options, **{name: options.get(name) for name in _OWN_OPTIONS}}
        id_ = own["task_id"] or uuid()
        return Call(known.name, args, kwargs, own, known.key, id_, known.root_id, known.parent_id)


_OWN_OPTIONS: Final = ("task_id", "group_index", "reply_to")
"""Options of a signature in which those of a batch may differ."""


def _are_alike(options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    if options.keys() != others.keys():
        return False
    for name, value in options.items():
        other = others[name]
        if value is not other and name not in _OWN_OPTIONS and (type(value) is not type(other) or value != other):
            return False
    return True


def _is_plain_task(task: Any) -> bool:
    """Return whether ``apply_async`` passes on the arguments and options of a signature of *task* as they are."""
    if task is None or (task.typing and not hasattr(task, "__header__")):
        return False
    return getattr(task, "_dump_pydantic_arguments", None) is None and _has_own_calls(task)


def _has_own_calls(task: Any) -> bool:
    functions = (Signature.apply_async, task.apply_async, task.shadow_name, task._get_exec_options, task.app.send_task)
    return all(map(_is_own, functions))


# A call of chain makes one of its base.
_CANVAS: Final = (group, chain, chain.__base__)


def runs_no_user_code(signature: Any, known: set[Any]) -> bool:
    """Return whether nothing but Celery's own code reads and sends *signature*, which may hold others.

    *known*: tasks that are known to be sent so.
    """
    if type(signature) in _CANVAS:
        tasks = signature.tasks
        # Not a generator, nor the list that Celery makes of one while it reads it.
        return type(tasks) in (list, tuple) and all(runs_no_user_code(task, known) for task in tasks)
    if type(signature) is not Signature:
        return False
    try:
        task = signature.type
    except NotRegistered:
        return _is_own(Signature.apply_async)
    if task not in known and _has_own_calls(task):
        known.add(task)
    return task in known


_OBSERVED: Final = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
"""Signals whose receivers see, and may change, each single message."""


def _body(call: Call) -> str:
    return str(dumps((call.args, call.kwargs, _NO_FOLLOWERS), serializer="json")[2])


def short_repr(value: Any, size: int, levels: Mapping[str, Any]) -> str:
    """Return ``saferepr(value, size, **levels)`` of Celery; ten times as fast for a few plain values."""
    if type(value) is dict:
        found = ", ".join([f"{_plain_repr(name)}: {_plain_repr(item)}" for name, item in value.items()])
        text = f"{{{found}}}"
    else:
        found = ", ".join(map(_plain_repr, value))
        text = f"({found}{',' * (len(value) == 1)})" if type(value) is tuple else f"[{found}]"
    # A character that no plain value has here stands for all others.
    return str(saferepr(value, size, **levels)) if "\0" in found or len(text) >= size else text


def _plain_repr(item: Any) -> str:
    if type(item) is str:
        return "'{}'".format(item.replace("'", "\\'"))
    return f"{item}" if type(item) in _PLAIN else "\0"


_PLAIN: Final = (int, float, bool, type(None))


def _is_quiet(app: Celery) -> bool:
    """Return whether settings, routes and backend are Celery's own."""
    amqp, conf = app.amqp, app.conf
    return bool(
        not (conf.task_send_sent_event or conf.task_always_eager)
        and type(amqp.router) is Router
        and all(type(route) is MapRoute for route in amqp.router.routes)
        and all(getattr(type(amqp), name) is getattr(AMQP, name) for name in WRAPPED)
        # Others may use the producer.
        and type(app.backend).on_task_call in (Backend.on_task_call, RedisBackend.on_task_call)
    )


def _is_plain_producer(producer: Any) -> bool:
    """Return whether *producer* sends messages as one of Celery's own pool does."""
    if producer is None:
        return True
    is_pooled = type(producer) is Producer and "publish" not in vars(producer) and producer.connection is not None
    # kombu 5.7 can hold messages back.
    return (
        is_pooled
        and not producer.compression
        and getattr(getattr(producer, "_batch_local", None), "current", None) is None
    )


def _is_own(function: Any) -> bool:
    # A wrapper copies name and module of its function, but has other globals; a proxy has another type.
    inner = function.__func__ if type(function) is MethodType else function
    return type(inner) is FunctionType and str(inner.__globals__.get("__name__")).startswith(_OWN)


_OWN: Final = ("celery.", "kombu.", "redis_queue.celery.")
"""Modules whose functions treat all messages of a kind the same."""
