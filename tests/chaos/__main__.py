"""``python -m tests.chaos``: runs and mutants as tables; exits with 1 for a broken promise or missed mutant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from tests.chaos.edits import MUTANTS, Mutant, caught, method_of, patched
from tests.chaos.guarantees import Guarantee, guarantees
from tests.chaos.runs import SEEDS, run

COLUMNS: Final = {
    "sent": "sent",
    "kills": "kills",
    "strikes": "strikes",
    "executed": "executed",
    "lost": "lost",
    "doubled": "doubled",
    "stale_acks_refused": "stale acks refused",
    "came_again_ms_p50": "came again, ms p50",
    "came_again_ms_max": "max",
    "recovery_ms_p50": "went on after, ms p50",
    "recovery_ms_max": "max",
    "violations": "broken promises",
}
LONG: Final = {
    "kill": (50_000, 0.001),
    "flow": (2200, 0.012),
    "flow fair": (3300, 0.012),
    "unique": (800, 0.012),
    "schedules": (2000, 0.006),
    "flow rabbitmq": (600, 0.012),
    "flow fair rabbitmq": (600, 0.012),
    "unique rabbitmq": (600, 0.012),
}
"""Messages for each queue and chance of a kill, if not TIMES those of the row and the default."""

TIMES: Final = 4
CHANCE: Final = 0.006
AT_ONCE: Final = 2

METHODS: Final = {"explore": "exploration", "simulate": "simulation", "tests": "tests", "run": "runs"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["short", "long", "mutants"], help="all scenarios, or faults in the code")
    parser.add_argument("scenarios", nargs="*", help="which scenarios, or how mutants begin (default: all)")
    options = parser.parse_args()
    if options.what == "mutants":
        chosen = [mutant for mutant in MUTANTS if mutant.name.startswith(tuple(options.scenarios or [""]))]
        return 0 if mutants(chosen) else 1
    rows = [row for row in guarantees() if row.scenario in (options.scenarios or [row.scenario])]
    return 0 if table(rows, long=options.what == "long") else 1


def table(rows: list[Guarantee], *, long: bool) -> bool:
    """Run each scenario and print a table in Markdown, then the broken promises."""
    _say(f"| scenario | {' | '.join(COLUMNS.values())} |\n|---|{'---:|' * len(COLUMNS)}")
    broken: list[str] = []
    jobs = [job for row in rows for job in _jobs(row, long=long)]
    # The runs mostly wait; only the long form compares times.
    with ThreadPoolExecutor(1 if long else AT_ONCE) as pool:
        for job, found in zip(jobs, pool.map(_Job.run, jobs), strict=True):
            _say(f"| `{job.row.scenario}` | {' | '.join(_cell(found[column]) for column in COLUMNS)} |")
            if job.row.unexpected(found):
                broken += found["shown"]
    _say("\n".join(broken))
    return not broken


class _Job(NamedTuple):
    row: Guarantee
    messages: int
    chance: float
    seed: int

    def run(self) -> dict[str, Any]:
        return run(self.row.scenario, messages=self.messages, seed=self.seed, chance=self.chance)


def _jobs(row: Guarantee, *, long: bool) -> Iterator[_Job]:
    messages, chance = LONG.get(row.scenario, (TIMES * row.messages, CHANCE)) if long else (row.messages, CHANCE)
    for seed in SEEDS if row.scenario == "kill" and not long else SEEDS[:1]:
        yield _Job(row, messages, chance, seed)


def mutants(chosen: Sequence[Mutant]) -> bool:
    """Print what finds each mutant, the method that takes least CPU time in bold; all of its finders must."""
    _say(f"| defect | {' | '.join(METHODS.values())} |\n|---|{'---|' * len(METHODS)}")
    good = True
    for mutant in chosen:
        cells: dict[str, tuple[float, str]] = {}
        with patched(mutant) as folder:
            for finder in mutant.finders:
                began, method = sum(os.times()[2:4]), method_of(finder)
                found = caught(folder, finder)
                # CPU time of all processes that were started, and have ended.
                seconds = sum(os.times()[2:4]) - began
                good &= bool(found)
                cell = seconds, f"{found or 'MISSED'}, {seconds:.1f} s"
                cells[method] = min(cells.get(method, cell), cell)
        cells[min(cells, key=cells.__getitem__)] = 0, f"**{min(cells.values())[1]}**"
        _say(f"| {mutant.name} | {' | '.join(cells.get(method, (0, ''))[1] for method in METHODS)} |")
    return good


def _cell(value: Any) -> str:
    return f"{value:,}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
