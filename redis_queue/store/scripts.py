"""Call the Lua scripts by named keys and arguments, and repeat calls whose reply was lost.

Each script is safe to call twice with the same arguments. redis_queue repeats commands here and nowhere else. The calls
of each thread may be numbered, so that a script answers a repeated call with the outcome of the first one.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis

from redis_queue.basics.waits import loop_call, sleep
from redis_queue.errors import RedisQueueError, SchemaError, StoreError, StoreUnavailableError, WrongTypeError
from redis_queue.store.chunks import chunks
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_bytes
from redis_queue.store.keys import BrokerKeys, FlowKeys, Keys, LockKeys, MonitorKeys
from redis_queue.store.links import Argument, Command, Link, link
from redis_queue.store.redis_errors import RedisErrors, may_have_arrived, translate
from redis_queue.store.script_files import READS, Script, all_scripts, load

CALL_ATTEMPTS: Final = 3

SILENT_ATTEMPTS: Final = 2
"""Attempts if Redis does not answer: each one lasts as long as the timeouts of the client."""

MAX_BOUND: Final = 100
"""Maximum number of scripts, each with other keys, that are bound to the slot of a thread."""

Clock = Callable[[], int]
"""Return milliseconds since the epoch; 0 stands for the clock of the server, all else is for tests."""


class BatchCall(NamedTuple):
    """A call that may be repeated: its command for a pipeline, and a function that makes the call alone."""

    command: Command
    alone: Callable[[], Any]


class Scripts:
    """Bind scripts to one server and send plain commands to it."""

    def __init__(self, client: Client, server: Link | None = None) -> None:
        self._link = server or link(client)

    def bind(self, name: str, keys: object, **named: bytes) -> BoundScript:
        """Return script *name* with its keys: each from *named* if it is there, else an attribute of *keys*.

        Call it with the arguments of the script by keyword, and with ``more=`` if its header allows more arguments.
        """
        script = load(name)
        return BoundScript(self._link, script, [named.get(key) or getattr(keys, key) for key in script.keys])

    def read_call(self, *command: Argument) -> BatchCall:
        """Return the call of a plain read-only command, for :meth:`each`."""
        return BatchCall(command, functools.partial(self.command, *command))

    def each(self, calls: Sequence[BatchCall]) -> list[Callable[[], Any]]:
        """Make *calls*, up to 500 in a round trip; return a function for each call that returns its reply.

        If a call failed, its function repeats it alone, and raises RedisQueueError if it fails again.
        """
        found: list[Callable[[], Any]] = []
        for chunk in chunks(calls):
            try:
                replies = self._link.send_many([call.command for call in chunk])
            except RedisErrors as error:
                replies = [error] * len(chunk)
            found += [
                call.alone if isinstance(reply, Exception) else functools.partial(_same, reply)
                for call, reply in zip(chunk, replies, strict=True)
            ]
        return found

    def command(self, *command: Argument) -> Any:
        """Send one plain command and return its reply. It must be safe to repeat. Raises StoreError."""
        return _retried(self._link, command, writes=command[0] not in READS, keys=command[1:2])

    def scan(self, command: str, key: bytes, *, match: str = "*", count: int) -> Iterator[list[tuple[bytes, Any]]]:
        """Yield the fields or members of *key* that *match*, with values or scores, about *count* at a time."""
        cursor: Any = 0
        while True:
            cursor, rows = self.command(command, key, cursor, "MATCH", id_bytes(match), "COUNT", count)
            yield pairs(rows)
            if not int(cursor):
                return


class BoundScript:
    """One script with its keys; call it with its arguments by keyword. Raises StoreError."""

    def __init__(self, server: Link, script: Script, keys: list[bytes]) -> None:
        self._link = server
        self._script = script
        self._keys = keys
        self._head: tuple[Argument, ...] = ("EVALSHA", script.sha, len(keys), *keys)

    def __call__(self, *, more: Iterable[Argument] = (), **arguments: Argument) -> Any:
        script = self._script
        command = self._command(more, arguments)
        return _retried(self._link, command, writes=script.writes, keys=self._keys, source=script.source)

    def batch_call(self, *, more: Iterable[Argument] = (), **arguments: Any) -> BatchCall:
        """Return a call of this script, which must be safe to repeat, for :meth:`Scripts.each`."""
        return BatchCall(self._command(more, dict(arguments)), functools.partial(self, more=more, **arguments))

    def _command(self, more: Iterable[Argument], arguments: dict[str, Argument]) -> Command:
        script = self._script
        try:
            ordered = [arguments[name] for name in script.arguments]
        except KeyError as error:
            raise TypeError(
                f"script {script.name}: {error} is missing; expected {', '.join(script.arguments)}"
            ) from None
        if len(ordered) != len(arguments) or (more and not script.takes_more):
            known, given = ", ".join(script.arguments), ", ".join(arguments)
            raise TypeError(f"script {script.name}: expected {known}, got {given}")
        return (*self._head, *ordered, *more)


def _retried(server: Link, command: Command, *, writes: bool, keys: Sequence[Argument], source: str = "") -> Any:
    """Send *command*, and repeat it if Redis did not answer; *keys* are those that an error may name.

    The *source* of a script is sent if Redis does not have the script.
    """
    attempt, unknown = 1, False
    while True:
        try:
            return server.send(*command)
        except redis.exceptions.NoScriptError:
            command = ("EVAL", source, *command[2:])
        except RedisErrors as error:
            unknown = unknown or (writes and may_have_arrived(error))
            _wait_or_raise(attempt, error, _explained(error, server, keys, unknown=unknown))
            attempt += 1


def _explained(error: Exception, server: Link, keys: Sequence[Argument], *, unknown: bool) -> RedisQueueError:
    text = str(error)
    if "WRONGTYPE" in text:
        return WrongTypeError(f"{WrongTypeError.__doc__} {_types_of(server, keys)}")
    if "NEWER_SCHEMA" in text:
        return SchemaError()
    if "LATE_CALL" in text:
        return StoreError("this call had no effect: a newer call of the same thread reached Redis first")
    return translate(error, unknown=unknown)


def _same(reply: Any) -> Any:
    return reply


def _types_of(server: Link, keys: Iterable[Argument]) -> str:
    """Return those of *keys* that exist, with their types, for an error message."""
    found = ((key, server.send("TYPE", key)) for key in keys if isinstance(key, bytes))
    try:
        return ", ".join(f"{text(key)} is a {text(kind)}" for key, kind in found if kind != b"none")
    except RedisErrors:
        # The error must be shown even if the keys cannot be read.
        return ""


def _wait_or_raise(attempt: int, error: Exception, ours: RedisQueueError) -> None:
    """Wait before the next attempt; raise *ours* after the last attempt, or if another one cannot help."""
    most = SILENT_ATTEMPTS if isinstance(error, redis.TimeoutError) else CALL_ATTEMPTS
    if attempt >= most or not isinstance(ours, StoreUnavailableError):
        raise ours from error
    sleep(random.uniform(0.01, 0.05) * attempt)


def server_clock() -> int:
    """Use the clock of the Redis server."""
    return 0


def now_ms(scripts: Scripts, clock: Clock = server_clock) -> int:
    """Return the time of *clock* in ms; for the server's clock, one round trip."""
    fixed = clock()
    if fixed:
        return fixed
    reply = scripts.command("TIME")
    # redis-py asks every primary of a cluster.
    seconds, micros = next(iter(reply.values())) if isinstance(reply, dict) else reply
    return int(seconds) * 1000 + int(micros) // 1000


