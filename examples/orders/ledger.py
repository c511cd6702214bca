"""The sent work, and when it was executed."""

from __future__ import annotations

import json
import math

import redis


class Ledger:
    """One kind of work: *sent* maps its ids to their due times.

    Each run of the work appends a JSON object with ``id`` and ``ran`` to the Redis list *key*.
    """

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.sent: dict[str, float] = {}
        self._client = client
        self._key = key
        self._read = 0
        self._first: dict[str, float] = {}
        self._again: set[str] = set()

    def update(self) -> None:
        """Read the records since the last update."""
        done = self._client.lrange(self._key, self._read, -1)
        self._read += len(done)
        for raw in done:
            record = json.loads(raw)
            if record["id"] in self._first:
                self._again.add(record["id"])
            else:
                self._first[record["id"]] = record["ran"]

    @property
    def executed(self) -> int:
        """Number of sent ids that were done at least once."""
        return len(self._first.keys() & self.sent.keys())

    @property
    def lost(self) -> int:
        """Number of sent ids that were never done."""
        return len(self.sent) - self.executed

    @property
    def doubled(self) -> int:
        """Number of ids that were done more than once."""
        return len(self._again)

    def lateness(self, share: float) -> float:
        """Return the lateness in seconds that *share* of the work did not exceed; NaN if none was done."""
        late = sorted(ran - self.sent[id_] for id_, ran in self._first.items() if id_ in self.sent)
        return late[math.ceil(share * len(late)) - 1] if late else math.nan
