"""``redis-queue validate`` passes on a working Redis and detects each kind of fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import redis

from redis_queue.validation.history import Event, Kind, check
from redis_queue.validation.run import Report
from tests.support.wait import wait_until


def command(url: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "redis_queue", "validate", "--url", url, *options]


def validate(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(url, *options), capture_output=True, text=True, timeout=55)


@pytest.mark.parametrize(
    "options",
    [
        ["--kill"],
        pytest.param(["--batch", "1", "--consumers", "3"], marks=pytest.mark.thorough),
        pytest.param(["--lose-every", "0"], marks=pytest.mark.thorough),
    ],
)
def test_no_message_is_lost_or_duplicated(options: list[str], redis_url: str, client: redis.Redis) -> None:
    done = validate(redis_url, "--messages", "3000", "--json", *options)
    report: dict[str, Any] = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert report["passed"] is True
    assert (report["handled"], report["lost"], report["doubled"], report["out_of_order"]) == (3000, 0, 0, 0)
    assert report["put_back"] >= report["lost_on_purpose"] > 0 or "0" in options
    assert client.keys("*") == []


def test_the_table_ends_with_a_verdict(redis_url: str, client: redis.Redis) -> None:
    done = validate(redis_url, "--messages", "100")

    assert done.stdout.splitlines()[-1] == "passed: nothing lost, nothing doubled"


def test_a_prefix_in_use_is_refused_and_left_alone(redis_url: str, client: redis.Redis) -> None:
    client.set("{mine:queue:orders}:ready", "precious")
    done = validate(redis_url, "--prefix", "mine")

    assert done.returncode == 2
    assert "prefix 'mine' is in use" in done.stderr
    assert client.get("{mine:queue:orders}:ready") == b"precious"


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["--messages", "0"], "messages=0", 2),
        (["--batch", "501"], "batch=501", 2),
        (["--messages", "5", "--lose-every", "6"], "lose_every=6", 2),
        (["--prefix", "a*b"], "prefix='a*b'", 2),
        (["--lease", "-1"], "lease=-1.0", 2),
        (["--url", "redis://:secret@127.0.0.1:1/0"], "cannot be reached", 1),
        (["--url", "http://x"], "scheme='http'", 2),
        (["--mesages", "5"], "--messages", 2),
    ],
)
def test_invalid_options_and_failures_have_codes(options: list[str], words: str, code: int, redis_url: str) -> None:
    done = validate(redis_url, *options)

    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_an_interrupted_run_leaves_nothing_behind(redis_url: str, client: redis.Redis) -> None:
    process = subprocess.Popen(
        command(redis_url, "--messages", "200000", "--prefix", "gone"), stderr=subprocess.PIPE, start_new_session=True
    )
    with process:
        wait_until(lambda: client.keys("{gone:*:in_flight"), description="the consumers to work")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()

    assert client.keys("*") == []


def claimed(number: int, claim: int, *, deliveries: int = 1) -> Event:
    return Event("claim", "ok", str(number), claim, deliveries=deliveries)


def handled(number: int, claim: int, outcome: Kind = "ok") -> list[Event]:
    id_ = str(number)
    return [Event("execute", "ok", id_, claim), Event("ack", "invoke", id_, claim), Event("ack", outcome, id_, claim)]


def test_the_report_counts_every_kind_of_fault() -> None:
    puts = [Event("put", "ok", str(number), lane=1) for number in range(4)]
    # 0 and 1 are out of order, 0 is acked twice, 1 is lost on purpose and handled again, 9 was never put, 2 and 3 are
    # lost.
    first = [claimed(1, 1), claimed(0, 1), Event("drop", "ok", "1", 1), *handled(0, 1), claimed(9, 2), *handled(9, 2)]
    second = [claimed(0, 3, deliveries=2), *handled(0, 3), claimed(1, 3, deliveries=2), *handled(1, 3)]
    third = [claimed(2, 4), *handled(2, 4, "refused")]
    figures = {"messages": 4, "kills": 0, "put_back": 0, "left_over": 0}
    rates = {"put_per_s": 1.0, "handled_per_s": 1.0, "seconds": 1.0}
    found = Report.of(check([*puts, *first, *second, *third], []), **figures, **rates)

    assert not found.passed
    assert (found.handled, found.lost, found.doubled, found.unknown, found.out_of_order) == (4, 2, 1, 1, 1)
    assert (found.lost_on_purpose, found.handled_again, found.late_acks_refused) == (1, 1, 1)
