"""Run pieces of a campaign, and print the table of all pieces so far.

A piece is a Redis, a producer and four real Celery workers (prefork, threads, gevent, solo), with the faults of its
seed. Lost: sent, not run, and nowhere in Redis. Undone: the same, but Redis was killed with appendfsync everysec less
than two seconds after the call. Waiting: not run, but still in Redis. Unknown: the call raised an error.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from benchmarks.kills.campaign.app import OURS, STOCK
from benchmarks.kills.campaign.piece import FAULTS, Plan, run

PLANS: Final = (
    "kills",
    "kills,redis",
    "kills,silence",
    "kills,skew,upgrade",
    "kills,full",
    "kills,mixed,upgrade",
    "kills,redis,silence,skew,full,upgrade",
)
"""Faults of a piece, by its seed. A stock worker beside ours loses tasks in most faults, so `mixed` has only some."""

PIECES: Final = Path(__file__).with_name("pieces.jsonl")
SUMS: Final = ("tasks", "kills", "strikes", "lost", "undone", "doubled", "waiting", "early", "unknown")


def table(pieces: list[dict[str, Any]]) -> str:
    """Return the sums of *pieces*, by peer and faults; those with a rate are not in the sum of all."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    seeds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for piece in pieces:
        rate = piece.get("rate")
        for faults in [f"{piece['faults']}, {rate}/s"] if rate else [piece["faults"], "all"]:
            key = piece["peer"], faults
            rows[key].update({name: piece[name] for name in SUMS})
            seeds[key].append(piece["seed"])
    head = ("peer", "faults", "pieces", *SUMS, "lost per kill", "doubled per kill")
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    for key in sorted(rows, key=lambda key: (key[0] != OURS, key[1] == "all", key[1])):
        row, kills = rows[key], max(1, rows[key]["kills"])
        cells = [*key, str(len(seeds[key])), *(f"{row[name]:,}" for name in SUMS)]
        cells += [f"{row[name] / kills:.3f}" for name in ("lost", "doubled")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the pieces; 1 if redis_queue lost a task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=(OURS, STOCK), default=OURS)
    parser.add_argument("--tasks", type=int, default=200_000, help="of each piece (default 200,000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first piece; the next ones have the next seeds")
    parser.add_argument("--pieces", type=int, default=1, help="number of pieces; 0 prints the table only (default 1)")
    parser.add_argument("--faults", help=f"some of {','.join(FAULTS)} (default: by the seed)")
    parser.add_argument("--rate", type=int, default=0, help="most tasks sent in a second (default: as many as run)")
    parser.add_argument("--results", type=Path, default=PIECES, help="file to which each piece adds a line")
    options = parser.parse_args()
    if unknown := set((options.faults or "kills").split(",")) - set(FAULTS):
        parser.error(f"argument --faults: {sorted(unknown)[0]!r}: must be some of {','.join(FAULTS)}")
    done = _read(options.results)
    known = {tuple(piece.get(name, 0) for name in ("peer", "seed", "faults", "asked", "rate")) for piece in done}
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for seed in range(options.seed, options.seed + options.pieces):
        faults = options.faults or PLANS[seed % len(PLANS)]
        if (options.peer, seed, faults, options.tasks, options.rate) in known:
            continue
        plan = Plan(options.peer, options.tasks, seed, tuple(faults.split(",")), options.rate)

        def tell(line: str, seed: int = seed) -> None:
            sys.stderr.write(f"{time.monotonic() - started:6.0f} s  {options.peer} {seed}: {line}\n")

        figures = {**run(plan, tell), "asked": options.tasks}
        with options.results.open("a") as file:
            file.write(json.dumps(figures) + "\n")
        tell(json.dumps(figures))
        done.append(figures)
    print(table(done))
    return int(any(piece["lost"] for piece in done if piece["peer"] == OURS))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
