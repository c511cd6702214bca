"""Run pytest, run failed tests again alone, and report those that pass then as flaky.

``python -m tests.support.rerun [arguments of pytest]`` exits with the code of the second run, if there was one.
Its last lines are ``FLAKY: name``, one for each test that failed in the first run only. They are appended to the file
that ``REDIS_QUEUE_TEST_FLAKY`` names, too, so that several runs can end with one list.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.services import shared

MAX_RERUNS: Final = 10
"""Do not run the failed tests again if there are more than this: so many failures are not random."""

TESTS_FAILED: Final = 1
"""pytest's exit code for failed tests."""

FILE_VARIABLE: Final = "REDIS_QUEUE_TEST_FLAKY"


def main(arguments: Sequence[str]) -> int:
    """Run pytest with *arguments*, then the failed tests again; return the exit code."""
    with shared() as services, tempfile.TemporaryDirectory() as directory:
        os.environ.update(services)
        cache = Path(directory)
        code = _pytest([*arguments, "-o", f"cache_dir={cache}"])
        failed = _failed(cache)
        if code != TESTS_FAILED or not 0 < len(failed) <= MAX_RERUNS:
            return code
        _say(f"\n== {len(failed)} failed; once more, alone:")
        code = _pytest([*arguments, "-o", f"cache_dir={cache}", "-n", "0", "--last-failed"])
        flaky = sorted(failed - _failed(cache)) if code in (0, TESTS_FAILED) else []
    lines = [f"FLAKY: {name}" for name in flaky]
    _say(*lines)
    if path := os.environ.get(FILE_VARIABLE):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
    return code


def _pytest(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed(cache: Path) -> set[str]:
    try:
        return set(json.loads((cache / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return set()


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
