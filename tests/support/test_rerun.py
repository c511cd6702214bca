"""The command that runs failed tests once more, alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.rerun import FILE_VARIABLE, MOST

FLAKY = """
from pathlib import Path

def test_sound(): ...

def test_flaky():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("only once")
"""
BROKEN = "def test_broken(): raise AssertionError('always')"
HOPELESS = f"""
import pytest

@pytest.mark.parametrize("number", range({MOST + 1}))
def test_broken(number): raise AssertionError("always")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty project of tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.rerun", "-c", str(folder / "pytest.ini"), *options, str(folder)],
        cwd=ROOT,
        # Only what the command itself needs: other plugins take seconds to load.
        env={
            **os.environ,
            FILE_VARIABLE: str(folder / "flaky.txt"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p xdist",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_flaky_test_is_named_and_does_not_fail_the_run(folder: Path) -> None:
    (folder / "test_one.py").write_text(FLAKY)

    done = run(folder, "-n", "2", "--dist", "worksteal")

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "FLAKY: test_one.py::test_flaky"
    assert (folder / "flaky.txt").read_text() == "FLAKY: test_one.py::test_flaky\n"


def test_a_test_that_fails_twice_fails_the_run(folder: Path) -> None:
    (folder / "test_one.py").write_text(FLAKY)
    (folder / "test_two.py").write_text(BROKEN)

    done = run(folder)

    assert done.returncode == 1
    assert (folder / "flaky.txt").read_text() == "FLAKY: test_one.py::test_flaky\n"


@pytest.mark.parametrize("content", [HOPELESS, "def broken("], ids=["many", "not collected"])
def test_what_is_not_chance_is_not_run_again(folder: Path, content: str) -> None:
    (folder / "test_one.py").write_text(content)

    done = run(folder)

    assert done.returncode != 0
    assert "once more" not in done.stdout
    assert not (folder / "flaky.txt").exists()
