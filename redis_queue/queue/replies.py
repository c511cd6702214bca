"""Read the replies of the scripts of a RedisQueue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_queue.basics.times import from_ms
from redis_queue.model import Lease, Message, QueueStats, Unread
from redis_queue.store.codec import UnreadableError
from redis_queue.store.ids import id_text
from redis_queue.store.records import Records


def read_message(records: Records, row: Sequence[Any], lease: Lease | None) -> Message | None:
    """Return the message of *row* (id, deliveries, record), None if it is unreadable.

    An unreadable message with a *lease* goes to quarantine. A record that is an integer was left in Redis: its size.
    """
    raw_id, deliveries, record = row
    id_ = id_text(raw_id)
    if isinstance(record, int):
        return Message(id_, Unread(record), {}, from_ms(0), deliveries, lease)
    try:
        put_at, headers, body, _ = records.codec.decode(record)
    except UnreadableError as error:
        if lease is not None:
            records.set_aside(Message(id_, None, {}, from_ms(0), deliveries, lease), str(error))
        return None
    return Message(id_, body, headers, from_ms(put_at), deliveries, lease)


def read_stats(reply: Sequence[Any]) -> QueueStats:
    """Return the reply of the script ``queue/stats``."""
    ready, delayed, in_flight, dead, quarantined, put, acked, redelivered, paused, oldest, put_back = reply
    return QueueStats(
        ready,
        delayed,
        in_flight,
        dead,
        quarantined,
        put,
        acked,
        redelivered,
        bool(paused),
        from_ms(oldest) if oldest else None,
        put_back,
    )
