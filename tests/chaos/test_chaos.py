"""Runs with kills find faults in mutated code, and none in the correct code."""

from __future__ import annotations

import ast
import re

import pytest

from tests.chaos.edits import Mutant
from tests.chaos.mutants import MUTANTS, caught, mutated
from tests.chaos.runs import SEEDS, run
from tests.support.marks import thorough
from tests.support.paths import ROOT

TAKEN = ("take, then record (M1)", "ack without its token (M2)", "tell that anything was cancelled")
"""One of each kind: a lost message, a stale ack, a wrong reply. `make mutants` runs all."""

SECONDS = 240
"""Time limit of a test: some faults are found only in one run of several."""


@pytest.mark.thorough
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("seed", SEEDS[1:2])
def test_no_promise_is_broken_with_another_seed(seed: int) -> None:
    found = run("kill", messages=1000, seed=seed)
    assert found["shown"] == []
    assert found["kills"] > 50


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", [TAKEN[0], *thorough(*TAKEN[1:])])
def test_run_catches_a_mutant(name: str) -> None:
    (mutant,) = (one for one in MUTANTS if one.name == name)
    # One seed is enough, but not always the first: some faults need two processes to meet. `make mutants` uses three,
    # and checks all mutants.
    assert any(caught(mutant, seeds=(seed,)) for seed in range(1, 7))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_applies_to_the_code(mutant: Mutant) -> None:
    texts = mutated(mutant)
    assert texts
    for file, text in texts.items():
        if file.endswith(".py"):
            ast.parse(text, file)


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if " -k " in one.tests], ids=lambda mutant: mutant.name)
def test_the_selected_tests_of_a_mutant_exist(mutant: Mutant) -> None:
    files, _, keyword = mutant.tests.partition(" -k ")
    texts = "".join((ROOT / file).read_text() for file in files.split())
    assert re.search(rf"(def test|class Test)\w*{keyword}", texts)
