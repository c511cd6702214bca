"""Settlement: removes the records of acknowledged messages in batches. InFlightRecords: one call at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any, Final

import redis

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.admission.admission import AdmissionKeys, Move, has_place
from redis_queue.errors import RedisQueueError
from redis_queue.store.async_connection import AsyncCall, AsyncConnection
from redis_queue.store.links import Argument, DirectLink
from redis_queue.store.redis_errors import UnlessRefused, as_unavailable, is_refused, translate
from redis_queue.store.script_files import load
from redis_queue.store.scripts import BoundScript

logger = logger_of(__name__)

MAX_IN_BATCH: Final = 64
"""Maximum number of messages in a batch: a killed worker may run as many finished tasks again."""

DELAY: Final = 0.005
"""Maximum seconds between an acknowledgement and its batch, while the worker's event loop runs."""


class Settlement:
    """Collects delivery tags of atomic fetch; one script removes the records of a batch, and its reply is read later.

    A tag stays here, and its lease is renewed, until Redis has confirmed it: a batch without a reply is sent again on
    the next connection. Each fetch makes new tags, so a late or repeated batch touches no message of another worker.
    *release(tags, lost=tags)* ends the renewal of leases; those of *lost* were lost before.
    """

    def __init__(self, keys: AdmissionKeys, release: Callable[..., None]) -> None:
        # Those with a place in a flow free it.
        scripts = {False: load("broker/settle"), True: load("admission/settle")}
        self._scripts = {places: (script, keys.of(script)) for places, script in scripts.items()}
        self._release = release
        self._waiting: list[str] = []
        self._since = math.inf
        self._sent: list[list[str]] = []
        self._repeated: set[str] = set()
        self._tags: set[str] = set()

    def __len__(self) -> int:
        """Return how many tags are not sent yet."""
        return len(self._waiting)

    def __contains__(self, tag: str) -> bool:
        """Return whether *tag* was added, and Redis has not confirmed that its record is removed."""
        return tag in self._tags

    @property
    def due_at(self) -> float:
        """When the next batch has to be sent, on the monotonic clock; infinite if there is none."""
        return 0.0 if len(self._waiting) >= MAX_IN_BATCH else self._since + DELAY

    def add(self, tag: str) -> None:
        """Settle *tag* with the next batch; no-op if it was added before."""
        if tag not in self._tags:
            if not self._waiting:
                self._since = monotonic()
            self._waiting.append(tag)
            self._tags.add(tag)

    def withdraw(self, tags: Set[str]) -> None:
        """Do not settle *tags*; those that were sent may still be settled."""
        if self._tags.isdisjoint(tags):
            return
        self._waiting = [tag for tag in self._waiting if tag not in tags]
        for batch in self._sent:
            batch[:] = [tag for tag in batch if tag not in tags]
        self._repeated -= tags
        self._tags -= tags

    def calls(self, connection: AsyncConnection) -> list[AsyncCall]:
        """Return the calls that settle all tags that are not sent yet; the caller sends them on *connection*."""
        calls = []
        for batch in self._batches():
            self._sent.append(batch)
            frees = has_place(batch[0])
            script, keys = self._scripts[frees]
            arguments: tuple[Argument, ...] = (len(keys), *keys, *([0] if frees else []), *batch)
            calls.append(connection.script(script, arguments, functools.partial(self._take, batch)))
        return calls

    @property
    def has_places(self) -> bool:
        """Whether a tag that is not sent yet has a place in a flow."""
        return any(map(has_place, self._waiting))

    def with_places(self) -> tuple[list[str], Callable[[Any], None]]:
        """Return up to 64 tags of flows that are not sent yet, which the caller sends, and what to do with the reply.

        The reply is a list of the tags that had no record, or an exception.
        """
        batch = [tag for tag in self._waiting if has_place(tag)][:MAX_IN_BATCH]
        if not batch:
            return batch, lambda _: None
        chosen = set(batch)
        self._waiting = [tag for tag in self._waiting if tag not in chosen]
        self._since = self._since if self._waiting else math.inf
        self._sent.append(batch)
        return list(batch), functools.partial(self._take, batch)

    def flush(self, connection: AsyncConnection) -> None:
        """Send all tags that are not sent yet on *connection*."""
        if self._waiting:
            connection.send(self.calls(connection))

    def reclaim(self) -> None:
        """Send the batches without a reply again: their connection is lost."""
        for batch in reversed(self._sent):
            self._repeated.update(batch)
            self._waiting[:0] = batch
            self._since = 0.0
        self._sent.clear()

    def settle_all(self, settle: Callable[[list[str]], list[bytes]]) -> None:
        """Settle all tags by *settle*, which removes the records of a batch and returns the tags that had none."""
        self.reclaim()
        batches = self._batches()
        self._sent += batches
        for batch in batches:
            self._take(batch, settle(batch))

    def _batches(self) -> list[list[str]]:
        waiting, self._waiting, self._since = self._waiting, [], math.inf
        kinds = [[tag for tag in waiting if has_place(tag) == frees] for frees in (True, False)]
        return [tags[start : start + MAX_IN_BATCH] for tags in kinds for start in range(0, len(tags), MAX_IN_BATCH)]

    def _take(self, batch: list[str], reply: Any) -> None:
        if batch not in self._sent:
            # It was sent again since.
            return
        missing: list[bytes] = []
        if is_refused(reply):
            # The caller settles without scripts.
            raise reply
        if isinstance(reply, Exception):
            away = as_unavailable(reply)
            if away is not None:
                raise away from reply
            # As in kombu and Celery: the messages come again when their leases end.
            extra = {"action": "settle_failed"}
            logger.critical("cannot settle %d messages: %s", len(batch), translate(reply), extra=extra)
        else:
            missing = reply
        self._sent.remove(batch)
        gone = {tag.decode(errors="replace") for tag in missing}
        lost = [tag for tag in batch if tag in gone and tag not in self._repeated]
        self._repeated.difference_update(batch)
        self._release(batch, lost=lost)
        # Afterwards: a renewal that missed a record, told by another thread, would count as a loss in between.
        self._tags.difference_update(batch)


