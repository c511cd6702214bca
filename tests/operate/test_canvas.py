"""The tree of a canvas, from runs, running tasks, results and delayed tasks, also from hostile ones."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.basics.times import to_ms
from redis_queue.celery.message.envelope import MAX_MESSAGE_NAME, Envelope
from redis_queue.celery.message.next_steps import MAX_STEPS
from redis_queue.monitor.model import Failure, Run, RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import AppAccess
from redis_queue.operate.canvas import MAX_DEPTH, MAX_NODES, Canvas, canvas
from redis_queue.operate.task_life import task_life
from redis_queue.store.keys import MonitorKeys
from tests.support.wait import must

PREFIX = "redis_queue"


@pytest.fixture
def access(app: Celery) -> AppAccess:
    return AppAccess(app)


@pytest.fixture
def reports(client: redis.Redis) -> Reports:
    return Reports(client, PREFIX)


def tree(access: AppAccess, id_: str) -> Canvas | None:
    return canvas(access, task_life(access, id_))


def shape(found: Canvas | None) -> list[str]:
    assert found is not None
    return [f"{'-' * node.depth}{node.id} {node.state}{'!' if node.is_current else ''}" for node in found.nodes]


def run(access: AppAccess, id_: str, parent: str = "", group: str = "") -> Run:
    return Run(id_, "t", "q", "w", "succeeded", access.inspector.now(), parent=parent, root="root", group=group)


def result(client: redis.Redis, id_: str, children: Any, status: str = "SUCCESS") -> None:
    client.set(f"celery-task-meta-{id_}", json.dumps({"status": status, "children": children}))


def test_a_task_alone_has_no_tree(access: AppAccess, reports: Reports) -> None:
    reports.write(ended=[run(access, "root")])
    assert tree(access, "root") is None


def test_runs_and_running_tasks_form_a_tree(access: AppAccess, reports: Reports) -> None:
    now = access.inspector.now()
    reports.write(
        WorkerRow("w", now, now),
        [RunningTask("b", "t", "q", "w", now, parent="root", root="root")],
        ended=[run(access, "root"), run(access, "a", "root", "g"), run(access, "c", "a")],
    )
    assert shape(tree(access, "c")) == ["root succeeded", "-a succeeded", "--c succeeded!", "-b running"]


def test_results_lead_to_children_groups_and_chains(access: AppAccess, client: redis.Redis) -> None:
    group = [["g", None], [[["g1", None], None], [["g2", None], None]]]
    chain = [["second", [["first", None], None]], None]
    result(client, "root", [group, chain])
    result(client, "g1", [], "FAILURE")
    access.delay_queue().push({"task": "shop.later"}, id="second", delay=60)
    assert shape(tree(access, "root")) == [
        "root succeeded!",
        "-g1 failed",
        "-g2 unknown",
        "-first unknown",
        "--second delayed",
    ]
    found = must(tree(access, "root"))
    assert {node.group for node in found.nodes if node.id.startswith("g")} == {"g"}


def test_a_circle_ends(access: AppAccess, client: redis.Redis) -> None:
    result(client, "a", [[["b", None], None]])
    result(client, "b", [[["a", None], None]])
    assert shape(tree(access, "a")) == ["a succeeded!", "-b succeeded"]


def test_many_tasks_are_cut(access: AppAccess, client: redis.Redis) -> None:
    result(client, "root", [[[f"t{number}", None], None] for number in range(1000)])
    found = must(tree(access, "root"))
    assert (len(found.nodes), found.more) == (MAX_NODES, True)


def test_a_long_chain_is_shown_flat_from_some_level_on(access: AppAccess, client: redis.Redis) -> None:
    for number in range(60):
        result(client, f"t{number}", [[[f"t{number + 1}", None], None]])
    found = must(tree(access, "t0"))
    assert max(node.depth for node in found.nodes) == MAX_DEPTH
    assert len(found.nodes) == 61


@pytest.mark.parametrize(
    "children",
    [
        "x",
        7,
        [[]],
        [["a"]],
        [[None, None]],
        [[[], []]],
        [[["\n", None], None]],
        [[[{}, None], None]],
        [[["a" * 999], 1]],
    ],
)
def test_hostile_children_are_left_out(access: AppAccess, client: redis.Redis, children: Any) -> None:
    result(client, "root", children)
    assert tree(access, "root") is None


def signature(id_: Any, task: Any = "shop.step", **options: Any) -> dict[str, Any]:
    return {"task": task, "args": [], "kwargs": {}, "options": {"task_id": id_, **options}}


def failed(access: AppAccess, id_: str, links: Any, **fields: Any) -> Failure:
    """Keep the failure of a task whose message has *links*."""
    headers = {"lang": "py", "task": "shop.pay", "id": id_, "root_id": "root"}
    body = json.dumps([[], {}, links]).encode()
    message = Envelope(body, "application/json", "utf-8", headers, {}, "", "q").pack("")
    known: dict[str, Any] = {
        "failed_at": access.inspector.now(),
        "exception": "ValueError",
        "message": "no money",
        "body": message,
        **fields,
    }
    failure = Failure(id_, "shop.pay", "q", "w", **known)
    access.monitor.failures.keep([failure], 1000, 7)
    return failure


CHAIN = {"chain": [signature("last"), signature("next", "shop.pack")], "errbacks": [signature("tell")]}


@pytest.mark.parametrize("id_", ["root", "pay", "next", "last"])
@pytest.mark.parametrize("results", [True, False])
def test_any_id_of_a_chain_leads_to_the_step_that_failed(
    access: AppAccess, reports: Reports, client: redis.Redis, id_: str, results: bool
) -> None:
    failure = failed(access, "pay", CHAIN)
    reports.write(
        ended=[run(access, "root"), replace(run(access, "pay", "root"), outcome="failed", error="ValueError: no money")]
    )
    for later in ("next", "last") if results else ():
        # So Celery does with the later steps of a chain.
        document = {
            "status": "FAILURE",
            "date_done": failure.failed_at.isoformat(),
            "result": {"exc_type": "ValueError"},
        }
        client.set(f"celery-task-meta-{later}", json.dumps(document))
    found = tree(access, id_)
    states = ["root succeeded", "-pay failed", "--next not sent", "---last not sent"]
    assert shape(found) == [f"{state}{'!' * (state.strip('-').split()[0] == id_)}" for state in states]
    assert found is not None
    stops = [(node.id, node.stopped, node.error) for node in found.failed]
    assert stops == ([] if id_ == "pay" else [("pay", "chain", "ValueError: no money")])
    assert task_life(access, id_).task == {"next": "shop.pack", "last": "shop.step"}.get(id_, "t")


def test_a_failure_long_ago_is_found_by_the_time_of_the_result(
    access: AppAccess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = failed(access, "pay", CHAIN, failed_at=access.inspector.now() - timedelta(hours=1))
    monkeypatch.setattr("redis_queue.operate.chain.MAX_LOOKS", 3)
    for number in range(5):
        failed(access, f"other-{number}", {})
    assert task_life(access, "last").state == "unknown"
    client.set("celery-task-meta-last", json.dumps({"status": "FAILURE", "date_done": failure.failed_at.isoformat()}))
    assert task_life(access, "last").state == "not sent"


def test_a_chord_that_cannot_run_leads_to_its_members(access: AppAccess, reports: Reports) -> None:
    failed(access, "b", {"chord": signature("body", "shop.sum", group_id="g")})
    members = [replace(run(access, id_, group="g"), root="") for id_ in ("a", "b", "c")]
    reports.write(ended=[members[0], replace(members[1], outcome="failed", error="no money"), members[2]])
    found = must(tree(access, "body"))
    assert {node.id: node.state for node in found.nodes if node.id != "root"} == {
        "a": "succeeded",
        "b": "failed",
        "body": "not sent",
        "c": "succeeded",
    }
    assert [(node.id, node.stopped) for node in found.failed] == [("b", "chord")]
    assert found.groups["g"] == {"succeeded": 2, "failed": 1, "not sent": 1}


def test_members_are_found_although_many_runs_came_later(access: AppAccess, client: redis.Redis) -> None:
    now = access.inspector.now()
    moved = Reports(client, PREFIX, lambda: to_ms(now) - 3_600_000)
    moved.write(
        ended=[replace(run(access, id_, group="g"), root="", ended_at=now - timedelta(hours=1)) for id_ in "ab"]
    )
    for number in range(30):
        Reports(client, PREFIX).write(ended=[run(access, f"{number}-{n}") for n in range(20)])
    found = must(tree(access, "a"))
    assert [node.id for node in found.nodes] == ["a", "b"]


def test_steps_after_a_task_that_waits_come_next(access: AppAccess) -> None:
    message = Envelope(json.dumps([[], {}, CHAIN]).encode(), "application/json", "utf-8", HEADERS, {}, "", "q")
    access.delay_queue().push(message.pack("pay"), id="pay", delay=60)
    life = task_life(access, "pay")
    assert life.next is not None
    assert [(step.link, step.id) for step in life.next] == [("chain", "next"), ("chain", "last"), ("errback", "tell")]
    assert shape(tree(access, "pay")) == ["pay delayed!", "-next comes next", "--last comes next"]


HEADERS = {"lang": "py", "task": "shop.pay", "id": "pay"}


@pytest.mark.parametrize(
    "links",
    [
        None,
        "x",
        {"chain": 7, "chord": [], "callbacks": {}, "errbacks": "x"},
        {"chain": [None, 7, [], {"task": 7}, {"task": "t"}, {"task": "t", "options": 7}]},
        {"chain": [signature("\n"), signature("x" * 999), signature({}), signature(None)]},
        {"chain": [signature("pay")] * 500, "chord": signature("x", "<b>" * 100_000)},
    ],
)
def test_hostile_links_are_left_out(access: AppAccess, links: Any) -> None:
    message = Envelope(json.dumps([[], {}, links]).encode(), "application/json", "utf-8", HEADERS, {}, "", "q")
    access.delay_queue().push(message.pack("pay"), id="pay", delay=60)
    life = task_life(access, "pay")
    assert len(life.next or ()) <= MAX_STEPS + 1
    assert all(len(step.task) <= MAX_MESSAGE_NAME for step in life.next or ())
    found = canvas(access, life)
    assert found is None or {node.id for node in found.nodes} == {"pay", "x"}


def test_failures_that_cannot_be_read_do_not_hide_the_runs(
    access: AppAccess, reports: Reports, client: redis.Redis
) -> None:
    reports.write(ended=[run(access, "root"), replace(run(access, "a", "root"), outcome="failed", error="no")])
    client.set(MonitorKeys(PREFIX).failures, "text")
    client.set(MonitorKeys(PREFIX).failed_at, "text")
    assert shape(tree(access, "root")) == ["root succeeded!", "-a failed"]
