"""``python -m tests.fault``: runs and mutants as a table; 1 if a promise is broken or a mutant is not caught."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

from tests.fault.guarantees import Guarantee, guarantees
from tests.fault.mutants import MUTANTS, Mutant, caught
from tests.fault.runs import SEEDS, run

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
LONG: Final = {"kill": (50_000, 0.001)}
"""Messages for each queue and chance of a kill, where it is not TIMES the row's and the usual one."""

TIMES: Final = 4


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["short", "long", "mutants"], help="all scenarios, or faults in the code")
    parser.add_argument("scenarios", nargs="*", help="which scenarios or mutants (default: all)")
    options = parser.parse_args()
    if options.what == "mutants":
        chosen = [mutant for mutant in MUTANTS if mutant.name in (options.scenarios or [mutant.name])]
        return 0 if mutants(chosen) else 1
    rows = [row for row in guarantees() if row.scenario in (options.scenarios or [row.scenario])]
    return 0 if table(rows, long=options.what == "long") else 1


def table(rows: list[Guarantee], *, long: bool) -> bool:
    """Run each scenario and print a table in Markdown, then what was broken."""
    _say(f"| scenario | {' | '.join(COLUMNS.values())} |\n|---|{'---:|' * len(COLUMNS)}")
    broken: list[str] = []
    for row in rows:
        messages, chance = LONG.get(row.scenario, (TIMES * row.messages, 0.006)) if long else (row.messages, 0.006)
        for seed in SEEDS if row.scenario == "kill" and not long else SEEDS[:1]:
            found = run(row.scenario, messages=messages, seed=seed, chance=chance)
            _say(f"| `{row.scenario}` | {' | '.join(_cell(found[column]) for column in COLUMNS)} |")
            if row.unexpected(found):
                broken += found["shown"]
    _say("\n".join(broken))
    return not broken


def mutants(chosen: Sequence[Mutant]) -> bool:
    """Look for each mutant; one that needs a run must be found with each seed."""
    good = True
    for mutant in chosen:
        found = caught(mutant)
        wanted = 1 if mutant.tests else len(SEEDS)
        good &= len(found) == wanted
        how = f"by {len(found)} of {wanted} {'test runs' if mutant.tests else 'seeds'}"
        _say(f"{mutant.name:48} caught {how}: {'; '.join(sorted(set(found)))}")
    return good


def _cell(value: Any) -> str:
    return f"{value:,}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
