"""One piece of a campaign: producers, workers, a Redis, faults; its figures."""

from __future__ import annotations

import heapq
import itertools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.children import ROOT
from benchmarks.kills.campaign.app import LEASE, OURS, POPPING, QUEUE, STOCK, task_id
from benchmarks.kills.campaign.crew import OFFSETS, Crew, Slot
from benchmarks.kills.campaign.ledger import Fault, Ledger
from benchmarks.kills.peer import _contents
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

FAULTS: Final = ("kills", "redis", "silence", "skew", "full", "mixed", "upgrade")
KILL_EVERY: Final = 4500
"""Tasks for each kill, in the mean."""

STRIKE_EVERY: Final = 12000
"""Tasks for each other fault."""

CALM: Final = 60.0
"""Seconds without a run after which no more are expected; longer than a lease, and than what finds expired ones."""

AFTER: Final = 1.5 * LEASE
"""Seconds after a fault of the server in which its effects may begin."""

EMPTY_LOOKS: Final = 40
"""How often Redis must be empty before missing tasks are taken for lost."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a piece is made from."""

    peer: str
    tasks: int
    seed: int
    faults: tuple[str, ...]
    rate: int = 0
    """Most tasks sent in a second; 0 for as many as are executed."""


class Piece:
    """A run of a plan."""

    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self._plan, self._folder, self._tell = plan, folder, tell
        self._dice = random.Random(f"piece {plan.seed}")
        self._aof = self._dice.choice(("everysec", "everysec", "always"))
        self._server = RedisServer("--maxmemory-policy", "noeviction", tcp=True, aof=self._aof)
        self._happened: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._ledger = Ledger(plan.tasks, folder / "calls", folder / "runs", self._faults)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._striking = False
        self._kill_at, self._strike_at = (self._dice.uniform(0.2, 1) * every for every in (KILL_EVERY, STRIKE_EVERY))
        for path in (self._ledger.calls, self._ledger.runs):
            path.touch()

    def go(self) -> dict[str, Any]:
        """Run, and return the figures."""
        started = time.monotonic()
        with self._server as server, FaultProxy((server.address[0], int(server.address[1]))) as proxy:
            self._proxy = proxy
            self._crew = Crew(self._slots(), self._folder, self._dice, self._faults)
            producer = self._produce()
            try:
                self._crew.start()
                self._watch(producer)
                seconds = time.monotonic() - started
                return self._figures(seconds)
            finally:
                self._crew.stop()
                producer.kill()
                producer.wait()

    def _slots(self) -> list[Slot]:
        ours, url, faults = self._plan.peer, self._server.url, self._plan.faults
        slots = [Slot(pool, ours, url) for pool in ("prefork", "threads", "gevent", "solo")]
        if "silence" in faults:
            slots[self._dice.randrange(4)].url = self._proxy.url
        if "skew" in faults:
            for slot in slots:
                slot.offset = self._dice.choice(OFFSETS)
        if "mixed" in faults and ours == OURS:
            slots[2:] = [Slot("solo", kind, url, immortal=True) for kind in (STOCK, POPPING)]
        return slots

    def _produce(self) -> subprocess.Popen[bytes]:
        plan = self._plan
        numbers = map(str, (plan.tasks, plan.seed, plan.rate))
        arguments = [self._server.url, plan.peer, str(self._ledger.calls), *numbers]
        with (self._folder / "producer.log").open("wb") as log:
            command = [sys.executable, "-m", "benchmarks.kills.campaign.producer", *arguments]
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def _watch(self, producer: subprocess.Popen[bytes]) -> None:
        """Inject faults until all is done, or nothing more happens."""
        told, is_over = 0, self._calm()
        while True:
            time.sleep(0.05)
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            self._crew.tend()
            self._ledger.read()
            if self._ledger.executed >= told:
                self._tell(f"{self._ledger.executed:,} of {self._ledger.sent:,} ran")
                told += self._plan.tasks // 4
            if producer.poll() is None:
                self._harm()
            elif producer.returncode:
                raise RuntimeError((self._folder / "producer.log").read_text()[-3000:])
            elif next(is_over):
                return

    def _harm(self) -> None:
        """Kill a worker, or let something else happen, if it is time."""
        executed, uniform = self._ledger.executed, self._dice.uniform
        if "kills" in self._plan.faults and executed >= self._kill_at and (how := self._crew.kill()):
            self._happened[f"kill {how}"] += 1
            self._kill_at += uniform(0.5, 1.5) * KILL_EVERY
        if executed >= self._strike_at and not self._striking and self._strike():
            self._strike_at += uniform(0.5, 1.5) * STRIKE_EVERY

    def _calm(self) -> Iterator[bool]:
        """Yield whether all sent tasks ran, or the others are lost or stuck."""
        ledger, executed, moved, empty = self._ledger, 0, time.monotonic(), 0
        while True:
            now = time.monotonic()
            if ledger.executed > executed or self._later or self._striking:
                executed, moved, empty = ledger.executed, now, 0
            elif now > moved + 5.0 and ledger.done < ledger.sent:
                empty = empty + 1 if self._is_empty() else 0
            done = ledger.done >= ledger.sent and not self._striking
            yield done or now > moved + CALM or empty > EMPTY_LOOKS

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), call))

    def _strike(self) -> bool:
        able = [name for name in ("redis", "silence", "full", "upgrade") if name in self._plan.faults]
        if not able:
            return False
        self._striking = True
        getattr(self, f"_{self._dice.choice(able)}")()
        return True

    def _end(self, kind: str, since: float) -> None:
        self._faults.append(Fault(kind, since, time.monotonic() + AFTER))
        self._striking = False

    def _redis(self) -> None:
        """Restart Redis, or kill it and start it again, at once or after seconds."""
        how = self._dice.choice(("restart", "kill"))
        self._happened[f"redis {how} {self._aof}"] += 1
        now = time.monotonic()
        self._server.kill(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        if how == "kill" and self._aof == "everysec":
            self._faults.append(Fault("unsynced", now, now))

        def again() -> None:
            self._server.restart()
            self._end("redis", now)

        self._after(self._dice.choice((0.0, 3.0)), again)

    def _silence(self) -> None:
        """Let Redis, the network of one worker, or one worker stop for seconds, or cut the connections of one."""
        how, now = self._dice.choice(("stop", "blackhole", "cut", "stall")), time.monotonic()
        self._happened[f"silence {how}"] += 1
        seconds = self._dice.uniform(1.0, 1.5 * LEASE)

        def resume() -> None:
            self._server.resume()
            self._end("silence", now)

        def pass_on() -> None:
            self._proxy.mode = "pass"
            self._end("silence", now)

        if how == "stop":
            self._server.pause()
            self._after(seconds, resume)
        elif how == "blackhole":
            self._proxy.mode = "blackhole"
            self._after(seconds, pass_on)
        elif how == "cut":
            self._proxy.cut()
            self._end("silence", now)
        else:
            seconds, go_on = self._crew.stall()

            def unstall() -> None:
                go_on()
                self._striking = False

            self._after(seconds, unstall)

    def _full(self) -> None:
        """Refuse writes that need memory for seconds."""
        self._happened["full"] += 1
        now = time.monotonic()
        self._configure("1mb")

        def free() -> None:
            self._configure("0")
            self._end("full", now)

        self._after(self._dice.uniform(1.0, 6.0), free)

    def _upgrade(self) -> None:
        """Restart all workers, one by one, with other settings."""
        self._happened["upgrade"] += 1
        step = self._crew.upgrade()

        def go_on() -> None:
            if step():
                self._striking = False
            else:
                self._after(0.2, go_on)

        go_on()

    def _configure(self, maxmemory: str) -> None:
        with self._server.client() as client:
            client.config_set("maxmemory", maxmemory)

    def _is_empty(self) -> bool:
        with self._server.client() as client:
            return not any(client.exists(key) for key in (QUEUE, "unacked")) and not any(
                client.scan_iter("*{*scheduled*", count=1000)
            )

    def _figures(self, seconds: float) -> dict[str, Any]:
        ledger, plan = self._ledger, self._plan
        ledger.read()
        left = ledger.open()
        lost = waiting = undone = 0
        if left:
            with self._server.client() as client:
                everything = b"\n".join([repr(list(_contents(client))).encode(), *client.scan_iter()])
            gone = [number for number in left if task_id(number).encode() not in everything]
            waiting = len(left) - len(gone)
            undone = sum(map(ledger.undone, gone))
            lost = len(gone) - undone
            self._tell(f"not executed: {[(n, task_id(n).encode() in everything) for n in left[:20]]}")
        for again in itertools.islice(ledger.unexplained(), 20):
            self._tell(f"unexplained second run of task, worker, first, second: {again}")
        for text in self._crew.crashed:
            self._tell(text)
        doubled = ledger.doubled()
        kills = sum(count for kind, count in self._happened.items() if kind.startswith("kill"))
        return {
            "peer": plan.peer,
            "seed": plan.seed,
            "faults": ",".join(plan.faults),
            "rate": plan.rate,
            "tasks": ledger.sent + ledger.unknown,
            "unknown": ledger.unknown,
            "executed": ledger.executed,
            "kills": kills,
            "strikes": sum(self._happened.values()) - kills,
            "lost": lost,
            "undone": undone,
            "doubled": doubled.total(),
            "doubled_by": dict(sorted(doubled.items())),
            "worst": ledger.worst(),
            "waiting": waiting,
            "early": ledger.early(),
            "crashed": len(self._crew.crashed),
            "seconds": round(seconds, 1),
            "happened": dict(sorted(self._happened.items())),
            "appendfsync": self._aof,
            "versions": {"commit": _commit(), **{name: version(name) for name in ("celery", "kombu", "redis")}},
        }


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def run(plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run *plan* and return its figures; the folder of its logs stays if something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"campaign-{plan.peer}-{plan.seed}-"))
    figures = Piece(plan, folder, tell).go()
    if not any(figures[name] for name in ("lost", "waiting", "early", "crashed")):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    else:
        tell(f"logs: {folder}")
    return figures
