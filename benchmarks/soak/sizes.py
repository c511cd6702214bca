"""Memory, descriptors and connections of processes and of Redis, at one moment, and their slopes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.soak.app import BLOCKS

COLLECT_WITHIN: Final = 60.0

TIMES: Final = 5
"""How often each process collects its garbage for a sample: a process of a pool holds what its last task returned or
raised, with the traceback, until it runs the next one, and schedules run all the time. The least blocks count.
"""

MB: Final = 1e6

BOUNDS: Final = {
    "worker blocks, thousands": 40.0,
    "pool blocks, thousands": 40.0,
    "sender blocks, thousands": 40.0,
    "worker RSS, MB": 6.0,
    "worker USS, MB": 6.0,
    "pool RSS, MB": 6.0,
    "pool USS, MB": 6.0,
    "keeper RSS, MB": 1.0,
    "keeper USS, MB": 1.0,
    "sender RSS, MB": 6.0,
    "sender USS, MB": 6.0,
    "descriptors": 10.0,
    "connections": 10.0,
    "Redis, MB": 4.0,
    "keys": 20.0,
}
"""Most that each may grow in a day. One object per task would be 200 to 400 thousand blocks of Python's memory. A pool
opens one more connection when as many calls meet for the first time, perhaps late in the day: a slope of 4. One that is
lost in each hour would be 24.
"""

CUT_BOUNDS: Final = BOUNDS | {"descriptors": 20.0, "connections": 20.0}
"""Most that each may grow in the cuts. Idle connections are noticed as lost when they are used next, so some numbers
vary by ten. One connection per cut and worker would be 200.
"""

Sizes = dict[str, float]


def sizes(workers: Sequence[int], sender: int, client: Any, folder: Path) -> Sizes:
    """Return the sizes: sums over *workers*, their children and keepers, of the process *sender*, and of Redis.

    The processes collect their garbage before, and tell their blocks in *folder*.
    """
    found: dict[str, float] = defaultdict(float)
    roles = dict.fromkeys(workers, "worker") | {sender: "sender"}
    for pid in workers:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            roles[int(child)] = "keeper" if b"redis_queue.keeper" in command else "pool"
    told = [pid for pid, role in roles.items() if role != "keeper"]
    collected = [_collect(told, folder) for _ in range(TIMES)]
    for pid in told:
        found[f"{roles[pid]} blocks, thousands"] += min(blocks[pid] for blocks in collected) / 1000
    for pid, role in roles.items():
        fields = dict(re.findall(r"^(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
        found[f"{role} RSS, MB"] += int(fields["Rss"]) * 1024 / MB
        found[f"{role} USS, MB"] += (int(fields["Private_Clean"]) + int(fields["Private_Dirty"])) * 1024 / MB
        found["descriptors"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    found["connections"] = client.info("clients")["connected_clients"]
    found["Redis, MB"] = client.info("memory")["used_memory"] / MB
    found["keys"] = client.dbsize()
    return {name: found[name] for name in BOUNDS}


def _collect(pids: Sequence[int], folder: Path) -> dict[int, int]:
    """Let the processes collect their garbage; return the blocks of memory that each still uses."""
    files = {pid: folder / f"{BLOCKS}{pid}" for pid in pids}
    for pid, file in files.items():
        file.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + COLLECT_WITHIN
    while left := [pid for pid, file in files.items() if not file.exists()]:
        if time.monotonic() > deadline:
            for pid in left:
                # It writes where its threads are.
                os.kill(pid, signal.SIGABRT)
            time.sleep(1)
            raise RuntimeError(f"the processes {left} did not collect their garbage within {COLLECT_WITHIN:g} s")
        time.sleep(0.02)
    return {pid: int(file.read_text()) for pid, file in files.items()}


def slope(values: Sequence[float]) -> float:
    """Return the growth over as many steps as there are values, by least squares."""
    middle_x, middle = (len(values) - 1) / 2, sum(values) / len(values)
    squares = sum((x - middle_x) ** 2 for x in range(len(values)))
    return len(values) * sum((x - middle_x) * (value - middle) for x, value in enumerate(values)) / squares


def rows(samples: Sequence[Sizes], growth: Mapping[str, float], bounds: Mapping[str, float]) -> list[str]:
    """Return the lines of a table of *samples*, with the *growth* and the bound of each size."""
    head = ["", *(str(number) for number in range(1, len(samples) + 1)), "growth", "at most"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, bound in bounds.items():
        cells = [f"{sample[name]:.1f}" for sample in samples]
        lines.append(f"| {' | '.join([name, *cells, f'{growth[name]:+.2f}', f'{bound:g}'])} |")
    return lines
