"""`redis-queue flow`: lists flows, changes their limits, and says what is in force."""

from __future__ import annotations

import json
import re

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue.admission.flows import Flows
from redis_queue.admission.rules import Flow
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import FlowKeys
from tests.support.cli.commands import Run

MAIL_IN_CODE = "limit 10, rate 100/m"
REPORTS = "limit 20, limit of each key 2, rate of each key 5/s, burst of each key 3"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "set queue:mail --limit 7 --rate 30/h --burst 4",
            f"queue:mail: limit 7, rate 30/h, burst 4; in the code: {MAIL_IN_CODE}",
        ),
        ("set queue:mail --rate none", f"queue:mail: limit 5; in the code: {MAIL_IN_CODE}"),
        ("set queue:mail --limit none --rate none", f"queue:mail: no limits; in the code: {MAIL_IN_CODE}"),
        ("set queue:mail --limit 10", f"queue:mail: {MAIL_IN_CODE}"),
        (
            "set queue:reports --limit-each none --rate-each 1/d",
            f"queue:reports: paused, limit 20, rate of each key 1/d; in the code: {REPORTS}",
        ),
        ("set shop.sync --limit 0", "shop.sync: limit of each key 0; in the code: limit of each key 1"),
        ("pause queue:mail", f"queue:mail: paused, limit 5, rate 100/m; in the code: {MAIL_IN_CODE}"),
        ("pause queue:other", "queue:other: paused"),
        ("pause shop.sync", "shop.sync: paused, limit of each key 1"),
        ("resume queue:reports", f"queue:reports: {REPORTS}"),
        ("resume queue:other", "queue:other: no limits"),
        ("reset queue:mail", f"queue:mail: {MAIL_IN_CODE}"),
        ("reset queue:reports", f"queue:reports: paused, {REPORTS}"),
    ],
)
def test_a_change_prints_what_is_in_force(line: str, text: str, run: Run, flows: Flows) -> None:
    done = run("flow", *line.split())

    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{text}\n", "")


@pytest.mark.parametrize(
    ("line", "text", "audit"),
    [
        ("pause queue:reports --key ann", "paused, limit 1, rate none; 2 running, 5 waiting", ""),
        ("resume queue:reports --key zoe", "as every key; 0 running, 0 waiting", ""),
        ("set queue:reports --key eve --limit 3 --rate 5/s", "limit 3, rate 5/s; 0 running, 1,200 waiting", None),
        ("set shop.sync --key 7 --limit none", "limit none; 0 running, 0 waiting", ", limit none"),
        ("reset queue:reports --key ann", "as every key; 2 running, 5 waiting", ""),
        ("reset queue:reports --key zoe", "paused; 0 running, 0 waiting", ""),
    ],
)
@pytest.mark.usefixtures("flows")
def test_a_change_of_a_key_prints_what_is_in_force(
    run: Run, client: redis.Redis, line: str, text: str, audit: str | None
) -> None:
    _, name, _, key, *_ = line.split()

    done = run("flow", *line.split())

    assert (done.exit_code, done.stdout, done.stderr) == (0, f"key {key} of {name}: {text}\n", "")
    written = Audit(client, "redis_queue").last()[0]
    assert (written.queue, written.detail) == (name, f"key {key}{', limit 3, rate 5/s' if audit is None else audit}")
    assert json.loads(run("flow", *line.split(), "--json").stdout)["key"] == key


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("pause queue:mail --key a", "key='a': queue:mail has no keys; give it key= or fair= in the code"),
        ("set queue:reports --key a --limit-each 1", "queue:reports: of one key, use limit= and rate="),
        ("keys nosuch", "unknown flow 'nosuch'"),
        ("peek queue:mail a", "queue:mail has no keys"),
        ("delete queue:reports ann", "give ids, or conditions like --task, or --all"),
    ],
)
def test_wrong_uses_of_keys(run: Run, flows: Flows, line: str, text: str) -> None:
    done = run("flow", *line.split())

    assert (done.exit_code != 0, text in done.stderr) == (True, True), done.stderr


def test_a_change_as_json_is_the_flow(run: Run, flows: Flows) -> None:
    done = run("flow", "set", "queue:mail", "--limit", "7", "--burst", "4", "--json")

    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "name": "queue:mail",
        "limit": 7,
        "rate": "100/m",
        "burst": 4,
        "limit_each": None,
        "rate_each": None,
        "burst_each": None,
        "kind": "",
        "paused": False,
        "changed": True,
        "running": 0,
        "waiting": 1,
        "uncounted": 0,
        "in_code": {
            "limit": 10,
            "rate": "100/m",
            "burst": 1,
            "limit_each": None,
            "rate_each": None,
            "burst_each": None,
        },
    }
    for verb in ("pause", "resume", "reset"):
        told = json.loads(run("flow", verb, "queue:mail", "--json").stdout)
        assert (told["name"], told["paused"]) == ("queue:mail", verb == "pause")


