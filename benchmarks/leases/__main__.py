"""TaskLeases against stock workers on the same private Redis, in alternating rounds.

Prints progress, a table, and as its last line one JSON object with the figures.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

from benchmarks.leases import executing, losing
from benchmarks.leases.modes import ATOMIC, LEASES, MODES, STOCK
from benchmarks.server import private_redis


def main() -> None:
    """Run the rounds and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    parser.add_argument("--tasks", type=int, default=10_000, help="tasks to execute in a round (default 10,000)")
    parser.add_argument(
        "--kills", type=int, default=100, help="consumers to kill in each mode (default 100, 0 for none)"
    )
    options = parser.parse_args()
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    idle: dict[str, list[float]] = {mode: [] for mode in MODES}
    losses: dict[str, tuple[int, int]] = {}
    with private_redis() as url:
        for number in range(options.rounds):
            for mode in MODES:
                rate, commands = executing.tasks_per_second(url, mode, options.tasks)
                rates[mode].append(rate)
                idle[mode].append(commands)
                print(
                    f"round {number + 1}/{options.rounds}: {mode}: {rate:,.0f} tasks/s, idle {commands:.2f} commands/s"
                )
        for mode in MODES:
            losses[mode] = losing.lost_and_doubled(url, mode, options.kills)
            print(f"{mode}: {options.kills} kills: {losses[mode][0]} lost, {losses[mode][1]} doubled", flush=True)
    figures = {
        "leases_ratio": median(now / then for now, then in zip(rates[LEASES], rates[STOCK], strict=True)),
        "atomic_fetch_ratio": median(now / then for now, then in zip(rates[ATOMIC], rates[STOCK], strict=True)),
        "idle_commands_per_s": {mode: round(median(idle[mode]), 2) for mode in MODES},
        "lost_per_100_kills": {mode: round(100 * losses[mode][0] / max(1, options.kills), 1) for mode in MODES},
        "doubled_per_100_kills": {mode: round(100 * losses[mode][1] / max(1, options.kills), 1) for mode in MODES},
    }
    print(f"\n{'':14}{'tasks/s':>10}{'idle cmd/s':>12}{'lost':>6}{'doubled':>9}")
    for mode in MODES:
        row = f"{mode:14}{median(rates[mode]):>10,.0f}{median(idle[mode]):>12.2f}"
        print(f"{row}{losses[mode][0]:>6}{losses[mode][1]:>9}")
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}))


if __name__ == "__main__":
    main()
