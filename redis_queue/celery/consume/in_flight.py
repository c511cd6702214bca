"""InFlightRecords: the records of messages in flight, in kombu's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from redis_queue.celery.consume.gates import GateKeys, Move, is_gated
from redis_queue.errors import RedisQueueError
from redis_queue.store.links import DirectLink
from redis_queue.store.redis_errors import lacks_permission
from redis_queue.store.script_files import load
from redis_queue.store.scripts import BoundScript


class InFlightRecords:
    """The in-flight records of one broker. A call without a reply is repeated on a new connection.

    Without the permission to run scripts it uses more commands. Raises the errors of redis-py, which kombu and Celery
    handle.
    """

    def __init__(self, client: redis.Redis, keys: GateKeys) -> None:
        self._client = client
        self._keys = keys
        self._in_flight = keys.in_flight
        self._link = DirectLink(client)
        self._record, self._restore, self._settle = map(self._bound, ("held/record", "held/restore", "held/settle"))
        self._restore_gated, self._settle_gated = map(self._bound, ("flow/restore", "flow/settle"))
        self._expired = self._bound("held/expired")

    def _bound(self, name: str) -> BoundScript:
        script = load(name)
        return BoundScript(self._link, script, self._keys.of(script))

    def add(self, tag: str, record: str) -> float:
        """Write the *record* of a popped message; return the Redis time at which its lease begins."""
        try:
            return float(_call(self._record, now=0, tag=tag, record=record, lease=self._in_flight.lease_ms))
        except redis.exceptions.NoPermissionError:
            # After BRPOP no other copy of the message exists.
            seconds, microseconds = self._client.time()
            score = seconds + microseconds / 1e6
            with self._client.pipeline() as pipe:
                pipe.hset(self._in_flight.records, tag, record)
                pipe.zadd(self._in_flight.index, {tag: score})
                pipe.execute()
            return float(score)

    def find(self, tag: str) -> Any:
        """Return the record of *tag*."""
        found: Any = self._client.hget(self._in_flight.records, tag)
        return found

    def expired(self, visibility_timeout: float, limit: int) -> list[str]:
        """Return up to *limit* (at most 500) tags of each kind, the oldest first: those whose leases ended.

        And those without a lease, whose workers took them longer ago than the *visibility_timeout* of kombu.
        """
        try:
            found = _call(self._expired, now=0, timeout=round(visibility_timeout * 1000), limit=limit)
        except redis.exceptions.NoPermissionError:
            # Without scripts there are no leases.
            before = self._client.time()[0] - visibility_timeout
            found = self._client.zrangebyscore(self._in_flight.index, 0, before, start=0, num=limit)
        return [tag.decode(errors="replace") for tag in found]

    def restore(self, tag: str, record: bytes, rows: Sequence[str], *, last: bool) -> bool:
        """Push *rows*, each a list and a message, in place of the *record* of *tag*; False if it has changed."""
        return bool(_call(self._restore, tag=tag, record=record, last=int(last), more=rows))

    def restore_gated(self, move: Move, record: bytes, *, last: bool) -> bool:
        """Put a message into its gate in place of its *record*; False if the record has changed."""
        return bool(
            _call(
                self._restore_gated,
                now=0,
                tag=move.tag,
                record=record,
                last=int(last),
                step=move.step,
                queue=move.queue,
                task=move.header.task,
                of_task=move.header.of_task,
                of_queue=move.header.of_queue,
                message=move.element,
            )
        )

    def settle(self, tags: list[str]) -> list[bytes]:
        """Remove the records of *tags*; return those that had none, if Redis permits scripts."""
        gated = [tag for tag in tags if is_gated(tag)]
        return [
            *self._settle_with(self._settle_gated, gated, now=0),
            *self._settle_with(self._settle, [tag for tag in tags if not is_gated(tag)]),
        ]

    def free(self, tags: list[str]) -> None:
        """Free the places of *tags* of flows, which are no longer in flight."""
        self._settle_with(self._settle_gated, tags, now=0)

    def _settle_with(self, script: BoundScript, tags: list[str], **options: int) -> list[bytes]:
        if not tags:
            return []
        try:
            missing: list[bytes] = _call(script, more=tags, **options)
        except redis.exceptions.NoPermissionError:
            with self._client.pipeline() as pipe:
                pipe.zrem(self._in_flight.index, *tags)
                pipe.hdel(self._in_flight.records, *tags)
                pipe.execute()
            return []
        return missing

    def close(self) -> None:
        """Close the connections; the next call opens another one."""
        self._link.close()


def _call(script: BoundScript, **arguments: Any) -> Any:
    try:
        return script(**arguments)
    except RedisQueueError as error:
        cause = error.__cause__ or error
        if isinstance(cause, Exception) and lacks_permission(cause):
            # Redis 7.0 names no class for a command in a script.
            raise redis.exceptions.NoPermissionError(str(cause)) from None
        raise cause from None
