"""Calls the scripts in ``lua/`` by named keys and arguments.

The header of a ``.lua`` file is its contract: ``KEYS[n] name`` and ``ARGV[n] name`` lines give names and order, a last
``ARGV[...]`` line says that more may follow. Each script is safe to call twice with the same arguments, so a call whose
reply was lost is sent again; that is the only place where redis_queue repeats anything.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_queue.errors import (
    ConfigurationError,
    RedisQueueError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    WrongTypeError,
)
from redis_queue.store.chunks import chunks
from redis_queue.store.connection import Client
from redis_queue.store.redis_errors import RedisErrors, may_have_arrived, translate

Argument = bytes | str | int | float

Command = tuple[Argument, ...]

CALL_ATTEMPTS: Final = 3

SILENT_ATTEMPTS: Final = 2
"""Attempts if Redis does not answer: each one lasts as long as the timeouts of the client."""

# Found when this module is loaded: what `files` itself imports must not be half loaded when a worker forks.
_LUA: Final = files("redis_queue").joinpath("lua")

_READS: Final = (
    "ACL CONFIG EXISTS GET HEXISTS HGET HGETALL HKEYS HLEN HMGET HRANDFIELD HSCAN HSTRLEN INFO LINDEX LLEN LPOS LRANGE "
    "PING PTTL SCAN TIME TYPE ZCARD ZCOUNT ZMSCORE ZRANGE ZRANGEBYSCORE ZRANK ZREVRANGE ZSCAN ZSCORE"
)
READS: Final = frozenset(_READS.split())
"""Commands that change nothing (of ACL and CONFIG, redis_queue sends only those): a lost reply leaves no doubt."""

_CALLED = re.compile(r"redis\.p?call\(\s*(?:'([A-Z]+)')?")

_NAMED = re.compile(r"^-- (KEYS|ARGV)\[(\d+|\.\.\.)\] +(\w+)", re.MULTILINE)


class Script:
    """One ``.lua`` file: its source and the names in its header."""

    def __init__(self, name: str) -> None:
        folder, _, operation = name.partition("/")
        self.name = name
        self.source = _LUA.joinpath(folder, f"{operation}.lua").read_text("utf-8")
        self.sha = sha_of(self.source)
        found = _NAMED.findall(self.source)
        self.keys = tuple(label for kind, _, label in found if kind == "KEYS")
        self.arguments = tuple(label for kind, slot, label in found if kind == "ARGV" and slot != "...")
        # A computed command name may be any command.
        self.writes = not READS.issuperset(_CALLED.findall(self.source))
        self.takes_more = any(slot == "..." for _, slot, _ in found)


def sha_of(source: str) -> str:
    """Return the name by which EVALSHA knows *source*."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


@functools.cache
def load(name: str) -> Script:
    """Return the script ``folder/operation``."""
    return Script(name)


