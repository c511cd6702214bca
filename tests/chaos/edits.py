"""Mutants: copies of the code with one fault each, which the tests must find."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.runs import SEEDS, run
from tests.support.paths import ROOT, copy_parts

PACKAGE: Final = "redis_queue"
COPIED: Final = (PACKAGE, "chaos", "tests", "tasks", "celeryconfig.py", "pyproject.toml")


class Edit(NamedTuple):
    """Replace *old*, which must occur once in *file* of the package, by *new*."""

    file: str
    old: str
    new: str


class Fault(NamedTuple):
    """Edits of the code; pytest's *keyword* selects the tests that find them."""

    edits: tuple[Edit, ...]
    keyword: str


class Mutant(NamedTuple):
    """One fault, and the tests that find it; without tests, a run of *scenario* must find it."""

    name: str
    edits: tuple[Edit, ...]
    tests: str = ""
    scenario: str = ""
    messages: int = 0


def py(file: str, old: str, new: str, keyword: str = "") -> Fault:
    """Return a fault of a module."""
    return Fault((Edit(file, old, new),), keyword)


def lua(name: str, old: str, new: str, keyword: str = "", *, also: Fault | None = None) -> Fault:
    """Return a fault of the script *name*, with the edits of another one."""
    return Fault((Edit(f"lua/{name}.lua", old, new), *(also.edits if also else ())), keyword)


def found_by_tests(faults: Mapping[str, Mapping[str, Fault]]) -> list[Mutant]:
    """Return the mutants with these *faults*, by the files of the tests that find them, and by name."""
    return [
        Mutant(name, fault.edits, f"{files} -k {fault.keyword}" if fault.keyword else files)
        for files, named in faults.items()
        for name, fault in named.items()
    ]


def found_by_runs(faults: Mapping[tuple[str, int], Mapping[str, Fault]]) -> list[Mutant]:
    """Return the mutants with these *faults*, by the scenario that finds them and its messages, and by name."""
    return [
        Mutant(name, fault.edits, scenario=scenario, messages=messages)
        for (scenario, messages), named in faults.items()
        for name, fault in named.items()
    ]


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
