"""Translate errors of redis-py into errors of redis_queue without passwords."""

from __future__ import annotations

import contextlib
import re
from typing import Final, NamedTuple

import redis

from redis_queue.basics.logs import hide_secrets
from redis_queue.errors import (
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedServerError,
    WrongTypeError,
)

RedisErrors: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
"""All errors of redis-py; its cluster error is not a RedisError."""

# redis-py wraps the error of a command in a pipeline, Redis before 7 that of a command in a script.
_WRAPPED = re.compile(
    r"^(?:Command # \d+ \(.*\) of pipeline caused error: )?"
    r"(?:(?:Error running script \(call to f_\w+\): )?(?:@user_script: ?\d+: )+-?)?",
    re.DOTALL,
)
_ARGUMENTS = re.compile(r",? with args beginning with: .*", re.DOTALL)


def translate(error: Exception, *, unknown: bool = False) -> StoreError:
    """Return the error of redis_queue for one of redis-py. The caller raises it ``from`` the original.

    *unknown*: the command is a write that may have been executed although its reply was lost; the message says so.
    """
    # The arguments of an unknown command may be the body of a message.
    text = hide_secrets(_ARGUMENTS.sub("", _WRAPPED.sub("", str(error))))
    if "to run the 'eval' command" in text:
        return StoreUnavailableError(
            "the scripts are not loaded into this Redis, and its user has no permission for EVAL, so nothing was done:"
            " run `redis-queue load-scripts` as a user with the role loader (docs/security.md)"
        )
    if text.startswith("WRONGTYPE"):
        return WrongTypeError(f"{WrongTypeError.__doc__} ({text})")
    doubt = UNKNOWN if unknown else ""
    meaning = _meaning(error)
    return StoreError(text + doubt) if meaning is None else meaning.ours(f"{meaning.text}{doubt} ({text})")


MAX_CAUSES: Final = 10
"""Maximum number of causes of an error that are looked at: they may form a ring."""


def is_temporary_refusal(error: BaseException | None) -> bool:
    """Return whether *error*, or what caused it, is a refusal of Redis because of its state, not of the command.

    The same command succeeds later: a primary is demoted or has too few replicas, memory or disk is full, a script runs
    for too long, data is loaded, a slot moves, there are too many clients, or a password is replaced. What was refused
    had no effect.
    """
    return _refusal_in(error) is not None


def is_outage(error: BaseException) -> bool:
    """Return whether the same call may succeed later: Redis cannot be reached, or refuses it for now."""
    return isinstance(error, StoreUnavailableError) or is_temporary_refusal(error)


def as_unavailable(error: Exception) -> StoreUnavailableError | None:
    """Return a lost connection, for which Celery connects again, in place of a refusal for now, which ends a worker."""
    refusal = _refusal_in(error)
    if refusal is None:
        return None
    found = translate(refusal)
    return found if isinstance(found, StoreUnavailableError) else StoreUnavailableError(str(found))


def _refusal_in(error: BaseException | None) -> Exception | None:
    for _ in range(MAX_CAUSES):
        if not isinstance(error, Exception):
            break
        meaning = _meaning(error)
        if meaning is not None and meaning.temporary:
            return error
        error = error.__cause__
    return None


def _meaning(error: Exception) -> _Meaning | None:
    if not isinstance(error, RedisErrors):
        return None
    text = _WRAPPED.sub("", str(error))
    return next((row for row in _MEANINGS if isinstance(error, row.kinds) or text.startswith(row.words)), None)


def lacks_command(error: BaseException | None) -> bool:
    """Return whether Redis does not have a command, or one in a script."""
    return isinstance(error, Exception) and _meaning(error) is _MISSING


def is_refused(error: BaseException | None) -> bool:
    """Return whether Redis refuses a command, or one in a script, for good: it is missing, or not permitted."""
    return isinstance(error, Exception) and _meaning(error) in (_MISSING, _FORBIDDEN)


class UnlessRefused(contextlib.AbstractContextManager[None, bool]):
    """Leaves its block if Redis refuses one of its commands for good; other errors are raised."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return is_refused(error)


UNKNOWN: Final = "; whether the call took effect is unknown"


def may_have_arrived(error: Exception) -> bool:
    """Return whether the command that failed with *error* may have been executed: sent, but no reply."""
    if isinstance(error, redis.ResponseError) or is_temporary_refusal(error):
        return False
    return isinstance(error, _UNREACHABLE) and not _NOT_CONNECTED.search(str(error))


_UNREACHABLE: Final = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.RedisClusterException, OSError)

# The same in every supported redis-py, for TCP, TLS, unix sockets, Sentinel and Cluster.
_NOT_CONNECTED: Final = re.compile(r"\bconnecting to |^No master found for |^Redis Cluster cannot be connected")


FULL: Final = (
    "Redis is out of memory and takes nothing new: let consumers and workers make room, or raise its maxmemory"
)


class _Meaning(NamedTuple):
    """Errors of redis-py, by class or first words, and ours for them; *temporary* as in is_temporary_refusal."""

    kinds: tuple[type[Exception], ...]
    words: tuple[str, ...]
    ours: type[StoreError]
    text: str
    temporary: bool = False


_FORBIDDEN: Final = _Meaning(
    (redis.exceptions.NoPermissionError,),
    ("NOPERM", "The user executing the script", "ACL failure in script"),
    StoreRefusedError,
    "the Redis user lacks a permission",
)

_MISSING: Final = _Meaning(
    (),
    ("unknown command", "unknown subcommand", "Unknown subcommand", "Unknown Redis command", "Unknown command"),
    StoreRefusedError,
    "this Redis lacks a command",
)

_MEANINGS: Final = (
    _Meaning(
        (redis.AuthenticationError, redis.exceptions.AuthorizationError),
        ("NOAUTH", "WRONGPASS"),
        StoreRefusedError,
        "Redis refused the login; check user and password",
        temporary=True,
    ),
    _Meaning(
        (redis.ReadOnlyError,),
        # The second one is from redis-py, after a failover of Sentinel.
        ("READONLY", "The previous master is now a slave"),
        StoreUnavailableError,
        "connected to a read-only replica",
        temporary=True,
    ),
    _FORBIDDEN,
    _MISSING,
    _Meaning((redis.exceptions.OutOfMemoryError,), ("OOM",), StoreRefusedError, FULL, temporary=True),
    # A full disk, missing replicas.
    _Meaning((), ("MISCONF", "NOREPLICAS"), StoreUnavailableError, "Redis refuses writes for now", temporary=True),
    _Meaning(
        # redis-py removes the first word if it has a class for it, and raises a plain ClusterError after too many
        # redirections: a slot is moving.
        (redis.BusyLoadingError, redis.exceptions.ClusterError, redis.exceptions.TryAgainError),
        ("LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "BUSY ", "UNBLOCKED"),
        StoreUnavailableError,
        "Redis is not ready",
        temporary=True,
    ),
    _Meaning((), ("max number of clients",), StoreUnavailableError, "Redis takes no more connections", temporary=True),
    _Meaning(
        (redis.exceptions.AskError,),
        ("MOVED", "ASK"),
        UnsupportedServerError,
        "this server belongs to a Redis Cluster, and another node has these keys; connect to redis+cluster://",
    ),
    _Meaning(_UNREACHABLE, (), StoreUnavailableError, "Redis cannot be reached or did not answer in time"),
)