class Link(Protocol):
    """Sends one command and returns the raw reply, bytes undecoded."""

    def send(self, *command: Argument) -> Any:
        """Send once; raises the errors of redis-py."""
        ...

    def send_both(self, first: Command, second: Command) -> tuple[Any, Any]:
        """Send two commands in this order, in one round trip if that can be; raises as :meth:`send` does."""
        ...

    def send_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip if possible; the error of a command is returned in place of its reply."""
        ...


class DirectLink:
    """One server (or a Sentinel set), on connections of its own.

    It takes connections from the client's pool settings but keeps them itself, which saves about half of redis-py's
    time per call, and reads bytes even from a client that decodes. Safe for threads and after fork.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._free: list[Any] = []
        self._pid = os.getpid()

    def send(self, *command: Argument) -> Any:
        """Send once; on any failure the connection, and all that wait beside it, are dropped."""
        return self._exchange(command)[0]

    def send_both(self, first: Command, second: Command) -> tuple[Any, Any]:
        """Send two commands at once. If the first one is refused, what became of the second one is unknown."""
        one, two = self._exchange(first, second)
        return one, two

    def send_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send all at once and read all replies."""
        return self._on_connection(lambda connection: _replies(connection, commands))

    def _on_connection(self, work: Callable[[Any], list[Any]]) -> list[Any]:
        """Do *work* on a connection that is reused unless it fails."""
        connection = self._take()
        try:
            found = work(connection)
        except BaseException:
            self.close(connection)
            raise
        self._free.append(connection)
        return found

    def _take(self) -> Any:
        if self._pid != os.getpid():
            self._free, self._pid = [], os.getpid()
        try:
            return self._free.pop()
        except IndexError:
            return self._connect()

    def _exchange(self, *commands: Command) -> list[Any]:
        connection = self._take()
        try:
            packed = [part for command in commands for part in connection.pack_command(*command)]
            connection.send_packed_command(packed, check_health=False)
            replies = [connection.read_response(disable_decoding=True, disconnect_on_error=True) for _ in commands]
        except redis.ReadOnlyError:
            # A demoted primary: only a new connection can find the new one.
            self.close(connection)
            raise
        except redis.ResponseError:
            if len(commands) == 1:
                self._free.append(connection)
            else:
                # The reply to the next command may still be on its way.
                connection.disconnect()
            raise
        except BaseException:
            self.close(connection)
            raise
        self._free.append(connection)
        return replies

    def close(self, *connections: Any) -> None:
        """Close *connections* and every free one."""
        free, self._free = self._free, []
        for connection in (*connections, *free):
            connection.disconnect()

    def _connect(self) -> Any:
        # Not through the pool: its check-out costs a system call per use, and its count would never go down. Without
        # the client's own attempts, ten of them by default: a get with a timeout would wait for all of them.
        connection = self._pool.connection_class(**{**self._pool.connection_kwargs, "retry": Retry(NoBackoff(), 0)})
        connection.connect()
        return connection


def _replies(connection: Any, commands: Sequence[Command]) -> list[Any]:
    packed = [part for command in commands for part in connection.pack_command(*command)]
    connection.send_packed_command(packed, check_health=False)
    return [_reply(connection) for _ in commands]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True, disconnect_on_error=True)
    except redis.ResponseError as error:
        return error


class ClusterLink:
    """A Redis Cluster: redis-py finds the node and follows redirections, but repeats nothing."""

    def __init__(self, client: redis.RedisCluster) -> None:
        if client.get_encoder().decode_responses:
            raise ConfigurationError("a cluster client with decode_responses=True cannot carry bytes; use connect(url)")
        self._client = client

    def send(self, *command: Argument) -> Any:
        """Send once, to the node that holds the keys."""
        key = _FIRST_KEY.get(command[0])
        if key is None:
            return self._client.execute_command(*command)
        # To a node that is named: else redis-py repeats a script whose reply was lost, and cannot tell it so.
        node = self._client.get_node_from_key(command[key])
        return self._client.execute_command(*command, target_nodes=node)

    def send_both(self, first: Command, second: Command) -> tuple[Any, Any]:
        """Send one after the other."""
        return self.send(*first), self.send(*second)

    def send_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send one after the other."""
        return [self._reply(command) for command in commands]

    def _reply(self, command: Command) -> Any:
        try:
            return self.send(*command)
        except redis.ResponseError as error:
            return error


_FIRST_KEY: Final[Mapping[Argument, int]] = {"EVALSHA": 3, "EVAL": 3, "BLPOP": 1}


def link(client: Client) -> Link:
    """Return the way to talk to *client*'s server; all queues of one client share it, and so its connections."""
    found: Link | None = vars(client).get(_LINK)
    if found is None:
        found = ClusterLink(client) if isinstance(client, redis.RedisCluster) else DirectLink(client)
        # On the client itself, so that the connections end with it.
        setattr(client, _LINK, found)
    return found


_LINK: Final = "_redis_queue_link"


class Call(NamedTuple):
    """A read-only call: as a command for a pipeline, and as a function that repeats it by itself."""

    command: Command
    alone: Callable[[], Any]


