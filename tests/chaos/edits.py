"""Mutants: copies of the code with one fault each, which the tests must find."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.runs import SEEDS, run
from tests.support.paths import ROOT, copy_parts

PACKAGE: Final = "redis_queue"
COPIED: Final = (PACKAGE, "chaos", "proof", "tests", "tasks", "celeryconfig.py", "pyproject.toml")


class Edit(NamedTuple):
    """Replace *old*, which must occur once in *file* of the package, by *new*."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One fault, and the tests that find it; without tests, a run of *scenario* must find it."""

    name: str
    edits: tuple[Edit, ...]
    tests: str = ""
    scenario: str = ""
    messages: int = 0


def read_mutants(text: str) -> list[Mutant]:
    """Return the mutants in *text*, whose form is described at the top of mutants.txt."""
    faults: list[list[str]] = []
    finder = ""
    for row in text.splitlines():
        if row.startswith("== "):
            finder = row[3:]
        elif row[:2] in ("  ", "- ", "+ "):
            faults[-1].append(row)
        elif row and not row.startswith("#"):
            faults.append([finder, row])
    return [_read_mutant(*fault) for fault in faults]


def _read_mutant(finder: str, title: str, *rows: str) -> Mutant:
    name, _, keyword = title.partition(" | ")
    edits: list[list[str]] = []
    for row in rows:
        if row.startswith("  "):
            edits.append([row[2:], "", ""])
        else:
            edits[-1]["-+".index(row[0]) + 1] += row[2:].replace(r"\n", "\n")
    made = tuple(Edit(*edit) for edit in edits)
    if finder.startswith("run "):
        scenario, _, messages = finder.removeprefix("run ").rpartition(" ")
        return Mutant(name, made, scenario=scenario, messages=int(messages))
    return Mutant(name, made, f"{finder} -k {keyword}" if keyword else finder)


MUTANTS: Final = read_mutants(Path(__file__).with_name("mutants.txt").read_text())


def caught(mutant: Mutant, *, seeds: tuple[int, ...] = SEEDS) -> list[str]:
    """Return the evidence against *mutant*: broken promises of a run for each seed, or failures of its tests."""
    with patched(mutant) as folder:
        if mutant.tests:
            return ["its tests fail"] if _fails(folder, mutant.tests) else []
        found = [run(mutant.scenario, messages=mutant.messages, seed=seed, root=folder) for seed in seeds]
    return [", ".join(one["broken"]) for one in found if one["broken"]]


@contextlib.contextmanager
def patched(mutant: Mutant) -> Iterator[Path]:
    """Yield a folder with a copy of the code and the fault; raises ValueError if an edit does not apply."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = copy_parts(COPIED, Path(name))
        for file, text in mutated(mutant).items():
            (folder / PACKAGE / file).write_text(text)
        yield folder


def mutated(mutant: Mutant) -> dict[str, str]:
    """Return the new text of each file that *mutant* changes; raises ValueError if an edit does not apply."""
    texts: dict[str, str] = {}
    for file, old, new in mutant.edits:
        text = texts.get(file) or (ROOT / PACKAGE / file).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{old!r} occurs {text.count(old)} times, expected once, in {file}")
        texts[file] = text.replace(old, new)
    return texts


def _fails(folder: Path, tests: str) -> bool:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "default"]
    command = [sys.executable, "-m", "pytest", *options, *tests.split()]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-1000:]
    return done.returncode == 1
