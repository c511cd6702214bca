"""Mutants: copies of the code with one fault each, which exploration, simulation, tests or runs must find."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.chaos.runs import SEEDS, run
from tests.support.paths import ROOT, copy_parts

PACKAGE: Final = "redis_queue"
COPIED: Final = (PACKAGE, "chaos", "docs", "monitoring", "proof", "tests", "tasks", "celeryconfig.py", "pyproject.toml")
TRANSITIONS: Final = 150_000


class Edit(NamedTuple):
    """Replace *old*, which must occur once in *file* of the package, by *new*."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One fault, and what finds it, as at the top of mutants.txt: tests, a model, a world or a run."""

    name: str
    edits: tuple[Edit, ...]
    finders: tuple[str, ...]


def read_mutants(text: str) -> list[Mutant]:
    """Return the mutants in *text*, whose form is described at the top of mutants.txt."""
    faults: list[list[str]] = []
    finder = ""
    for row in text.splitlines():
        if row.startswith("== "):
            finder = row[3:]
        elif row[:2] in ("  ", "- ", "+ ", "* "):
            faults[-1].append(row)
        elif row and not row.startswith("#"):
            faults.append([finder, row])
    return [_read_mutant(*fault) for fault in faults]


def _read_mutant(finder: str, title: str, *rows: str) -> Mutant:
    name, _, keyword = title.partition(" | ")
    finders, edits = [f"{finder} -k {keyword}" if keyword else finder], []
    for row in rows:
        if row.startswith("  "):
            edits.append([row[2:], "", ""])
        elif row.startswith("* "):
            finders.append(row[2:])
        else:
            edits[-1]["-+".index(row[0]) + 1] += row[2:].replace(r"\n", "\n")
    return Mutant(name, tuple(Edit(*edit) for edit in edits), tuple(finders))


MUTANTS: Final = read_mutants(Path(__file__).with_name("mutants.txt").read_text())


def method_of(finder: str) -> str:
    """Return explore, simulate, run or tests."""
    return next((word for word in ("explore", "simulate", "run") if finder.startswith(f"{word} ")), "tests")


def caught(folder: Path, finder: str, *, seeds: tuple[int, ...] = SEEDS) -> str:
    """Return the evidence that *finder* has against the mutant in *folder*; "" without any."""
    method, words = method_of(finder), finder.split()[1:]
    if method == "explore":
        model, most = (*words, TRANSITIONS)[:2]
        found = _last(folder, "proof.explore", model, "--transitions", str(most), "--quiet")
        return f"{model}: {found['transitions']:,} transitions" if found["violations"] else ""
    if method == "simulate":
        world, span, *kinds = words
        options = ["--seeds", span, "--first", "--json", *(["--kinds", *kinds] if kinds else [])]
        found = _last(folder, "proof.simulate", "--world", world, *options)
        return f"{world}: {found['schedules']:,} schedules" if found["violations"] else ""
    if method == "run":
        runs = [run(" ".join(words[:-1]), messages=int(words[-1]), seed=seed, root=folder) for seed in seeds]
        return f"{len(seeds)} runs: {', '.join(runs[0]['broken'])}" if all(one["broken"] for one in runs) else ""
    return Path(finder.split(maxsplit=1)[0]).stem if _fails(folder, finder) else ""


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


def _last(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the object in the last line that a module prints."""
    done = python(folder, *arguments)
    assert done.returncode in (0, 1), done.stderr[-1000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _fails(folder: Path, tests: str) -> bool:
    files, _, keyword = tests.partition(" -k ")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "default", *(["-k", keyword] if keyword else [])]
    done = python(folder, "pytest", *options, *files.split())
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-1000:]
    return done.returncode == 1


def python(folder: Path, module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module of *folder*, whose processes import the code in it."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
