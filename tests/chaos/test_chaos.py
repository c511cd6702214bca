"""Runs with kills find a fault in the code, and none in the correct code."""

from __future__ import annotations

import pytest

from tests.chaos.mutants import MUTANTS, Mutant, caught, mutated
from tests.chaos.runs import SEEDS, run

TAKEN = ("take, then record (M1)", "ack without its token (M2)", "tell that anything was cancelled")
"""One of each kind: something lost, a stale ack, a wrong answer. `make mutants` takes all."""

SECONDS = 240
"""Most seconds of a test: some faults are found in one run of several."""


@pytest.mark.thorough
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("seed", SEEDS[1:2])
def test_no_promise_is_broken_with_another_seed(seed: int) -> None:
    found = run("kill", messages=1000, seed=seed)
    assert found["shown"] == []
    assert found["kills"] > 50


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", [TAKEN[0], *(pytest.param(name, marks=pytest.mark.thorough) for name in TAKEN[1:])])
def test_a_run_catches_a_mutant(name: str) -> None:
    (mutant,) = (one for one in MUTANTS if one.name == name)
    # One seed is enough, but not always the first: some faults need two processes to meet. `make mutants` takes three,
    # and looks for all mutants.
    assert any(caught(mutant, seeds=(seed,)) for seed in range(1, 7))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_the_code(mutant: Mutant) -> None:
    assert mutated(mutant)