def test_the_list_as_json_has_all_flows(run: Run, flows: Flows) -> None:
    found = json.loads(run("flow", "list", "--json").stdout)["flows"]

    assert [(row["name"], row["paused"], row["changed"], row["waiting"]) for row in found] == [
        ("queue:mail", False, True, 1),
        ("queue:reports", True, False, 1205),
        ("shop.sync", False, False, 0),
    ]


def test_the_keys_with_most_waiting_messages_come_first(run: Run, flows: Flows) -> None:
    line = ["flow", "show", "queue:reports", "--json"]

    nothing = {"since": None, "paused": False, "own": {}}
    assert json.loads(run(*line).stdout)["keys"] == [
        {**nothing, "key": "eve", "running": 0, "waiting": 1200},
        {**nothing, "key": "ann", "running": 2, "waiting": 5, "own": {"limit": 1, "rate": None}},
        {**nothing, "key": "bob", "running": 1, "waiting": 0},
    ]
    assert [row["key"] for row in json.loads(run(*line, "--keys", "1").stdout)["keys"]] == ["eve"]
    assert "there may be more: raise --keys" in run(*line[:3], "--keys", "1").stdout


def test_messages_without_a_key_have_a_row(run: Run, flows: Flows, client: redis.Redis) -> None:
    line = ["flow", "show", "queue:reports"]
    assert "(no key)" not in run(*line).stdout
    client.hincrby(flows.redis_keys.backlog.decode(), "queue:reports", 4)
    assert json.loads(run(*line, "--json").stdout)["without_key"] == {"running": 0, "waiting": 4}
    assert re.search(r"^\(no key\) +0 +4$", run(*line).stdout, re.MULTILINE)
    # Without all keys, nobody knows.
    assert "(no key)" not in run(*line, "--keys", "1").stdout


def test_without_flows_the_list_is_one_line(run: Run, client: redis.Redis, redis_url: str) -> None:
    done = run("flow", "list")

    assert (done.exit_code, done.stdout) == (0, f"no flows in {redis_url.partition('?')[0]}\n")
    assert json.loads(run("flow", "list", "--json").stdout) == {"flows": []}


def test_columns_without_values_are_left_out(run: Run, client: redis.Redis) -> None:
    Flows(client, "redis_queue").declare({"queue:mail": Flow(limit=1)})

    assert run("flow", "list").stdout.splitlines()[0].split() == ["flow", "limit", "running", "waiting", "state"]


def test_without_flows_an_unknown_one_is_an_error(run: Run, client: redis.Redis) -> None:
    done = run("flow", "show", "queue:mail")

    assert (done.exit_code, done.stderr) == (2, "error: unknown flow 'queue:mail': there are none\n")


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_with_an_app_a_mistyped_queue_is_an_error(verb: str, run_in_app: Run, app: Celery, client: redis.Redis) -> None:
    app.conf.task_queues = [Queue("mail"), Queue("slow")]

    done = run_in_app("flow", verb, "queue:mial")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean 'mail'?" in done.stderr
    assert Flows(client, "redis_queue").list() == []


def test_with_an_app_its_queues_and_all_flows_can_be_paused(
    run_in_app: Run, app: Celery, flows: Flows, client: redis.Redis
) -> None:
    app.conf.task_queues = [Queue("slow")]

    for name in ("queue:slow", "queue:mail", "shop.sync"):
        assert run_in_app("flow", "pause", name).exit_code == 0
        assert (run_in_app("flow", "resume", name).exit_code, run_in_app("flow", "list").exit_code) == (0, 0)

    found = Audit(client, "redis_queue").last()
    assert [(action.verb, action.queue) for action in reversed(found)] == [
        (verb, name) for name in ("queue:slow", "queue:mail", "shop.sync") for verb in ("flow-pause", "flow-resume")
    ]


def test_hostile_names_in_redis_are_escaped(run: Run, flows: Flows, client: redis.Redis) -> None:
    name, keys = b"shop\x1b[2J\xe2\x80\xae[bold]\xff", FlowKeys("redis_queue")
    client.hset(keys.config, name, "1 - 1e300 5e-324 -1 0 - k")
    client.hset(keys.config, b"other", "nan x inf - - - - -")
    client.zadd(keys.keys("queue:reports"), {b"\x1b[2J\xff": 3, "endless": "inf"})
    for flag in ('"", {', '"", 5', '"", ' + "[" * 100_000, '"", "\\ud800"', b"\xff"):
        client.hset(keys.flags, flag, 1)

    for line in ("list", "show queue:reports"):
        done = run("flow", *line.split())
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.replace("\n", "").isprintable()
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert json.loads(run("flow", *line.split(), "--json").stdout)
