"""Run Celery's and kombu's own tests of the installed releases with DurableTasks on each app, and compare with stock.

``python -m tests.guest [--quick] [celery] [kombu] [canvas]`` downloads the source distributions, unpacks their tests
into build/guest, and prints a table. It exits with 1 if a test that passes on stock does not pass with the line.
*quick* runs on stock only those that do not pass with the line. Default: celery and kombu.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.guest.plugin import LINE, OUTCOMES
from tests.support.paths import ROOT

FOLDER: Final = ROOT / "build" / "guest"
RERUNS: Final = 2
"""Runs of the tests that failed with the line only, one after the other: Celery marks many of its own as flaky."""

TIMEOUT: Final = 180
"""Seconds for a test that has no limit of its own; on a quiet machine none needs a minute."""

Outcomes = Mapping[str, str]


@dataclass(frozen=True)
class Suite:
    """Tests in the source distribution of *project*."""

    project: str
    files: tuple[str, ...]
    #: Beginnings of the names of tests of what is deliberately different, with the reason.
    different: Mapping[str, str]


BRPOP: Final = "a worker fetches by a script, and sends no BRPOP"
RESTORE: Final = "a message is returned by a script, if its lease has ended"
STAND_IN: Final = "the stand-in for Redis runs no scripts, and has no connections"
OF_KOMBU: Final = {
    "test_PausedBRPOP": BRPOP,
    "test_DisconnectRegistration::test_disconnect_then_reconnect_registers_new_socket": BRPOP,
    "test_Channel::test_global_keyprefix_restore_visible": RESTORE,
    "test_Channel::test_global_keyprefix_transaction": RESTORE,
    "test_Channel::test_restore_by_tag": RESTORE,
    "test_Redis::test_publish__": STAND_IN,
}
CANVAS: Final = "t/integration/test_canvas.py"
SUITES: Final = {
    "celery": Suite("celery", ("t/integration/test_tasks.py", CANVAS), {}),
    "canvas": Suite("celery", (CANVAS,), {}),
    "kombu": Suite("kombu", ("t/unit/transport/test_redis.py",), OF_KOMBU),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.guest")
    parser.add_argument("suites", nargs="*", default=["celery", "kombu"], metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--quick", action="store_true", help="on stock run only what does not pass with the line")
    parser.add_argument("-n", default="3", help="processes")
    options = parser.parse_args(arguments)
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"unknown suite: {', '.join(unknown)}; known: {', '.join(SUITES)}")
    failed = [name for name in options.suites if not check(SUITES[name], options.n, quick=options.quick)]
    return 1 if failed else 0


def check(suite: Suite, processes: str, *, quick: bool) -> bool:
    """Run *suite* with the line and on stock, and print what differs; return whether it passes."""
    folder = unpack(suite.project)
    line = run(folder, suite.files, processes, line=True)
    stock = {} if quick else run(folder, suite.files, processes, line=False)
    passed = {test for test, outcome in line.items() if outcome == "passed"}
    wanted = line if quick else {test for test, outcome in stock.items() if outcome == "passed"}
    suspects = [test for test in wanted if test not in passed and reason(suite, test) is None]
    if quick:
        stock = run(folder, suspects, "0", line=False)
        suspects = [test for test in suspects if stock.get(test) == "passed"]
    for _ in range(RERUNS):
        again = run(folder, suspects, "0", line=True)
        line.update({test: outcome for test, outcome in again.items() if outcome == "passed"})
        suspects = [test for test in suspects if line.get(test) != "passed"]
    show(suite, stock, line, suspects)
    return bool(line) and not suspects


def reason(suite: Suite, test: str) -> str | None:
    """Return why *test* is not for our channels; None if it is."""
    name = test.partition("::")[2]
    return next((why for beginning, why in suite.different.items() if name.startswith(beginning)), None)


def unpack(project: str) -> Path:
    """Return the folder with the tests of the installed release of *project*; download them if they are not there."""
    release = f"{project}-{version(project)}"
    folder = FOLDER / release
    if (folder / "t").exists():
        return folder
    with tempfile.TemporaryDirectory() as downloads:
        wanted = ["--no-deps", "--no-binary", project, "--no-build-isolation", release.replace("-", "==", 1)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *wanted]
        subprocess.run(command, cwd=downloads, check=True, timeout=300)
        (archive,) = Path(downloads).glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            # Not their packages: the tests import the installed ones.
            of_tests = tuple(f"{release}/{name}" for name in ("t/", "pyproject.toml", "setup.cfg"))
            members = [member for member in opened.getmembers() if member.name.startswith(of_tests)]
            opened.extractall(FOLDER, members, filter="data")
    return folder


def run(folder: Path, tests: Sequence[str], processes: str, *, line: bool) -> dict[str, str]:
    """Run *tests* of *folder*; return the outcome of each."""
    if not tests:
        return {}
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("REDIS_", "PYTEST_"))}
    variables["PYTHONPATH"] = str(ROOT)
    if line:
        variables[LINE] = "1"
    options = ["-p", "tests.guest.plugin", "-p", "no:redis_queue", "-p", "no:cacheprovider", "-q", "-W", "ignore"]
    options += ["-n", processes, "--dist", "worksteal", "--timeout", str(TIMEOUT)]
    print(f"== {len(tests)} of {folder.name}: {'with the line' if line else 'stock'}", flush=True)
    with tempfile.TemporaryDirectory() as written:
        outcomes = variables[OUTCOMES] = str(Path(written) / "outcomes.json")
        subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=folder, env=variables, check=False)
        found: dict[str, str] = json.loads(Path(outcomes).read_text())
    return found


def show(suite: Suite, stock: Outcomes, line: Outcomes, failed: Sequence[str]) -> None:
    """Print how many tests ended how, and those that did not pass with the line."""
    print(f"\n{suite.project} {version(suite.project)}: {', '.join(suite.files)}")
    for name, outcomes in (("stock", stock), ("with the line", line)):
        counts = Counter(outcomes.values())
        print(f"  {name:14}", ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts)) or "not run")
    others = [test for test, outcome in line.items() if outcome == "failed" and test not in failed]
    for why, number in Counter(reason(suite, test) for test in others if reason(suite, test)).items():
        print(f"  {number} are not for our channels: {why}")
    for test in others:
        if reason(suite, test) is None:
            print(f"  fails on stock, too: {test}")
    for test in failed:
        print(f"  FAILED with the line: {test}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
