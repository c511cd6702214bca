"""Declarations: the flows in the code of each app whose workers have started lately."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from redis_queue.flow.flows import KINDS, limits_of
from redis_queue.flow.model import Limits
from redis_queue.flow.rules import Flow
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.ids import id_text
from redis_queue.store.keys import MAX_NAME, FlowKeys
from redis_queue.store.records import Clock, now_ms, server_clock
from redis_queue.store.replies import pairs
from redis_queue.store.scripts import Scripts

KEPT_MS: Final = 7 * 86_400_000
"""How long the flows of an app are kept after the last start of one of its workers."""

MOST_APPS: Final = 100
MOST_FLOWS: Final = 1000
"""Most flows of an app that are kept."""

SCAN: Final = 1000


@dataclass(frozen=True, slots=True)
class Declaration:
    """The limits of a flow in the code of *app*, and its kind, as in FlowState."""

    app: str
    limits: Limits
    kind: str


class Declarations:
    """What the apps of the flows with these *keys* have in their code. All methods raise StoreError."""

    def __init__(self, scripts: Scripts, keys: FlowKeys, clock: Clock = server_clock) -> None:
        self._scripts = scripts
        self._key = keys.declared_by
        self._clock = clock

    def write(self, app: str | None, flows: Mapping[str, Flow]) -> None:
        """Replace the flows of the app named *app*; no-op without a name. Old entries of others are deleted."""
        if not app:
            return
        now = now_ms(self._scripts, self._clock)
        rules = {name: flow.rules for name, flow in itertools.islice(flows.items(), MOST_FLOWS)}
        name = app[:MAX_NAME].encode(errors="replace")
        self._scripts.command("HSET", self._key, name, json.dumps({"at": now, "flows": rules}))
        _, rows = self._scripts.command("HSCAN", self._key, 0, "COUNT", SCAN)
        times = {field: _time_of(value) for field, value in pairs(rows) if field != name}
        newest = sorted(times, key=lambda field: times[field], reverse=True)
        gone = [field for number, field in enumerate(newest) if number >= MOST_APPS or times[field] < now - KEPT_MS]
        if gone:
            self._scripts.command("HDEL", self._key, *gone)

    def read(self) -> dict[str, list[Declaration]]:
        """Return the declarations of each flow, by app."""
        least = now_ms(self._scripts, self._clock) - KEPT_MS
        found: dict[str, list[Declaration]] = {}
        for field, value in sorted(pairs(self._scripts.command("HGETALL", self._key))):
            if _time_of(value) >= least:
                for name, rules in _flows_of(value).items():
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


def _flows_of(value: bytes) -> dict[str, str]:
    try:
        found = read_document(value)["flows"].items()
        return {name: rules for name, rules in found if isinstance(rules, str)}
    except (ValueError, TypeError, LookupError, AttributeError):
        return {}
