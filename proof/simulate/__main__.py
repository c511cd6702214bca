"""Command line: ``python -m proof.simulate --seeds 0:1000``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from proof.simulate.worlds import WORLDS, load

MODULE: Final = "proof.simulate"

CLOCK: Final = time.perf_counter
"""The true time."""


def main(arguments: Sequence[str]) -> int:
    """Run schedules; return the exit code."""
    parser = argparse.ArgumentParser(MODULE, description="Run the real code on simulated schedules.")
    parser.add_argument("--seeds", default="0:1000", help="first, and one after the last (default: %(default)s)")
    parser.add_argument("--world", choices=WORLDS, action="append", help="a world; default: all, one after the other")
    parser.add_argument("--faults", help="only the faults with these numbers: 0,3; of none: -")
    parser.add_argument("--kinds", help="only faults of these kinds, such as kill,sleep")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the schedules")
    parser.add_argument("--first", action="store_true", help="end with the first violation")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    parser.add_argument("--traces", action="store_true", help="print what each schedule did, as one number")
    options = parser.parse_args(arguments)
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    worlds = options.world or list(WORLDS)
    began = CLOCK()
    if options.jobs > 1 or len(worlds) > 1:
        results = [result for world in worlds for result in _in_processes(options, seeds, world)]
    else:
        results = [_run(options, seeds, worlds[0])]
    totals: dict[str, Any] = {name: {} for name in worlds}
    for world, schedules, violations, seconds in results:
        row = totals[world]
        for key, value in (("schedules", schedules), ("violations", violations), ("seconds", seconds)):
            row[key] = round(row.get(key, 0) + value, 2)
    total = {key: sum(row[key] for row in totals.values()) for key in ("schedules", "violations")}
    print(json.dumps({**total, "seconds": round(CLOCK() - began, 2), "worlds": totals}), flush=True)
    return 1 if total["violations"] else 0


Result = tuple[str, int, int, float]


def _in_processes(options: argparse.Namespace, seeds: range, world: str) -> list[Result]:
    """Share the seeds among processes; what another world has imported is no part of a schedule."""
    children = []
    for job in range(options.jobs):
        share = seeds[len(seeds) * job // options.jobs : len(seeds) * (job + 1) // options.jobs]
        flags = [flag for flag in ("first", "json", "traces") if getattr(options, flag)]
        kinds = ["--kinds", options.kinds] if options.kinds else []
        command = [sys.executable, "-m", MODULE, "--world", world, "--seeds", f"{share.start}:{share.stop}", *kinds]
        if share:
            arguments = [*command, *(f"--{flag}" for flag in flags)]
            children.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
    found = []
    for child in children:
        *told, last = (child.communicate()[0] or "{}").splitlines()
        print(*told, sep="\n", end="\n" if told else "")
        row = json.loads(last).get("worlds", {}).get(world)
        if row is None:
            raise SystemExit(f"a process ended with {child.returncode}")
        found.append((world, row["schedules"], row["violations"], row["seconds"]))
    return found


def _run(options: argparse.Namespace, seeds: range, world: str) -> Result:
    """Run all *seeds* in this process; tell each violation."""
    began = CLOCK()
    make = load(world)
    from proof.simulate import run  # noqa: PLC0415 - after the patches
    from proof.simulate.faults import KINDS  # noqa: PLC0415 - the same

    if options.kinds:
        make.spared = frozenset(KINDS) - {*options.kinds.split(",")}  # type: ignore[attr-defined]
    broken = done = 0
    only = None if options.faults is None else [int(part) for part in options.faults.split(",") if part != "-"]
    for done, seed in enumerate(seeds, 1):  # noqa: B007 - read after the loop
        outcome = run.run(make, seed, only)
        if options.traces:
            print(world, seed, outcome.trace, outcome.steps, f"{outcome.seconds:.2f}")
        if outcome.violations:
            broken += 1
            if not options.json:
                left, shorter = (only, outcome) if only is not None else run.shortest(make, seed)
                _tell(world, seed, left, shorter)
            if options.first:
                break
    return world, done, broken, CLOCK() - began


def _tell(world: str, seed: int, left: Sequence[int], outcome: Any) -> None:
    print(f"VIOLATED in the world {world}, seed {seed}:")
    for violation in outcome.violations:
        print(violation)
    print("with the faults" if left else "without a fault")
    for number in left:
        print("   ", outcome.faults[number])
    numbers = ",".join(map(str, left)) or "-"
    print(f"replay: python -m {MODULE} --world {world} --seeds {seed} --faults {numbers}", flush=True)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a schedule.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", MODULE, *sys.argv[1:]], environment)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Threads of the simulation have no end that Python could wait for.
    os._exit(code)
