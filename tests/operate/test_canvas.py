"""The tree of a canvas, from runs, running tasks, results and delayed tasks, also from hostile ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.monitor.model import Run, RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import AppAccess
from redis_queue.operate.canvas import MAX_DEPTH, MAX_NODES, Canvas, canvas
from redis_queue.operate.task_life import task_life

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
    found = tree(access, "root")
    assert found is not None
    assert {node.group for node in found.nodes if node.id.startswith("g")} == {"g"}


def test_a_circle_ends(access: AppAccess, client: redis.Redis) -> None:
    result(client, "a", [[["b", None], None]])
    result(client, "b", [[["a", None], None]])
    assert shape(tree(access, "a")) == ["a succeeded!", "-b succeeded"]


def test_many_tasks_are_cut(access: AppAccess, client: redis.Redis) -> None:
    result(client, "root", [[[f"t{number}", None], None] for number in range(1000)])
    found = tree(access, "root")
    assert found is not None
    assert (len(found.nodes), found.more) == (MAX_NODES, True)


def test_a_long_chain_is_shown_flat_from_some_level_on(access: AppAccess, client: redis.Redis) -> None:
    for number in range(60):
        result(client, f"t{number}", [[[f"t{number + 1}", None], None]])
    found = tree(access, "t0")
    assert found is not None
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
