"""``python -m tests.fault``: runs and mutants as a table; 1 if a run breaks a promise or a mutant is not caught."""

from __future__ import annotations

import argparse
import sys

from redis_queue.chaos.mutants import MUTANTS
from tests.fault.runs import SEEDS, run
from tests.support.servers import RedisServer


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["short", "mutants"], help="runs of the code as it is, or with a fault each")
    parser.add_argument("--messages", type=int, default=None, help="for each queue (default 10000, mutants 600)")
    options = parser.parse_args()
    with RedisServer() as server:
        good = (
            runs(server, options.messages or 10_000)
            if options.what == "short"
            else mutants(server, options.messages or 600)
        )
    return 0 if good else 1


def runs(server: RedisServer, messages: int) -> bool:
    """Run with each seed."""
    good = True
    for seed in SEEDS:
        found = run(server, "--messages", str(messages), "--seed", str(seed))
        good &= not found["violations"]
        sys.stdout.write(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found.items()) + "\n")
    return good


def mutants(server: RedisServer, messages: int) -> bool:
    """Run each mutant with each seed."""
    good = True
    for mutant in MUTANTS:
        found = [
            run(server, "--messages", str(messages), "--seed", str(seed), "--mutant", mutant.name) for seed in SEEDS
        ]
        caught = sum(bool(one["violations"]) for one in found)
        good &= caught == len(SEEDS)
        broken = sorted({promise for one in found for promise in one["broken"]})
        sys.stdout.write(f"{mutant.name:40} caught by {caught} of {len(SEEDS)} seeds: {', '.join(broken)}\n")
        sys.stdout.flush()
    return good


if __name__ == "__main__":
    sys.exit(main())
