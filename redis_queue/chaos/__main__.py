"""``python -m redis_queue.chaos URL``: kill processes between any two Redis commands and check what they did."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path

from redis_queue.chaos.mutants import MUTANTS, mutated
from redis_queue.chaos.run import Outcome, Plan, Run


def main() -> int:
    """Run and print what was found; 1 if a promise was broken."""
    names = {mutant.name: mutant for mutant in MUTANTS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="a Redis that holds nothing else")
    parser.add_argument("--messages", type=int, default=2000, help="for each of the two queues (default 2000)")
    parser.add_argument("--chance", type=float, default=0.006, help="of a kill at each command (default 0.006)")
    parser.add_argument("--seed", type=int, default=1, help="of all dice (default 1)")
    parser.add_argument("--mutant", choices=names, help="a fault to put into a script first")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args()
    fault = mutated(names[options.mutant]) if options.mutant else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, fault:
        found = Run(Plan(options.url, Path(folder), options.messages, options.chance, options.seed)).go()
    sys.stdout.write(_as_json(found, options.seed) if options.json else _as_text(found, options.seed))
    return 1 if found.verdict.violations else 0


def _figures(found: Outcome, seed: int) -> dict[str, object]:
    verdict = found.verdict
    return {
        "seed": seed,
        "kills": found.kills,
        "seconds": round(found.seconds, 1),
        "sent": verdict.sent,
        "unknown": verdict.unknown,
        "executed": verdict.executed,
        "doubled": verdict.doubled,
        "cancelled": verdict.cancelled,
        "stale_acks_refused": verdict.refused,
        "violations": len(verdict.violations),
    }


def _as_json(found: Outcome, seed: int) -> str:
    broken = sorted({violation.promise for violation in found.verdict.violations})
    return json.dumps({**_figures(found, seed), "broken": broken}) + "\n"


def _as_text(found: Outcome, seed: int) -> str:
    figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in _figures(found, seed).items())
    return "\n".join([figures, *map(str, found.verdict.violations[:10]), ""])


if __name__ == "__main__":
    sys.exit(main())
