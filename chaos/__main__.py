"""``python -m chaos URL``: kill processes between any two Redis commands and check their histories."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from chaos.crew import Duty
from chaos.figures import as_figures, as_text
from chaos.queues import Queues
from chaos.run import Run


def main() -> int:
    """Run and print the figures; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="URL of an empty Redis")
    parser.add_argument("--messages", type=int, default=2000, help="messages for each of the two queues (default 2000)")
    parser.add_argument("--chance", type=float, default=0.006, help="chance of a kill at each command (default 0.006)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all dice (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        duty = Duty(Path(folder), options.messages, options.chance, options.seed)
        found = Run(duty, Queues(options.url), tell=None if options.json else _tell).go()
    figures = {"seed": options.seed, **as_figures(found)}
    sys.stdout.write(json.dumps(figures) + "\n" if options.json else as_text(figures, found))
    return 1 if found.verdict.violations else 0


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
