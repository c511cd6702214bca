"""Runs of each row of docs/guarantees.md."""

from __future__ import annotations

import pytest

from tests.chaos.guarantees import Guarantee, guarantees
from tests.chaos.runs import run
from tests.chaos.scenarios import SCENARIOS
from tests.support.parts import require

MAIN = ("kill", "celery restart")
"""The scenarios that run in `make test`."""

MATRIX = ("cuts", "failover", "celery refusals", "celery rabbitmq", "flow", "flow rabbitmq", "unique")
"""Those that run in `make test-all`; the others repeat them with other servers, brokers and faults."""

SECONDS = 240
"""Time limit of a test: workers wait for leases, and servers for each other."""


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
    assert found["sent"] > row.messages
