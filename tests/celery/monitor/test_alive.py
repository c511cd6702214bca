"""The probe of a real worker: a process without the app tells by its exit code whether the worker works."""

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from celery.utils.nodenames import default_nodename, host_format

from redis_queue.cli.alive import worker_name
from redis_queue.monitor.monitor import Workers
from redis_queue.operate.liveness import WorkerState, with_tasks, worker_states
from tests.support.celery.observed_names import GATE, OK, SEEN
from tests.support.celery.observing import PREFIX, Observed, observed_on_one_redis
from tests.support.ports import free_port
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)


def probe(url: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the probe; return its exit code and its JSON."""
    command = [sys.executable, "-m", "redis_queue", "alive", "--worker", "one@test", "--json", *options]
    done = subprocess.run(
        command, env={**os.environ, "REDIS_QUEUE_URL": url}, capture_output=True, text=True, timeout=30, check=False
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def test_an_idle_worker_is_alive_a_busy_one_busy_and_a_frozen_one_silent_then_lost(observed: Observed) -> None:
    url = observed.store.url
    with observed.worker(pool="prefork") as worker:
        wait_until(observed.workers.rows, timeout=60, description="a first report")
        code, found = probe(url)
        assert (code, found["state"], found["waiting"]) == (0, "alive", 0)
        observed.send(GATE, "gate")
        wait_until(lambda: observed.workers.rows()[0].busy, description="a busy worker")
        code, found = probe(url)
        assert (code, found["state"]) == (0, "busy")
        wait_until(observed.workers.running, description="the report of its task")
        os.kill(worker.pid, signal.SIGSTOP)
        wait_until(lambda: probe(url, "--stuck-after", "2")[0], description="a worker that does not report")
        code, found = probe(url, "--stuck-after", "2")
        assert (code, found["state"]) == (1, "silent")
        frozen = observed.workers.rows()[0].seen_at

        def state(seconds: float) -> WorkerState:
            at = round((frozen.timestamp() + seconds) * 1000)
            workers = Workers(observed.client, PREFIX, lambda: at)
            return with_tasks(workers, worker_states(workers))[0]

        for seconds, reason in ((7, "silent for 7 s"), (42, "silent for 42 s")):
            assert (state(seconds).state, state(seconds).reason) == ("silent", reason)
        assert [state(seconds).severity for seconds in (7, 42, 61)] == ["warning", "bad", "bad"]
        assert state(61).state == "lost"
        assert re.fullmatch(rf"last seen 1 min 1 s ago; it ran {GATE} for \d.*s", state(61).reason)
        os.kill(worker.pid, signal.SIGCONT)
        observed.client.rpush("gate", "open")
        wait_until(lambda: not probe(url, "--stuck-after", "2")[0], description="a worker that goes on")
        worker.request_shutdown()
        assert worker.wait() == 0
        # It has left, so it is not lost.
        assert worker_states(observed.workers) == []
        assert probe(url)[1]["state"] == "missing"


def test_a_task_in_the_event_loop_of_a_solo_worker_makes_it_busy(observed: Observed) -> None:
    with observed.worker(pool="solo"):
        observed.send(GATE, "gate")
        wait_until(lambda: observed.client.llen(SEEN), timeout=60, description="a started task")
        wait_until(
            lambda: any((row.loop_age or 0) > 2 for row in observed.workers.rows()), description="a silent event loop"
        )
        code, found = probe(observed.store.url, "--stuck-after", "2")
        assert (code, found["state"]) == (0, "busy")
        observed.client.rpush("gate", "open")


def test_a_worker_whose_tasks_wait_for_their_rate_limit_is_alive() -> None:
    limits = {"task_annotations": {OK: {"rate_limit": "1/h"}}, "worker_prefetch_multiplier": 1}
    with observed_on_one_redis(**limits) as observed, observed.worker():
        for _ in range(10):
            observed.send(OK)
        observed.wait_for(OK, 1)
        wait_until(lambda: (observed.workers.rows()[0].settled_age or 0) > 2, description="two quiet seconds")
        code, found = probe(observed.store.url, "--stuck-after", "2")
        assert (code, found["state"], found["waiting"]) == (0, "alive", 7)
        assert found["reason"] == "rate limits hold 2 of its tasks back"


def test_without_redis_a_worker_is_not_restarted_unless_the_probe_is_strict() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    code, found = probe(url)
    assert (code, found["state"]) == (0, "unknown")
    code, found = probe(url, "--strict")
    assert code == 1
    assert "cannot be reached" in found["error"]


@pytest.mark.parametrize("value", ["1", "0", "-5", "nan", "x", "1e9"])
def test_an_invalid_time_is_refused(value: str) -> None:
    code, found = probe("redis://127.0.0.1:1/0", "--stuck-after", value)
    assert code == 2
    assert "--stuck-after" in found["error"]


def test_the_probe_imports_neither_celery_nor_the_dashboard() -> None:
    text = (
        "import sys; from redis_queue.cli import group;"
        "group(['alive', '--url', 'redis://127.0.0.1:1'], standalone_mode=False);"
        "print(sorted(name for name in ('celery', 'kombu', 'flask', 'rich') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "name", ["celery@%h", "%h", "one", "one@", "@one", "one@%n.%d", "w%i@%h", "w%I@x", "a@b@c", ""]
)
def test_names_of_workers_are_those_of_celery(name: str) -> None:
    assert worker_name(name) == host_format(default_nodename(name))
