"""``python -m proof.explore``: visit the states that clients of redis_queue can reach, and check each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from proof.explore import MODELS, Explored, Explorer


def explored(name: str, transitions: int, quiet: bool) -> tuple[str, Explored, float]:
    """Explore one model, in a process of its own."""
    started, explorer = time.monotonic(), Explorer(name)

    def tell(depth: int, states: int) -> None:
        if not quiet:
            sys.stderr.write(f"{name}: depth {depth}, {states:,} states\n")

    found = explorer.explore(transitions, tell)
    if found.wrong:
        found.path[:] = explorer.shortened(found.path)
    return name, found, time.monotonic() - started


def as_test(name: str, found: Explored) -> str:
    """Return a test that fails as the model did."""
    steps = "".join(f'        "{step}",\n' for step in found.path)
    head = f'# {found.wrong}\ndef test_{name}() -> None:\n    wrong = follow(\n        "{name}",\n'
    return f"{head}{steps}    )\n    assert wrong is None\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model, and one JSON object last; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument(
        "--transitions", type=int, default=1_000_000, help="at most, shared by the models (default 1,000,000)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"unknown model {unknown[0]!r}: must be one of {', '.join(MODELS)}")
    if options.transitions < 1 or options.jobs < 1:
        parser.error("--transitions and --jobs: must be at least 1")
    names, started = options.models or list(MODELS), time.monotonic()
    share = -(-options.transitions // len(names))
    figures = {"states": 0, "transitions": 0, "violations": 0}
    with ProcessPoolExecutor(min(options.jobs, len(names)), get_context("fork")) as pool:
        runs = [pool.submit(explored, name, share, options.quiet) for name in names]
        for name, found, seconds in (run.result() for run in runs):
            figures["states"] += found.states
            figures["transitions"] += found.transitions
            figures["violations"] += found.wrong is not None
            extent = "all of them" if found.finished else "not all"
            sys.stdout.write(
                f"{name:12}{found.states:12,} states ({extent}) {found.transitions:12,} transitions, "
                f"depth {found.depth}, {seconds:.0f} s: {found.wrong or 'nothing is broken'}\n"
            )
            if found.wrong:
                sys.stdout.write(as_test(name, found))
            sys.stdout.flush()
    sys.stdout.write(json.dumps({**figures, "seconds": round(time.monotonic() - started, 1)}) + "\n")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
