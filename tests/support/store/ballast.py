"""Keep a Redis full."""

from __future__ import annotations

import redis


class Ballast:
    """A key that keeps Redis over its limit, however much else is freed."""

    SIZE = 32 * 1024 * 1024

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        # Not SET: its argument would be in buffers for a while, and count as used memory.
        client.setrange("ballast", self.SIZE, b"x")
        self._limit = self._used() - self.SIZE // 2
        client.config_set("maxmemory", self._limit)

    def is_full(self) -> bool:
        """Tell whether Redis is over its limit."""
        return self._used() > self._limit

    def free(self) -> None:
        """Delete the key."""
        self._client.delete("ballast")

    def _used(self) -> int:
        return int(self._client.info("memory")["used_memory"])
