"""The compose files of examples/compose, as processes: what works on each, and what a failover loses."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery, chord
from kombu.exceptions import OperationalError

from redis_queue.celery import DurableTasks
from redis_queue.celery.brokers.open import broker_of
from redis_queue.errors import ConfigurationError
from redis_queue.web import dashboard
from tests.support.compose import Composition
from tests.support.paths import ROOT
from tests.support.ports import HOST
from tests.support.wait import wait_until, wait_until_settled
from tests.support.web.browser import SCREENS, Browser

SECONDS = 60.0
"""Seconds within which tasks run, also after a failover."""


# What the process of a client does: it has the environment of the workers, which a test process must not have.


def apps(module: str) -> list[Celery]:
    found = importlib.import_module(f"examples.compose.{module}")
    return list(found.APPS.values()) if module == "shares" else [found.app]


def task(app: Celery, name: str) -> Any:
    app.loader.import_default_modules()
    return app.tasks[f"shop.{name}"]


def get(result: Any) -> Any:
    return result.get(timeout=SECONDS, disable_sync_subtasks=False)


def needs(app: Celery, setting: str, value: Any) -> None:
    """Raise ConfigurationError if an app like *app* with this setting cannot send."""
    with Celery("shop", broker=app.conf.broker_url, set_as_current=False) as other:
        other.conf.redis_queue_url = app.conf.redis_queue_url if "redis_queue_url" in app.conf else None
        other.conf.broker_transport_options = app.conf.broker_transport_options
        other.conf[f"redis_queue_{setting}"] = value
        DurableTasks(other)
        (name,) = value
        other.send_task(name, kwargs={"order": "zero"})


def delays(app: Celery) -> None:
    results = [task(app, "remind").apply_async((str(number),), countdown=number / 10) for number in range(10)]
    assert [get(result) for result in results] == [str(number) for number in range(10)]


def retries(app: Celery) -> None:
    assert get(task(app, "ship").delay("again")) == "again"


def cancels(app: Celery) -> None:
    result = task(app, "remind").apply_async(("late",), countdown=3600)
    assert DurableTasks.of(app).cancel(result.id)
    assert result.state == "REVOKED"


def atomic_moves(app: Celery) -> None:
    with broker_of(app, DurableTasks.of(app).store.client) as broker:
        assert broker.shares_store


def unique_tasks(app: Celery) -> None:
    needs(app, "unique", {"shop.ship": {"key": "{order}"}})
    first = task(app, "ship").apply_async(("one",), countdown=1)
    assert task(app, "ship").apply_async(("one",), countdown=1).id == first.id
    assert get(first) == "one"


def flows(app: Celery) -> None:
    needs(app, "flow", {"shop.print_label": {"limit": 1}})
    start = time.monotonic()
    for result in [task(app, "print_label").delay(str(number), 0.4) for number in range(4)]:
        get(result)
    assert time.monotonic() - start >= 1.6, "two tasks of a flow with the limit 1 ran at once"


def chords(app: Celery) -> None:
    header = [task(app, "remind").s(str(number)).set(countdown=0.2) for number in range(5)]
    assert get(chord(header, app=app)(task(app, "report").s())) == 5


def schedules(app: Celery) -> None:
    found = DurableTasks.of(app).schedules
    found.put("tick", "every 1 s", "shop.remind", args=("tick",))
    wait_until(lambda: len(found.runs("tick")) >= 2, timeout=SECONDS, description="two runs of a schedule")
    assert found.delete("tick")


def pages(app: Celery) -> None:
    browser = Browser(dashboard(app))
    for path in SCREENS:
        browser.get(path)
    wait_until(lambda: "@" in browser.get("/workers").text, description="the workers on their page")


def commands(_: Celery) -> None:
    for arguments, expected in ((("metrics", "--once"), "redis_queue_up 1.0"), (("doctor",), "")):
        command = [sys.executable, "-m", "celery", "-A", os.environ["APP"], "redis-queue", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert expected in done.stdout


FEATURES = (delays, retries, cancels, atomic_moves, unique_tasks, flows, chords, schedules, pages, commands)


def failures(module: str) -> dict[str, str]:
    """Return the features that do not work, and why."""
    found = {}
    for feature in FEATURES:
        try:
            for app in apps(module):
                feature(app)
        except (AssertionError, ConfigurationError, NotImplementedError, OperationalError) as error:
            found[feature.__name__] = f"{type(error).__name__}: {error}"
    return found


def send(module: str, name: str, count: int, spread: float) -> list[str]:
    """Send *count* delayed tasks, due within *spread* seconds, to the apps in turn; repeat calls that fail."""
    found = apps(module)

    def sent(number: int) -> list[str]:
        app = found[number % len(found)]
        try:
            return [str(task(app, "remind").apply_async((name,), countdown=1 + spread * number / count).id)]
        except OperationalError:
            return []

    return [wait_until(lambda: sent(number), timeout=SECONDS, description="a send")[0] for number in range(count)]  # noqa: B023


def confirm(module: str, replicas: int) -> int:
    """Return how many replicas have all that was sent: `WAIT` counts from the last write of its connection."""
    (app,) = apps(module)
    with DurableTasks.of(app).store.client.pipeline(transaction=False) as pipe:
        pipe.set("shop:sent", 1)
        pipe.wait(replicas, 5000)
        return int(pipe.execute()[1])


def run_on(module: str, name: str, *arguments: Any) -> str:
    """Send an immediate task and return its id."""
    return str(task(apps(module)[0], name).delay(*arguments).id)


# What the test does with the services.


class Client:
    """A process with the environment of the workers of a composition."""

    def __init__(self, module: str, pool: ProcessPoolExecutor) -> None:
        self._module = module
        self._pool = pool

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what *function* returns there."""
        return self._pool.submit(function, self._module, *arguments).result(150)