class Scripts:
    """Scripts bound to one server."""

    def __init__(self, client: Client) -> None:
        self._link = link(client)

    def bind(self, name: str, keys: object, **named: bytes) -> BoundScript:
        """Return a function that calls script *name*; each key is an attribute of *keys* unless *named* has it.

        The function takes the script's arguments by keyword and, where the header allows it, more as ``more=``.
        """
        script = load(name)
        return BoundScript(self._link, script, [named.get(key) or getattr(keys, key) for key in script.keys])

    def look(self, *command: Argument) -> Call:
        """Return a plain read-only command, for :meth:`each`."""
        return Call(command, functools.partial(self.command, *command))

    def each(self, calls: Sequence[Call]) -> list[Callable[[], Any]]:
        """Make *calls*, hundreds in a round trip; each function returned gives one reply, or raises its error.

        A call that failed is repeated by itself when its function is called.
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
        """Send one plain command that is safe to repeat."""
        unknown = False
        for attempt in itertools.count(1):
            try:
                return self._link.send(*command)
            except RedisErrors as error:
                unknown = unknown or (command[0] not in READS and may_have_arrived(error))
                ours = translate(error, unknown=unknown)
                if isinstance(ours, WrongTypeError):
                    ours = WrongTypeError(f"{WrongTypeError.__doc__} {self.described(*command[1:])}")
                pause(attempt, error, ours)
        raise AssertionError("unreachable")

    def described(self, *keys: Argument) -> str:
        """Return which of *keys* exist, with their types."""
        return describe(self._link, keys)


class BoundScript:
    """One script with its keys; call it with its arguments by name."""

    def __init__(self, server: Link, script: Script, keys: list[bytes]) -> None:
        self._link = server
        self._script = script
        self._keys = keys
        self._head: tuple[Argument, ...] = ("EVALSHA", script.sha, len(keys), *keys)

    def __call__(self, *, more: Iterable[Argument] = (), **arguments: Argument) -> Any:
        return self._insist(self._command(more, arguments), 1)

    def with_next(
        self, more: Iterable[Argument], following: BoundScript, arguments: dict[str, Argument], **own: Argument
    ) -> tuple[Any, Any]:
        """Call this script and then *following* with *arguments*, in one round trip where all goes well."""
        first, second = self._command(more, own), following._command((), arguments)
        try:
            return self._link.send_both(first, second)
        except (redis.exceptions.NoScriptError, *RedisErrors) as error:
            # Each by itself, as a repeat: whatever of it was done already answers as it did then.
            unknown = may_have_arrived(error)
            return self._insist(first, 2, unknown=unknown), following._insist(second, 2, unknown=unknown)

    def look(self, **arguments: Any) -> Call:
        """Return a call of this script, which must be read-only, for :meth:`Scripts.each`."""
        return Call(self._command((), dict(arguments)), functools.partial(self, **arguments))

    def _command(self, more: Iterable[Argument], arguments: dict[str, Argument]) -> Command:
        script = self._script
        try:
            ordered = [arguments[name] for name in script.arguments]
        except KeyError as error:
            raise TypeError(f"script {script.name} misses {error}; it takes {', '.join(script.arguments)}") from None
        if len(ordered) != len(arguments) or (more and not script.takes_more):
            raise TypeError(f"script {script.name} takes {', '.join(script.arguments)}, not {', '.join(arguments)}")
        return (*self._head, *ordered, *more)

    def _insist(self, command: Command, first: int, *, unknown: bool = False) -> Any:
        for attempt in itertools.count(first):
            try:
                return self._link.send(*command)
            except redis.exceptions.NoScriptError:
                return self._insist(("EVAL", self._script.source, *command[2:]), attempt, unknown=unknown)
            except RedisErrors as error:
                unknown = unknown or (self._script.writes and may_have_arrived(error))
                pause(attempt, error, self._explain(error, unknown=unknown))
        raise AssertionError("unreachable")

    def _explain(self, error: Exception, *, unknown: bool) -> RedisQueueError:
        text = str(error)
        if "WRONGTYPE" in text:
            return WrongTypeError(f"{WrongTypeError.__doc__} {describe(self._link, self._keys)}")
        if "NEWER_SCHEMA" in text:
            return SchemaError()
        if "LATE_CALL" in text:
            return StoreError("this call did nothing, because a later call of the same thread arrived before it")
        return translate(error, unknown=unknown)


def _same(reply: Any) -> Any:
    return reply


def describe(server: Link, keys: Iterable[Argument]) -> str:
    """Return which of *keys* exist, with their types, for an error message."""
    found = ((key, server.send("TYPE", key)) for key in keys if isinstance(key, bytes))
    try:
        return ", ".join(f"{key.decode()} is a {kind.decode()}" for key, kind in found if kind != b"none")
    except redis.exceptions.NoPermissionError:
        # Who may not ask is told what went wrong all the same.
        return ""


def pause(attempt: int, error: Exception, ours: RedisQueueError) -> None:
    """Wait a moment before the next attempt, or raise *ours* where that would not help or was tried enough."""
    most = SILENT_ATTEMPTS if isinstance(error, redis.TimeoutError) else CALL_ATTEMPTS
    if attempt >= most or not isinstance(ours, StoreUnavailableError):
        raise ours from error
    time.sleep(random.uniform(0.01, 0.05) * attempt)
