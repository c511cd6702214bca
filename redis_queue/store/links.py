"""Send commands over connections that never repeat one by themselves: to one server, or to a Cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_queue.basics.waits import loop_call, off_loop
from redis_queue.errors import ConfigurationError
from redis_queue.store.connection import Client
from redis_queue.store.redis_errors import is_temporary_refusal

Argument = bytes | str | int | float

Command = tuple[Argument, ...]

MAX_IDLE: Final = 64
"""Maximum number of connections kept for later calls: a burst of calls in many greenlets opens one for each."""


class Link(Protocol):
    """Send commands and return raw replies: bytes are not decoded."""

    def send(self, *command: Argument) -> Any:
        """Send one command once. Raises the errors of redis-py."""

    def send_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip if possible; an error reply is returned in place of a reply."""


class DirectLink:
    """Send to one server (or a Sentinel set) over its own connections.

    Connections have the settings of the client's pool but do not come from the pool, which saves about half of
    redis-py's time per call. Replies are bytes even if the client decodes. Safe for threads and after fork. Calls on
    an event loop have connections of their own, which belong to that loop.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        #: How often a connection failed.
        self.failures = 0
        self._free: list[Any] = []
        self._pid = os.getpid()

    def send(self, *command: Argument) -> Any:
        """Send one command once; on failure, or if Redis refuses it for now, close the connection and all free ones."""
        # Not send_many, which takes a tenth longer: most calls come here.
        connection = self._take()
        try:
            connection.send_packed_command(connection.pack_command(*command), check_health=False)
            reply = connection.read_response(disable_decoding=True, disconnect_on_error=True)
        except redis.ResponseError as error:
            self._keep_or_close(connection, error)
            raise
        except Exception:
            self.close(connection)
            raise
        except BaseException:
            # A task is cancelled, or a thread interrupted: that says nothing of the other connections.
            connection.disconnect()
            raise
        self._keep(connection)
        return reply

    def send_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send all commands at once and read all replies."""
        connection = self._take()
        try:
            packed = [part for command in commands for part in connection.pack_command(*command)]
            connection.send_packed_command(packed, check_health=False)
            replies = [_reply(connection) for _ in commands]
        except Exception:
            self.close(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._keep_or_close(connection, *replies)
        return replies

    def _keep_or_close(self, connection: Any, *replies: Any) -> None:
        if any(isinstance(reply, redis.ResponseError) and _may_be_elsewhere(reply) for reply in replies):
            self.close(connection)
        else:
            self._keep(connection)

    def _keep(self, connection: Any) -> None:
        idle = self._idle()
        if len(idle) < MAX_IDLE:
            idle.append(connection)
        else:
            connection.disconnect()

    def _take(self) -> Any:
        try:
            return self._idle().pop()
        except IndexError:
            call = loop_call()
            connection = new_connection(self._pool) if call is None else call.connect(self._pool)
            connection.connect()
            return connection

    def _idle(self) -> list[Any]:
        """Return the free connections of threads, or those of the event loop of this call."""
        call = loop_call()
        if call is not None:
            return call.idle(self)
        if self._pid != os.getpid():
            self._free, self._pid = [], os.getpid()
        return self._free

    def close(self, *connections: Any) -> None:
        """Close *connections* and all free ones; in a call on an event loop, those of this loop."""
        self.failures += len(connections)
        for connection in connections:
            connection.disconnect()
        idle = self._idle()
        with suppress(IndexError):
            while True:
                idle.pop().disconnect()


def _may_be_elsewhere(error: redis.ResponseError) -> bool:
    """Return whether a new connection may find another server, a new primary, or log in with another password."""
    return is_temporary_refusal(error) and not isinstance(error, redis.exceptions.OutOfMemoryError)


def new_connection(pool: Any) -> Any:
    """Return a new connection with the settings of *pool*, not connected yet, that tries everything once.

    It is not in the pool: a check-out costs a system call per use, and its count would never go down.
    """
    # redis-py tries ten times by default: a get with a timeout would wait for all of them.
    return pool.connection_class(**{**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0)})


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True, disconnect_on_error=True)
    except redis.ResponseError as error:
        return error


class ClusterLink:
    """Send to a Redis Cluster: redis-py finds the node and follows redirections, but repeats nothing.

    A call on an event loop sends in another thread.
    """

    def __init__(self, client: redis.RedisCluster) -> None:
        if client.get_encoder().decode_responses:
            raise ConfigurationError("decode_responses=True: must be False with Redis Cluster; use connect(url)")
        self._client = client

    def send(self, *command: Argument) -> Any:
        """Send one command once, to the node that holds the keys."""
        key = _FIRST_KEY.get(command[0])
        if key is None:
            return off_loop(partial(self._client.execute_command, *command))
        # Name the node: otherwise redis-py itself repeats a script whose reply was lost.
        node = self._client.get_node_from_key(command[key])
        return off_loop(partial(self._client.execute_command, *command, target_nodes=node))

    def send_many(self, commands: Sequence[Command]) -> list[Any]:
        """Send the commands one after the other."""
        return [self._reply(command) for command in commands]

    def _reply(self, command: Command) -> Any:
        try:
            return self.send(*command)
        except redis.ResponseError as error:
            return error


_FIRST_KEY: Final[Mapping[Argument, int]] = {"EVALSHA": 3, "EVAL": 3, "BLPOP": 1}


def link(client: Client) -> Link:
    """Return the link to *client*'s server; all queues of one client share it and its connections."""
    found: Link | None = vars(client).get(_LINK)
    if found is None:
        found = ClusterLink(client) if isinstance(client, redis.RedisCluster) else DirectLink(client)
        # On the client itself, so that the connections are closed with it.
        setattr(client, _LINK, found)
    return found


_LINK: Final = "_redis_queue_link"