class InFlightRecords:
    """The in-flight records of one broker. A call without a reply is repeated on a new connection.

    If Redis refuses scripts for good, it uses more commands. Raises the errors of redis-py, which kombu and Celery
    handle.
    """

    def __init__(self, client: redis.Redis, keys: AdmissionKeys) -> None:
        self._client = client
        self._keys = keys
        self._in_flight = keys.in_flight
        self._link = DirectLink(client)
        self._record, self._restore, self._settle = map(
            self._bound, ("broker/record", "broker/restore", "broker/settle")
        )
        self._restore_waiting, self._settle_places = map(self._bound, ("admission/restore", "admission/settle"))
        self._expired = self._bound("broker/expired")

    def _bound(self, name: str) -> BoundScript:
        script = load(name)
        return BoundScript(self._link, script, self._keys.of(script))

    def add(self, tag: str, record: str) -> float:
        """Write the *record* of a popped message; return the Redis time at which its lease begins."""
        with UnlessRefused():
            return float(_call(self._record, now=0, tag=tag, record=record, lease=self._in_flight.lease_ms))
        # After BRPOP no other copy of the message exists.
        seconds, microseconds = self._client.time()
        score = seconds + microseconds / 1e6
        with self._client.pipeline() as pipe:
            pipe.hset(self._in_flight.unacked, tag, record)
            pipe.zadd(self._in_flight.index, {tag: score})
            pipe.execute()
        return float(score)

    def find(self, tag: str) -> Any:
        """Return the record of *tag*."""
        found: Any = self._client.hget(self._in_flight.unacked, tag)
        return found

    def expired(self, visibility_timeout: float, limit: int) -> list[str]:
        """Return up to *limit* (at most 500) tags of each of two kinds, the oldest first.

        The leases of the one kind have ended. The others have no lease, and their workers took them longer ago than
        the *visibility_timeout* of kombu.
        """
        found: Any = None
        with UnlessRefused():
            found = _call(self._expired, now=0, timeout=round(visibility_timeout * 1000), limit=limit)
        if found is None:
            # Without scripts there are no leases.
            before = self._client.time()[0] - visibility_timeout
            found = self._client.zrangebyscore(self._in_flight.index, 0, before, start=0, num=limit)
        return [tag.decode(errors="replace") for tag in found]

    def restore(self, tag: str, record: bytes, rows: Sequence[str], *, last: bool, ended: bool) -> bool:
        """Push *rows*, each a list and a message, in place of the *record* of *tag*; False if it has changed.

        *ended*: only if its lease has ended.
        """
        return bool(_call(self._restore, now=0, tag=tag, record=record, ended=int(ended), last=int(last), more=rows))

    def return_waiting(self, move: Move, record: bytes, *, last: bool, ended: bool = False) -> bool:
        """Let a message wait for admission again, as :meth:`restore` puts it into lists."""
        return bool(_call(self._restore_waiting, **move.arguments(record, last=last, ended=ended)))

    def settle(self, tags: list[str]) -> list[bytes]:
        """Remove the records of *tags*; return those that had none, if Redis runs scripts."""
        of_flows = [tag for tag in tags if has_place(tag)]
        return [
            *self._settle_with(self._settle_places, of_flows, now=0),
            *self._settle_with(self._settle, [tag for tag in tags if not has_place(tag)]),
        ]

    def free(self, tags: list[str]) -> None:
        """Free the places of *tags* of flows, which are no longer in flight."""
        self._settle_with(self._settle_places, tags, now=0)

    def _settle_with(self, script: BoundScript, tags: list[str], **options: int) -> list[bytes]:
        if not tags:
            return []
        with UnlessRefused():
            missing: list[bytes] = _call(script, more=tags, **options)
            return missing
        with self._client.pipeline() as pipe:
            pipe.zrem(self._in_flight.index, *tags)
            pipe.hdel(self._in_flight.unacked, *tags)
            pipe.execute()
        return []

    def close(self) -> None:
        """Close the connections; the next call opens another one."""
        self._link.close()
        # kombu closes those of a channel before it returns its messages, which opens one again.
        self._client.connection_pool.disconnect()


def _call(script: BoundScript, **arguments: Any) -> Any:
    try:
        return script(**arguments)
    except RedisQueueError as error:
        raise (error.__cause__ or error) from None
