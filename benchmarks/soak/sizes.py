"""Memory, descriptors and connections of processes and of Redis, at one moment, and their slopes."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

MB: Final = 1e6

BOUNDS: Final = {
    "worker RSS, MB": 6.0,
    "worker USS, MB": 6.0,
    "pool RSS, MB": 6.0,
    "pool USS, MB": 6.0,
    "keeper RSS, MB": 1.0,
    "keeper USS, MB": 1.0,
    "sender RSS, MB": 6.0,
    "sender USS, MB": 6.0,
    "descriptors": 4.0,
    "connections": 4.0,
    "Redis, MB": 4.0,
    "keys": 20.0,
}
"""Most that each may grow in a day, by its slope."""

Sizes = dict[str, float]


def sizes(workers: Sequence[int], sender: int, client: Any) -> Sizes:
    """Return the sizes: sums over *workers*, their children and keepers, of the process *sender*, and of Redis."""
    found: dict[str, float] = defaultdict(float)
    roles = dict.fromkeys(workers, "worker") | {sender: "sender"}
    for pid in workers:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            roles[int(child)] = "keeper" if b"redis_queue.keeper" in command else "pool"
    for pid, role in roles.items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = dict(re.findall(r"^(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
            found[f"{role} RSS, MB"] += int(fields["Rss"]) * 1024 / MB
            found[f"{role} USS, MB"] += (int(fields["Private_Clean"]) + int(fields["Private_Dirty"])) * 1024 / MB
            found["descriptors"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    found["connections"] = client.info("clients")["connected_clients"]
    found["Redis, MB"] = client.info("memory")["used_memory"] / MB
    found["keys"] = client.dbsize()
    return {name: found[name] for name in BOUNDS}


def slope(values: Sequence[float]) -> float:
    """Return the growth over as many steps as there are values, by least squares."""
    middle_x, middle = (len(values) - 1) / 2, sum(values) / len(values)
    squares = sum((x - middle_x) ** 2 for x in range(len(values)))
    return len(values) * sum((x - middle_x) * (value - middle) for x, value in enumerate(values)) / squares


def rows(samples: Sequence[Sizes], growth: Mapping[str, float]) -> list[str]:
    """Return the lines of a table of *samples*, with the *growth* and the bound of each size."""
    head = ["", *(str(number) for number in range(1, len(samples) + 1)), "growth", "at most"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, bound in BOUNDS.items():
        cells = [f"{sample[name]:.1f}" for sample in samples]
        lines.append(f"| {' | '.join([name, *cells, f'{growth[name]:+.2f}', f'{bound:g}'])} |")
    return lines
