"""A Lock that three processes want."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from proof.simulate.scheduler import SIM
from proof.simulate.server import Server
from proof.simulate.world import URL, World
from redis_queue.errors import StoreError
from redis_queue.lock.lock import Lock
from redis_queue.validation.history import Violation

ROUNDS: Final = 4


class LockWorld(World):
    """Each holder looks whether it has lost the lock before each of its steps."""

    lease = 5.0
    #: Undone acquisitions are the fault of the server.
    spared = frozenset({"failover"})

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._fence = 0
        self._found: list[str] = []
        self._left = dict.fromkeys(("a", "b", "c"), ROUNDS)

    @property
    def roles(self) -> dict[str, Callable[[], object]]:
        return {role: self._holder(role) for role in self._left}

    def _holder(self, role: str) -> Callable[[], None]:
        def main() -> None:
            lock = Lock("gate", URL, prefix="sim", lease=self.lease)
            while self._left[role] > 0:
                self._left[role] -= 1
                try:
                    held = lock.acquire(wait=2 * self.lease)
                except StoreError:
                    continue
                if held is not None:
                    self._work(held)
                    held.release()

        return main

    def _work(self, held: object) -> None:
        fence: int = held.fence  # type: ignore[attr-defined]
        if fence <= self._fence:
            self._found.append(f"fence {fence} after {self._fence}")
        self._fence = max(self._fence, fence)
        for _ in range(SIM.rng.randint(1, 6)):
            time.sleep(SIM.rng.uniform(0, self.lease))
            if held.lost:  # type: ignore[attr-defined]
                return
            # From the look to here nothing else can happen.
            if self._fence > fence:
                self._found.append(f"the holder of fence {fence} believes in it after {self._fence}")

    def is_done(self) -> bool:
        return not any(self._left.values()) and not any(process.alive for process in SIM.processes.values())

    def wrong(self) -> Iterator[Violation]:
        yield from (Violation(text, "gate", []) for text in self._found)
