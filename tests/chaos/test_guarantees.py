"""Runs of each row of docs/guarantees.md."""

from __future__ import annotations

import pytest

from tests.chaos.guarantees import Guarantee, guarantees
from tests.chaos.runs import run
from tests.chaos.scenarios import SCENARIOS
from tests.support.parts import require

MAIN = ("kill", "cuts", "celery restart")
"""The scenarios that run in `make test`; the others repeat them with other servers, brokers and faults."""

SECONDS = 240
"""Time limit of a test: workers wait for leases, and servers for each other."""


def test_table_lists_every_scenario() -> None:
    assert [row.scenario for row in guarantees()] == list(SCENARIOS)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[] if row.scenario in MAIN else pytest.mark.matrix) for row in guarantees()],
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
