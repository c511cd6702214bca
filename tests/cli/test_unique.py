"""`redis-queue unique`: shows which tasks own keys, and frees a key."""

from __future__ import annotations

import json
import sys

import pytest
import redis
from celery import Celery

from redis_queue.admission.owners import Owners, field_of, new_token
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import FlowKeys
from tests.support.cli.commands import Run
from tests.support.store.stage import differences, snapshot
from tests.support.wait import must

SYNC = ("shop.sync", "order:7")
SYNC_ID = "7c6c8f2e-0000-4000-8000-000000000007"
QUESTION = "Free the key 'order:7' of shop.sync?"


def own(owners: Owners, task: str, key: str, task_id: str) -> None:
    """Let a message that was sent own a key."""
    field, token = field_of(task, key), new_token()
    assert owners.acquire(field, token, task_id=task_id, ttl_ms=60_000).owns
    assert owners.confirm(field, token)


def test_the_list_as_json_has_all_owners(run: Run, unique: Owners) -> None:
    found = json.loads(run("unique", "list", "--json").stdout)

    assert [(row["task"], row["key"], row["state"]) for row in found["owners"]] == [
        ("shop.sync", "order:7", "waiting"),
        ("shop.sync", "order:8", "running"),
        ("shop.remind", "order:9", "delayed"),
        ("shop.remind", "order:10", "sending"),
        ("shop.rebuild", "", "waiting"),
    ]
    assert found["owners"][0] == {
        "task": "shop.sync",
        "key": "order:7",
        "task_id": SYNC_ID,
        "state": "waiting",
        "until": "2030-01-01T01:00:00+00:00",
    }
    assert (found["total"], found["more"]) == (5, False)


def test_a_part_of_a_name_and_a_limit(run: Run, unique: Owners) -> None:
    found = json.loads(run("unique", "list", "--task", "re", "--limit", "2", "--json").stdout)

    assert [row["task_id"] for row in found["owners"]] == ["task-9", "task-10"]
    assert (found["total"], found["more"]) == (3, True)


def test_without_owners_the_list_is_one_line(run: Run, client: redis.Redis, redis_url: str) -> None:
    place = redis_url.partition("?")[0]

    assert run("unique", "list").stdout == f"no owned keys in {place}\n"
    assert run("unique", "list", "--task", "nosuch").stdout == f"no match among the owned keys in {place}\n"
    assert json.loads(run("unique", "list", "--json").stdout) == {"owners": [], "total": 0, "more": False}


def test_show_as_json_is_the_owner(run: Run, unique: Owners) -> None:
    found = json.loads(run("unique", "show", "shop.rebuild", "--json").stdout)

    assert (found["task"], found["key"], found["task_id"], found["state"]) == ("shop.rebuild", "", "task-2", "waiting")


def test_release_frees_one_key_and_nothing_else(run: Run, unique: Owners, client: redis.Redis) -> None:
    before = snapshot(client)

    done = run("unique", "release", *SYNC, "--yes")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "1 released\n", "")
    assert unique.get(*SYNC) is None
    assert unique.count() == 4
    changed = " ".join(map(str, differences(before, snapshot(client))))
    assert "owners" in changed
    assert "audit" in changed
    assert "replaced" not in changed


@pytest.mark.parametrize("line", ["release shop.rebuild --yes", "release shop.rebuild --yes --json"])
def test_release_of_a_task_without_keys(line: str, run: Run, unique: Owners) -> None:
    done = run("unique", *line.split())

    assert done.exit_code == 0
    assert done.stdout == ('{"released": 1}\n' if "--json" in line else "1 released\n")
    assert unique.get("shop.rebuild") is None