def adopt(environment: dict[str, str]) -> None:
    """Set variables of this process."""
    os.environ.update(environment)


@contextmanager
def client_of(composition: Composition, module: str) -> Iterator[Client]:
    environment = {**composition.environment(composition.apps[0]), "APP": f"examples.compose.{module}"}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=adopt, initargs=(environment,)) as pool:
        yield Client(module, pool)


def runs(composition: Composition) -> list[str]:
    """Return the ids of the tasks that have succeeded, in any worker."""
    output = "".join(map(composition.output, composition.apps))
    return re.findall(r"Task shop\.\w+\[([\w-]+)\] succeeded", output)


def wait_for(composition: Composition, ids: list[str]) -> None:
    """Wait until each of *ids* has run."""
    left = set(ids)
    wait_until(lambda: left <= set(runs(composition)), timeout=SECONDS, description=f"{len(ids)} tasks to run")


def connect(composition: Composition, name: str) -> redis.Redis:
    return redis.Redis(port=composition.port(name), host=HOST, socket_timeout=5, decode_responses=True)


def ask(composition: Composition, name: str, *command: str | int) -> Any:
    with connect(composition, name) as client:
        return client.execute_command(*command)


def servers(composition: Composition, kind: str = "redis-") -> list[str]:
    """Return the services of a kind that run."""
    return [name for name in composition.running if name.startswith(kind)]


def primaries(composition: Composition) -> list[str]:
    return [name for name in servers(composition) if ask(composition, name, "ROLE")[0] == "master"]


def wait_until_replicated(composition: Composition) -> None:
    """Wait until each primary has a replica with all writes."""
    for name in primaries(composition):
        offset = ask(composition, name, "ROLE")[1]

        def is_replicated(name: str = name, offset: int = offset) -> bool:
            return sum(int(row[2]) >= offset for row in ask(composition, name, "ROLE")[2]) >= 1

        wait_until(is_replicated, description=f"a replica of {name}")


def lose_the_primary(composition: Composition, client: Client) -> None:
    """Kill the primary of the Sentinels: what its replicas have is not lost, nor what is sent later."""
    (old,) = primaries(composition)
    before = client(send, "before", 60, 20.0)
    assert client(confirm, 2) == 2
    composition.kill(old)
    after = client(send, "after", 20, 2.0)
    (new,) = wait_until(lambda: primaries(composition), description="a new primary")
    assert new != old
    wait_for(composition, before + after)
    composition.restart(old)
    wait_until_settled(lambda: primaries(composition) == [new], "the old primary to follow the new one")
    wait_for(composition, client(send, "later", 5, 1.0))


def lose_nodes(composition: Composition, client: Client) -> None:
    """Kill a primary of the Cluster, then a node of RabbitMQ."""
    wait_until_settled(lambda: len(primaries(composition)) == 3, "three primaries")
    before = client(send, "before", 60, 20.0)
    wait_until_replicated(composition)
    old = primaries(composition)[0]
    composition.kill(old)
    after = client(send, "after", 20, 2.0)
    wait_for(composition, before + after)
    composition.restart(old)
    wait_until_settled(lambda: ask(composition, old, "ROLE")[0] == "slave", "the old primary to follow the new one")
    before = client(send, "before", 60, 10.0)
    composition.kill("rabbitmq-1")
    after = client(send, "after", 20, 2.0)
    wait_for(composition, before + after)
    composition.restart("rabbitmq-1")
    wait_for(composition, client(send, "later", 5, 1.0))


def lose_a_share(composition: Composition, client: Client) -> None:
    """Kill one Redis: the other share goes on, and nothing of its own is lost or runs twice."""
    sent = client(send, "before", 60, 10.0)
    composition.kill("redis-b")
    wait_for(composition, sent[::2])
    composition.restart("redis-b")
    wait_for(composition, sent)
    found = runs(composition)
    assert {id_: found.count(id_) for id_ in sent} == dict.fromkeys(sent, 1)
    senders = [name for name in composition.apps if "schedules on" in composition.output(name)]
    assert senders == ["worker-a"], "the beat schedule is sent once"


FILES = {
    "sentinel": (lose_the_primary, set()),
    "cluster": (lose_nodes, {"atomic_moves", "unique_tasks", "flows"}),
    "shares": (lose_a_share, set()),
}


@pytest.mark.matrix
@pytest.mark.timeout(400)
@pytest.mark.parametrize("module", FILES)
def test_the_app_of_a_compose_file(module: str) -> None:
    strike, missing = FILES[module]
    file = ROOT / "examples" / "compose" / f"{module}.yml"
    with Composition(file, TASK_LEASE="2", C_FORCE_ROOT="1") as composition, client_of(composition, module) as client:
        found = client(failures)
        assert set(found) == missing, found
        kill_the_worker_of_a_task(composition, client)
        strike(composition, client)


def kill_the_worker_of_a_task(composition: Composition, client: Client) -> None:
    """Kill a worker while it runs a task: the task runs again."""
    running = client(run_on, "print_label", "label", 3.0)
    (worker,) = wait_until(
        lambda: [name for name in composition.apps if f"[{running}] received" in composition.output(name)],
        description="a task to run",
    )
    composition.kill(worker)
    assert running not in runs(composition)
    composition.restart(worker)
    wait_for(composition, [running])
