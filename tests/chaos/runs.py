"""Run scenarios, each in its own process without threads, because it forks."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from chaos.crew import Duty
from chaos.figures import SHOWN, as_figures
from chaos.run import Run
from tests.chaos.scenarios import SCENARIOS
from tests.support.paths import ROOT

SEEDS = (1, 2, 3)


def run(scenario: str, *, messages: int, seed: int, chance: float = 0.006, root: Path = ROOT) -> dict[str, Any]:
    task = json.dumps({"scenario": scenario, "messages": messages, "seed": seed, "chance": chance})
    command = [sys.executable, "-m", "tests.chaos.runs", task]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main(scenario: str, messages: int, seed: int, chance: float) -> dict[str, Any]:
    """Run in this process; print broken promises with their histories and the seed."""
    with tempfile.TemporaryDirectory() as folder, SCENARIOS[scenario]() as site:
        duty = Duty(Path(folder), messages, chance, seed)
        found = Run(duty, site.workload, site.strikes, lambda line: sys.stderr.write(f"{scenario}: {line}\n")).go()
    shown = [f"seed {seed}: {violation}" for violation in found.verdict.violations[:SHOWN]]
    return {"scenario": scenario, "seed": seed, **as_figures(found), "shown": shown}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))) + "\n")
