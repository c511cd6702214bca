"""Translate errors of redis-py into errors of redis_queue without passwords."""

from __future__ import annotations

import re
from typing import Final

import redis

from redis_queue.errors import (
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedServerError,
    WrongTypeError,
)

RedisErrors: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
"""All errors of redis-py; its cluster error is not a RedisError."""

# Redis before 7 wraps the error of a command in a script.
_WRAPPED = re.compile(r"^(?:Error running script \(call to f_\w+\): )?(?:@user_script: ?\d+: )+-?")
_CREDENTIALS = re.compile(r"(?<=//)(?:(?!://)\S)*@|(?<=password=)[^&\s]*")


def redact(text: str) -> str:
    """Return *text* with user and password of each URL replaced by ``***``."""
    return _CREDENTIALS.sub(lambda found: "***@" if found[0].endswith("@") else "***", text)


def translate(error: Exception, *, unknown: bool = False) -> StoreError:
    """Return the error of redis_queue for one of redis-py. The caller raises it ``from`` the original.

    *unknown*: the command is a write that may have been executed although its reply was lost; the message says so.
    """
    text = redact(_WRAPPED.sub("", str(error)))
    if "to run the 'eval' command" in text:
        return StoreUnavailableError(
            "the scripts are not loaded into this Redis, and its user has no permission for EVAL, so nothing was done:"
            " run `redis-queue load-scripts` as a user with the role loader (docs/security.md)"
        )
    if text.startswith("WRONGTYPE"):
        return WrongTypeError(f"{WrongTypeError.__doc__} ({text})")
    doubt = UNKNOWN if unknown else ""
    for kinds, words, ours, meaning in _MEANINGS:
        if isinstance(error, kinds) or text.startswith(words):
            return ours(f"{meaning}{doubt} ({text})")
    return StoreError(text + doubt)


def lacks_permission(error: Exception) -> bool:
    """Return whether Redis refused a command, or one in a script, for want of a permission."""
    text = _WRAPPED.sub("", str(error))
    return isinstance(error, redis.exceptions.NoPermissionError) or text.startswith(_NO_PERMISSION)


_NO_PERMISSION: Final = ("NOPERM", "The user executing the script", "ACL failure in script")

UNKNOWN: Final = "; whether the call took effect is unknown"


def may_have_arrived(error: Exception) -> bool:
    """Return whether the command that failed with *error* may have been executed: sent, but no reply."""
    if isinstance(error, redis.ResponseError | redis.AuthenticationError | redis.BusyLoadingError):
        return False
    return isinstance(error, _UNREACHABLE) and not _NOT_CONNECTED.search(str(error))


_UNREACHABLE: Final = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.RedisClusterException, OSError)

# The same in every supported redis-py, for TCP, TLS, unix sockets, Sentinel and Cluster.
_NOT_CONNECTED: Final = re.compile(r"\bconnecting to |^No master found for |^Redis Cluster cannot be connected")


FULL: Final = (
    "Redis is out of memory and takes nothing new: let consumers and workers make room, or raise its maxmemory"
)

_MEANINGS: Final[tuple[tuple[tuple[type[Exception], ...], tuple[str, ...], type[StoreError], str], ...]] = (
    (
        (redis.AuthenticationError, redis.exceptions.AuthorizationError),
        ("NOAUTH", "WRONGPASS"),
        StoreRefusedError,
        "Redis refused the login; check user and password",
    ),
    ((redis.ReadOnlyError,), ("READONLY",), StoreUnavailableError, "connected to a read-only replica"),
    (
        (redis.exceptions.NoPermissionError,),
        _NO_PERMISSION,
        StoreRefusedError,
        "the Redis user lacks a permission",
    ),
    (
        (redis.exceptions.OutOfMemoryError,),
        ("OOM",),
        StoreRefusedError,
        FULL,
    ),
    # Temporary: a full disk, missing replicas. A caller that waits for Redis waits for these, too.
    ((), ("MISCONF", "NOREPLICAS"), StoreUnavailableError, "Redis refuses writes for now"),
    (
        # redis-py removes the first word if it has a class for it, and raises a plain ClusterError after too many
        # redirections: a slot is moving.
        (redis.BusyLoadingError, redis.exceptions.ClusterError, redis.exceptions.TryAgainError),
        ("LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "BUSY", "UNBLOCKED"),
        StoreUnavailableError,
        "Redis is not ready",
    ),
    (
        (redis.exceptions.AskError,),
        ("MOVED", "ASK"),
        UnsupportedServerError,
        "this server belongs to a Redis Cluster, and another node has these keys; connect to redis+cluster://",
    ),
    (
        _UNREACHABLE,
        (),
        StoreUnavailableError,
        "Redis cannot be reached or did not answer in time",
    ),
)
