"""Runs, models and worlds find faults in mutated code, and runs none in the correct code."""

from __future__ import annotations

import ast
import re

import pytest

from tests.chaos.edits import MUTANTS, Mutant, caught, method_of, mutated, patched
from tests.chaos.guarantees import Guarantee, guarantees
from tests.chaos.runs import SEEDS, run
from tests.chaos.scenarios import SCENARIOS
from tests.support.marks import thorough
from tests.support.parts import require
from tests.support.paths import ROOT

TAKEN = ("take, then record (M1)", "ack without its token (M2)", "tell that anything was cancelled")
"""One of each kind: a lost message, a stale ack, a wrong reply. `make mutants` runs all."""

SECONDS = 240
"""Time limit of a test: some faults are found only in one run of several, and workers wait for leases."""


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
    with patched(mutant) as folder:
        assert any(caught(folder, mutant.finders[0], seeds=(seed,)) for seed in range(1, 7))


PROOFS = {f"{finder}: {mutant.name}": mutant for mutant in MUTANTS for finder in mutant.finders}
PROVED = [case for case in PROOFS if method_of(case) in ("explore", "simulate")]
FIRST = {method_of(case): case for case in reversed(PROVED)}
"""One of each method."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [*FIRST.values(), *thorough(*(case for case in PROVED if case not in FIRST.values()))])
def test_its_model_or_world_catches_a_mutant(case: str) -> None:
    with patched(PROOFS[case]) as folder:
        assert caught(folder, case.partition(": ")[0])


def test_each_defect_has_a_mutant() -> None:
    kinds = re.findall(
        r"## (Silence|Clocks|Ids|Order)(.*?)(?=\n##)", (ROOT / "docs" / "defects.md").read_text(), re.DOTALL
    )
    wanted = {f"{kind.lower()} {number + 1}" for kind, rows in kinds for number in range(rows.count("\n- "))}
    assert wanted == {mutant.name.partition(":")[0] for mutant in MUTANTS if ": " in mutant.name}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_applies_to_the_code(mutant: Mutant) -> None:
    texts = mutated(mutant)
    assert texts
    for file, text in texts.items():
        if file.endswith(".py"):
            ast.parse(text, file)


@pytest.mark.parametrize("finder", sorted({finder for one in MUTANTS for finder in one.finders if " -k " in finder}))
def test_the_selected_tests_of_a_mutant_exist(finder: str) -> None:
    files, _, keyword = finder.partition(" -k ")
    texts = "".join((ROOT / file).read_text() for file in files.split())
    assert re.search(rf"(def test|class Test)\w*{keyword}", texts)


# Runs of each row of docs/guarantees.md.

MAIN = ("kill", "celery restart")
"""The scenarios that run in `make test`."""

MATRIX = ("cuts", "failover", "celery refusals", "celery rabbitmq", "flow", "flow rabbitmq", "unique")
"""Those that run in `make test-all`; the others repeat them with other servers, brokers and faults."""


def _marks(scenario: str) -> list[pytest.MarkDecorator]:
    if scenario in MAIN:
        return []
    return [pytest.mark.matrix if scenario in MATRIX else pytest.mark.thorough]


def test_table_lists_every_scenario() -> None:
    assert [row.scenario for row in guarantees()] == list(SCENARIOS)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=_marks(row.scenario)) for row in guarantees()],
    ids=[row.scenario for row in guarantees()],
)
def test_guarantee_holds(row: Guarantee) -> None:
    if "rabbitmq" in row.scenario:
        require("rabbitmq-server")
    found = run(row.scenario, messages=row.messages, seed=1)
    assert not row.unexpected(found), found["shown"]
    assert found["kills"] >= row.kills
    assert found["strikes"] >= row.strikes
    # Most calls of unique tasks are refused; how many are not depends on how busy the machine is.
    assert found["sent"] + found["unknown"] > row.messages
