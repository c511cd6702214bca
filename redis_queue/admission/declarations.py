"""Declarations: the flows in the code of each app whose workers have started lately."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis_queue.admission.flow_keys import KeysOfFlows
from redis_queue.admission.flows import KINDS, OF_QUEUE, flag_of, limits_of
from redis_queue.admission.rules import Flow, FlowLimits
from redis_queue.store.chunks import chunks
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import MAX_NAME, FlowKeys
from redis_queue.store.scripts import Clock, Scripts, now_ms, pairs, server_clock

KEPT_MS: Final = 7 * 86_400_000
"""How long the flows of an app are kept after the last start of one of its workers."""

MAX_APPS: Final = 100
MAX_FLOWS: Final = 1000
"""Maximum number of flows of an app that are kept."""

MAX_KEY: Final = 300
"""Maximum characters of the template of a key that are kept."""

SCAN: Final = 1000


@dataclass(frozen=True, slots=True)
class Declaration:
    """The limits of a flow in the code of *app*, and its kind, as in FlowState."""

    app: str
    limits: FlowLimits
    kind: str


class Declarations:
    """What the apps of the flows with these *keys* have in their code. All methods raise StoreError."""

    def __init__(self, scripts: Scripts, keys: FlowKeys, clock: Clock = server_clock) -> None:
        self._scripts = scripts
        self._keys = keys
        self._clock = clock

    def write(self, app: str | None, flows: Mapping[str, Flow]) -> list[str]:
        """Replace the flows of the app named *app*; no-op without a name. Old entries of others are deleted.

        A flow that it had before, and that no app has now, is forgotten once it is not in use: no message waits or
        runs, it is not paused, and nothing was set. Returns the flows in use whose key template has changed.
        """
        if not app:
            return []
        now, name = now_ms(self._scripts, self._clock), app[:MAX_NAME].encode(errors="replace")
        chosen = dict(itertools.islice(flows.items(), MAX_FLOWS))
        rules = {flow: each.rules for flow, each in chosen.items()}
        keys = {flow: _key_of(each) for flow, each in chosen.items()}
        others = self._without_old(name, now)
        if not flows and name not in others:
            return []
        own = others.pop(name, b"")
        before = _texts_of(own, "keys")
        removed = {**_texts_of(own, "left"), **before}.keys() - chosen.keys()
        in_use = self._in_use([*removed, *chosen])
        left = {flow: "" for flow in removed if flow in in_use}
        row = {"at": now, "flows": rules, "keys": keys, "left": left}
        self._scripts.command("HSET", self._keys.declared_by, name, json.dumps(row))
        gone = removed - left.keys() - {flow for value in others.values() for flow in _texts_of(value, "flows")}
        if gone:
            for key in (self._keys.config, self._keys.declared):
                self._scripts.command("HDEL", key, *map(id_bytes, sorted(gone)))
        return [flow for flow in keys if flow in in_use and before.get(flow, keys[flow]) != keys[flow]]

    def _without_old(self, name: bytes, now: int) -> dict[bytes, bytes]:
        """Return the entries of all apps after the old ones, but not *name*, were deleted."""
        _, rows = self._scripts.command("HSCAN", self._keys.declared_by, 0, "COUNT", SCAN)
        found = dict(pairs(rows))
        times = {field: _time_of(value) for field, value in found.items() if field != name}
        newest = sorted(times, key=lambda field: times[field], reverse=True)
        gone = [field for number, field in enumerate(newest) if number >= MAX_APPS or times[field] < now - KEPT_MS]
        if gone:
            self._scripts.command("HDEL", self._keys.declared_by, *gone)
        return {field: value for field, value in found.items() if field not in gone}

    def _in_use(self, names: Sequence[str]) -> set[str]:
        """Return the flows that have waiting or running messages, or were changed or paused."""
        keys, found = self._keys, set[str]()
        for chunk in chunks(names):
            hashes = (keys.backlog, keys.running, keys.overrides)
            rows = [self._scripts.command("HMGET", key, *map(id_bytes, chunk)) for key in hashes]
            rows.append(self._scripts.command("HMGET", keys.flags, *(id_bytes(flag_of(flow)) for flow in chunk)))
            rows.append(KeysOfFlows(self._scripts, keys).changes(chunk))
            found |= {flow for flow, *values in zip(chunk, *rows, strict=True) if any(values)}
        return found

    def read(self) -> dict[str, list[Declaration]]:
        """Return the declarations of each flow, by app."""
        least = now_ms(self._scripts, self._clock) - KEPT_MS
        found: dict[str, list[Declaration]] = {}
        for field, value in sorted(pairs(self._scripts.command("HGETALL", self._keys.declared_by))):
            if _time_of(value) >= least:
                for name, rules in _texts_of(value, "flows").items():
                    limits, kind = limits_of(rules.encode())
                    declaration = Declaration(id_text(field), limits, KINDS.get(kind, ""))
                    found.setdefault(name, []).append(declaration)
        return found


def _time_of(value: bytes) -> int:
    """Return the time of an entry in ms; 0 for one of another program."""
    try:
        return small_integer(read_document(value)["at"])
    except (ValueError, TypeError, LookupError):
        return 0


def _texts_of(value: bytes, name: str) -> dict[str, str]:
    """Return the texts in the part *name* of an entry, by flow; none of an entry of another program, or version."""
    try:
        found = read_document(value)[name].items()
        return {flow: text for flow, text in found if isinstance(text, str) and len(flow) <= MAX_NAME + len(OF_QUEUE)}
    except (ValueError, TypeError, LookupError, AttributeError):
        return {}


def _key_of(flow: Flow) -> str:
    """Return how the keys of *flow* are made, as a text; "" without keys."""
    made = flow.template.template if flow.template is not None else ""
    return (made if isinstance(made, str) else f"{made.__module__}.{made.__qualname__}")[:MAX_KEY]
