"""AsyncConnection: a connection to Redis whose commands are sent at once and whose replies are read later."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import redis

from redis_queue.basics.times import monotonic
from redis_queue.store.links import Argument, Command, new_connection
from redis_queue.store.redis_errors import as_unavailable
from redis_queue.store.script_files import Script

TIMEOUT: Final = 10.0
"""Seconds within which Redis has to reply on a connection that has no timeout of its own."""

OnReply = Callable[[Any], None]


class AsyncCall(NamedTuple):
    """A command, and what to do with its reply, which is an exception if Redis refused the command."""

    command: Command
    on_reply: OnReply


def value_of(reply: Any) -> Any:
    """Return *reply*; raises it if it is an error: as a lost connection if Redis takes no commands for now."""
    if isinstance(reply, Exception):
        away = as_unavailable(reply)
        if away is None:
            raise reply
        raise away from reply
    return reply


class AsyncConnection:
    """One connection with the settings of the pool of *client*; it never connects again by itself.

    Raises the errors of redis-py.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._connection = new_connection(client.connection_pool)
        self._timeout: float = self._connection.socket_timeout or TIMEOUT
        self._connection.socket_timeout = self._timeout
        self._connection.connect()
        self.socket = self._connection._sock
        self._unanswered: deque[tuple[float, OnReply]] = deque()

    @property
    def deadline(self) -> float:
        """When the oldest command has to be answered, on the monotonic clock; infinite if there is none."""
        return self._unanswered[0][0] + self._timeout if self._unanswered else math.inf

    @property
    def protocol(self) -> int:
        """The version of the protocol in which the connection began."""
        return int(self._connection.protocol or 2)

    def send(self, calls: Iterable[AsyncCall]) -> None:
        """Send *calls* in one write."""
        now = monotonic()
        calls = list(calls)
        self._check()
        self._unanswered.extend((now, call.on_reply) for call in calls)
        packed = self._connection.pack_commands([call.command for call in calls])
        self._connection.send_packed_command(packed, check_health=False)

    def script(self, script: Script, arguments: Sequence[Argument], on_reply: OnReply) -> AsyncCall:
        """Return the call of *script*, which is loaded if Redis does not have it.

        *arguments* are the number of keys, the keys, and the arguments of the script.
        """

        def replied(reply: Any) -> None:
            if isinstance(reply, redis.exceptions.NoScriptError):
                self.send([AsyncCall(("EVAL", script.source, *arguments), on_reply)])
            else:
                on_reply(reply)

        return AsyncCall(("EVALSHA", script.sha, *arguments), replied)

    def call(self, *command: Any) -> Any:
        """Send one command and return its reply, after those of all earlier commands."""
        replies: list[Any] = []
        self.send([AsyncCall(command, replies.append)])
        self.wait()
        if isinstance(replies[0], Exception):
            raise replies[0]
        return replies[0]

    def read(self) -> None:
        """Handle all replies that have arrived; waits for the rest of one that has arrived in part."""
        if not self._unanswered and self.is_readable():
            # A closed connection, which raises an error, stays readable forever.
            raise redis.ConnectionError("Redis sent a reply without a command")
        while self._unanswered and self.is_readable():
            self._read_one()

    def wait(self) -> None:
        """Handle the replies to all commands."""
        while self._unanswered:
            self._read_one()

    def ping(self) -> None:
        """Send a PING on a subscribed connection; the answer is a push."""
        self._check()
        self._connection.send_command("PING", check_health=False)

    def next_push(self) -> Any:
        """Return the next message of a subscribed connection, or None if none has arrived."""
        return self._receive() if self.is_readable() else None

    def is_readable(self) -> bool:
        """Return whether something has arrived that was not read."""
        self._check()
        return bool(self._connection.can_read(0))

    def check_deadline(self) -> None:
        """Handle all replies that have arrived; raises TimeoutError of redis-py if one is overdue."""
        self.read()
        if monotonic() >= self.deadline:
            raise redis.TimeoutError(f"Redis did not answer within {self._timeout:g} s")

    def close(self) -> None:
        """Close the connection; commands that were not answered may have been executed."""
        self._unanswered.clear()
        with contextlib.suppress(OSError, redis.RedisError):
            self._connection.disconnect()

    def _check(self) -> None:
        # redis-py would connect again, without the subscriptions and with other replies to come.
        if self._connection._sock is not self.socket:
            raise redis.ConnectionError("the connection was closed")

    def _read_one(self) -> None:
        reply = self._receive()
        _, on_reply = self._unanswered.popleft()
        on_reply(reply)

    def _receive(self) -> Any:
        self._check()
        try:
            return self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error