def test_the_question_names_the_task_that_goes_on(
    run: Run, unique: Owners, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(text: str, **_: object) -> bool:
        asked.append(text)
        return len(asked) > 1

    monkeypatch.setattr("click.confirm", answer)
    monkeypatch.setattr("redis_queue.cli.actions.sys", Terminal)

    refused = run("unique", "release", *SYNC)
    assert (refused.exit_code, "nothing was done" in refused.stderr) == (1, True)
    assert unique.get(*SYNC) is not None
    assert Audit(client, "redis_queue").last() == []

    assert run("unique", "release", *SYNC).exit_code == 0
    assert unique.get(*SYNC) is None
    assert asked == [QUESTION, QUESTION]
    assert f"The task {SYNC_ID} (waiting) goes on" in refused.stderr


class Terminal:
    """Stands for sys with a terminal as stdin."""

    class stdin:  # noqa: N801 - as in sys
        isatty = staticmethod(lambda: True)

    stderr = stdout = sys.stderr


@pytest.mark.parametrize("more", [(), ("--yes",), ("--dry-run",)])
def test_a_key_without_an_owner_is_exit_code_1(more: tuple[str, ...], run: Run, unique: Owners) -> None:
    for line, words in (
        (("shop.sync", "order:70"), "no task owns the key 'order:70' of shop.sync"),
        (("shop.sync",), "no task owns the key of shop.sync"),
    ):
        done = run("unique", "release", *line, *more)
        assert (done.exit_code, done.stderr) == (1, f"error: {words}\n")
        assert json.loads(run("unique", "release", *line, *more, "--json").stdout)["error"] == words
    assert unique.count() == 5


def test_a_key_that_another_task_owns_meanwhile_stays(
    run: Run, unique: Owners, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Owners.release

    def change_owner(owners: Owners, task: str, key: str, *, task_id: str) -> bool:
        client.hset(FlowKeys("redis_queue").owners, field_of(*SYNC), "9a - w 1000 other")
        return release(owners, task, key, task_id=task_id)

    monkeypatch.setattr(Owners, "release", change_owner)

    done = run("unique", "release", *SYNC, "--yes")

    assert (done.exit_code, done.stdout) == (1, "0 released\n")
    assert done.stderr == f"error: the task '{SYNC_ID}' no longer owns the key 'order:7' of shop.sync\n"
    assert must(unique.get(*SYNC)).task_id == "other"
    assert Audit(client, "redis_queue").last() == []


def test_with_an_app_its_own_keys_are_shown(run: Run, run_in_app: Run, app: Celery, unique: Owners) -> None:
    app.conf.broker_transport_options = {"global_keyprefix": "shop:"}
    own(StoredTasks.of(app).unique, "shop.sync", "order:7", "of-app")

    assert json.loads(run_in_app("unique", "show", *SYNC, "--json").stdout)["task_id"] == "of-app"
    assert json.loads(run("unique", "show", *SYNC, "--json").stdout)["task_id"] == SYNC_ID
    assert run_in_app("unique", "release", *SYNC, "--yes").exit_code == 0
    assert StoredTasks.of(app).unique.count() == 0
    assert unique.count() == 5


def test_hostile_texts_in_redis_are_escaped(run: Run, client: redis.Redis) -> None:
    keys = FlowKeys("redis_queue")
    for number, field in enumerate((b"shop\x1b[2J\xe2\x80\xae[bold]\xff\0key\x07\xfe", b"shop.sync\0" + b"k" * 255)):
        client.hset(keys.owners.decode(), field, b"1a - w 1000 id\r\n\x1b[2J\xe2\x80\xae[/]\xff" + b"i" * 300)  # type: ignore[call-overload]
        client.zadd(keys.owner_ends, {field: 2e12 + number})

    for line in (("list",), ("show", "shop.sync", "k" * 255), ("release", "shop.sync", "k" * 255, "--dry-run")):
        done = run("unique", *line)
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.replace("\n", "").isprintable()
        assert "id\\r\\n\\x1b[2J" in done.stdout
        assert json.loads(run("unique", *line, "--json").stdout)
    assert max(map(len, run("unique", "list").stdout.splitlines())) <= 80
