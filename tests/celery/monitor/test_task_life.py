"""The life of tasks that real workers ran, and the tree of their canvases."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from celery.result import AsyncResult

from redis_queue.basics.options import Conditions
from redis_queue.cli import celery as celery_cli
from redis_queue.operate.access import Access, AppAccess
from redis_queue.operate.canvas import Canvas, canvas
from redis_queue.operate.items import Letters
from redis_queue.operate.task_life import TaskLife, task_life
from tests.support.celery.observed_names import AGAIN, CANVAS, CRASH, FAIL, GATE, OK, SEEN
from tests.support.celery.observing import Observed, observed_on_one_redis
from tests.support.cli.commands import runner
from tests.support.paths import ROOT
from tests.support.wait import wait_until

RESULTS = True

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_one_task_from_its_delay_to_its_end(observed: Observed, access: Access, pool: str) -> None:
    id_ = observed.send(AGAIN, countdown=0.1)
    assert task_life(access, id_).state == "delayed"

    def ended() -> TaskLife | None:
        # The report of a run may follow a second after its failure.
        life = task_life(access, id_)
        return life if life.failure is not None and len(life.runs) == 3 else None

    # One thread: Celery may store the result of a run after that of its retry.
    with observed.worker("--concurrency", "1", "--pool", pool):
        life = wait_until(ended, description="the failure to be kept, and the report of its run")
    assert life.state == "failed"
    assert (life.task, life.queue, life.worker) == (AGAIN, "celery", "one@test")
    found = Counter(event.what for event in life.events)
    expected = {"stored": 1, "due": 1, "sent": 2, "fetched": 3, "started": 3, "retried": 2, "failed": 1}
    assert found == {**expected, "failure kept": 1, "result FAILURE": 1}
    # Each attempt tells why it ended.
    ends = [event.detail for event in life.events if event.what in ("retried", "failed")]
    assert ends == ["KeyError: 'gone'"] * 3


def test_figures_are_those_of_what_happened(observed: Observed) -> None:
    for _ in range(5):
        observed.send(OK, countdown=0.1)
    crashed = observed.send(CRASH)
    failed = observed.send(FAIL)
    with observed.worker(pool="prefork"):
        observed.wait_for(OK, 5)
        observed.wait_for(CRASH, 2)
        wait_until(lambda: Letters(AppAccess(observed.app), None, Conditions()).first(1)[0], description="the letter")

    def command(*arguments: str) -> Any:
        result = runner().invoke(celery_cli.group, [*arguments, "--json"], obj=SimpleNamespace(app=observed.app))
        return json.loads(result.stdout)

    counts = command("stats")
    assert [counts[name] for name in ("put", "dispatched", "acked", "dead")] == [5, 5, 0, 1]
    causes = [row["cause"] for row in command("incidents")["incidents"] if row["kind"] == "dead letters"]
    assert len(causes) == 1
    told = rf"delay scheduled: 1 dead letter; the last one, {CRASH} of queue celery, died .* ago: its worker .* 2 times"
    assert re.match(told, causes[0])
    life = command("task", crashed)
    assert [event["what"] for event in life["events"]].count("sent") == 1
    assert command("failures", "show", failed)["seconds"] < 1


def test_a_running_task(observed: Observed, access: Access) -> None:
    with observed.worker():
        id_ = observed.send(GATE, "gate")
        wait_until(lambda: task_life(access, id_).state == "running", description="the report")
        observed.client.rpush("gate", "go")
        wait_until(lambda: task_life(access, id_).state == "succeeded", description="the end")
    assert observed.client.lrange(SEEN, 0, -1) == [b"gate"]


def test_all_that_a_task_led_to(observed: Observed, access: Access) -> None:
    id_ = observed.send(CANVAS)

    def all_known() -> Canvas | None:
        found = canvas(access, task_life(access, id_))
        states = [node.state for node in found.nodes] if found else []
        # The last task of the chain is never sent; the message of the failed one tells of it.
        return found if len(states) == 7 and "unknown" not in states else None

    with observed.worker():
        found = wait_until(all_known, description="the tree")
    assert sorted((node.depth, node.task, node.state) for node in found.nodes) == [
        (0, CANVAS, "succeeded"),
        (1, OK, "succeeded"),
        (1, OK, "succeeded"),
        (1, OK, "succeeded"),
        (2, FAIL, "failed"),
        (2, OK, "succeeded"),
        (3, OK, "not sent"),
    ]
    assert len({node.group for node in found.nodes if node.group}) == 1


def ids_of(result: AsyncResult | None) -> list[str]:
    """Return the ids of a chain, the first one first, so that no result lives on and asks a server that has ended."""
    return [] if result is None else [*ids_of(result.parent), str(result.id)]


@pytest.mark.parametrize("results", [True, False])
def test_the_last_id_of_a_chain_leads_to_the_step_that_failed(results: bool) -> None:
    with observed_on_one_redis(results=results) as observed, observed.worker():
        first, failing, second, last = (observed.app.signature(name, immutable=True) for name in (OK, FAIL, OK, OK))
        ids = ids_of((first | failing | second | last).apply_async())
        access = AppAccess(observed.app)

        def stopped() -> Canvas | None:
            life = task_life(access, ids[-1])
            found = canvas(access, life) if life.is_known else None
            return found if found is not None and len(found.nodes) == 4 else None

        found = wait_until(stopped, description="the failure and the runs before it")
        assert [node.id for node in found.nodes] == ids
        assert [node.state for node in found.nodes] == ["succeeded", "failed", "not sent", "not sent"]
        assert [(node.id, node.stopped, node.error) for node in found.failed] == [
            (ids[1], "chain", "ValueError: broken")
        ]


SEND_A_CHORD = """
from tests.support.celery.observed_app import app, chord, fail, succeed
print(chord([succeed.si(), fail.si(), succeed.si()], app=app)(succeed.si()).id)
"""


def test_a_chord_whose_member_failed_is_found_by_its_body(observed: Observed, access: Access) -> None:
    # In a process of its own: Celery keeps the results of a chord, which would ask their server when it has ended.
    sent = subprocess.run(
        [sys.executable, "-c", SEND_A_CHORD],
        env={**os.environ, **observed.environment()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    body = sent.stdout.strip()
    with observed.worker():

        def known() -> Canvas | None:
            found = canvas(access, task_life(access, body))
            return found if found is not None and len(found.nodes) == 4 else None

        found = wait_until(known, description="the members")
    assert sorted(node.state for node in found.nodes) == ["failed", "not sent", "succeeded", "succeeded"]
    assert [node.stopped for node in found.failed] == ["chord"]