class NumberedCalls:
    """Calls of scripts that keep the number and the outcome of a thread's last call in its slot.

    Calls on an event loop share a thread, and overlap: each of those that run at the same time has a slot of its own.
    Several instances may have the same *callers*: then they share the names of the slots.
    """

    def __init__(
        self,
        scripts: Scripts,
        keys: BrokerKeys | FlowKeys | Keys | LockKeys | MonitorKeys,
        callers: dict[int, Any] | None = None,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._callers: dict[int, _Caller] = {} if callers is None else callers

    def script(self, name: str, **keys: bytes) -> BoundScript:
        """Return script *name*, bound to the slot of this thread; *keys* as :meth:`Scripts.bind` takes them."""
        caller = self._caller
        if caller.pid != os.getpid():
            caller.reset()
        # Others with the same callers may have other clients and keys.
        place = (self, name, *keys.values())
        script = caller.scripts.get(place)
        if script is None:
            if len(caller.scripts) >= MAX_BOUND:
                caller.scripts.clear()
            script = self._scripts.bind(name, self._keys, slot=self._keys.slot(caller.name), **keys)
            caller.scripts[place] = script
        return script

    def next_number(self) -> int:
        """Return the next number of this thread."""
        return next(self._caller.numbers)

    def call(self, name: str, *, others: Mapping[str, bytes] | None = None, **arguments: Any) -> Any:
        """Call script *name* with the next number of this thread.

        *others*: its keys, by name, that are not attributes of the keys of these calls.
        """
        return self.prepare(name, others=others, **arguments)()

    def prepare(self, name: str, *, others: Mapping[str, bytes] | None = None, **arguments: Any) -> Callable[[], Any]:
        """Return a call of script *name* with the next number of this thread; *others* as in :meth:`call`.

        It has one effect however often it is made, and the same reply for a minute, but is refused after a later call
        of the thread.
        """
        return functools.partial(self.script(name, **(others or {})), sequence=self.next_number(), **arguments)

    @property
    def _caller(self) -> _Caller:
        call = loop_call()
        lane = 0 if call is None else call.lane
        return self._callers.get(lane) or self._callers.setdefault(lane, _Caller())


class _Caller(threading.local):
    """The scripts of one thread, bound to its slot."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Choose a new name, also in a forked child: it must not share the slot of its parent."""
        self.name, self.pid = os.urandom(8).hex(), os.getpid()
        self.scripts: dict[tuple[object, ...], BoundScript] = {}
        self.numbers = itertools.count(1)


def load_scripts(client: Client) -> int:
    """Load missing scripts into the server of *client*, or into all nodes of its Cluster; return how many there were.

    Redis forgets scripts on restart and SCRIPT FLUSH, and a promoted replica may never have had them. Loads into all
    nodes that can be reached, then raises StoreError for the first node that failed.
    """
    loaded: set[str] = set()
    failed: StoreError | None = None
    for node in _nodes(client):
        try:
            for script in missing_scripts(node):
                node.script_load(script.source)
                loaded.add(script.name)
        except RedisErrors as error:
            failed = failed or translate(error)
            failed.__cause__ = failed.__cause__ or error
    if failed is not None:
        raise failed
    return len(loaded)


def missing_scripts(node: redis.Redis) -> list[Script]:
    """Return the scripts missing on one server. Raises the errors of redis-py."""
    scripts = all_scripts()
    known = node.script_exists(*(script.sha for script in scripts))
    return [script for script, flag in zip(scripts, known, strict=True) if not flag]


def _nodes(client: Client) -> list[redis.Redis]:
    # Replicas of a Cluster, too: each may be promoted.
    if not isinstance(client, redis.RedisCluster):
        return [client]
    return [client.get_redis_connection(node) for node in client.get_nodes()]


def pairs(reply: Any) -> list[tuple[Any, Any]]:
    """Return a reply of RESP2 or RESP3 as pairs."""
    if isinstance(reply, dict):
        return list(reply.items())
    if reply and isinstance(reply[0], list | tuple):
        return [(one, other) for one, other in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))


def literal(text: str) -> str:
    """Return the pattern of SCAN and its kin that matches only *text*."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def text(value: Any) -> str:
    """Return a reply as text; invalid UTF-8 is replaced."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
