"""The whole content of a Redis, read atomically, in the form of the models."""

from __future__ import annotations

from typing import Any, Final

import redis

from redis_queue.store.keys import Keys
from tests.property.harness import token_number
from tests.property.model_shard import SCRIPT_FLAWS, UNREADABLE

DUMP: Final = """
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local content
  if kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'list' then content = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else content = {redis.call('GET', key)} end
  all[#all + 1] = {key, kind, content}
end
return all
"""


def dump(client: redis.Redis) -> dict[bytes, tuple[bytes, list[bytes]]]:
    """Return type and content of every key."""
    return {key: (kind, content) for key, kind, content in client.eval(DUMP, 0)}


def take_shard(found: dict[bytes, tuple[bytes, list[bytes]]], keys: Keys) -> dict[str, Any]:
    """Remove one queue or shard from a dump and return it; unknown keys and keys of a wrong type stay in the dump."""
    slots = keys.slot("")
    for key in [key for key in found if key.startswith(slots)]:
        del found[key]

    def of(key: bytes, kind: bytes) -> list[bytes]:
        return found.pop(key)[1] if key in found and found[key][0] == kind else []

    return {
        "meta": {name.decode(): int(value) for name, value in _pairs(of(keys.meta, b"hash"))},
        "records": {id_.decode(): raw for id_, raw in _pairs(of(keys.records, b"hash"))},
        "ready": [id_.decode() for id_ in of(keys.ready, b"list")],
        "waiting": _scores(of(keys.waiting, b"zset")),
        "in_flight": _scores(of(keys.in_flight, b"zset")),
        "leases": {id_.decode(): _lease(value) for id_, value in _pairs(of(keys.leases, b"hash"))},
        "errors": {id_.decode(): reason.decode() for id_, reason in _pairs(of(keys.errors, b"hash"))},
        "dead": _scores(of(keys.dead, b"zset")),
        "quarantine": [_quarantined(item) for item in of(keys.quarantine, b"list")],
        "wake": len(of(keys.wake, b"list")),
    }


def misplaced(state: dict[str, Any], lost: set[str]) -> str:
    """Return an inconsistency between the states of the ids; "" if each stored id is in exactly one state.

    *lost* are the ids whose record was deleted.
    """
    places = [*state["ready"], *state["waiting"], *state["in_flight"], *state["dead"]]
    if len(places) != len(set(places)):
        return f"an id is in two places: {sorted(places)}"
    if set(places) != set(state["records"]) | lost:
        return f"places hold {sorted(places)}, records {sorted(state['records'])}"
    held = {id_ for id_, (_, number) in state["leases"].items() if number is not None}
    if held != set(state["in_flight"]):
        return f"tokens for {sorted(held)}, in flight {sorted(state['in_flight'])}"
    if not set(state["leases"]) <= set(places):
        return f"deliveries of {sorted(state['leases'])}, places hold {sorted(places)}"
    return ""


def differences(got: dict[str, Any], expected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differing parts, each with the content of Redis and of the model."""
    return {
        part: (got.get(part), expected.get(part)) for part in {**got, **expected} if got.get(part) != expected.get(part)
    }


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _scores(flat: list[bytes]) -> dict[str, int]:
    # A score with a fraction is an error.
    return {id_.decode(): int(score) for id_, score in _pairs(flat)}


def _lease(value: bytes) -> tuple[int, int | None]:
    deliveries, _, token = value.decode().partition(" ")
    return int(deliveries), token_number(token) if token else None


def _quarantined(item: bytes) -> tuple[int, str, str, bytes]:
    head, _, rest = item.partition(b"\n")
    at, id_length, reason_length = map(int, head.split(b" "))
    middle = id_length + reason_length
    return at, rest[:id_length].decode(), told(rest[id_length:middle].decode()), rest[middle:]


def told(reason: str) -> str:
    """Return the reason of a quarantined record in the form of the models, without the words of the client."""
    return reason if reason in SCRIPT_FLAWS or not reason else UNREADABLE
