"""Tasks that release 0.1.0 stored are listed, sent and run."""

import hashlib
import json
from typing import Any

import pytest
import redis

from redis_queue.celery import Dispatcher, DurableTasks
from redis_queue.celery.message.envelope import PHRASES, VERSION
from tests.support.celery.brokers import Broker
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.store.release import CALLS, RAN, load
from tests.support.wait import wait_until

IDS = {f"id of {name}" for name in (*CALLS, "unique", "pushed")}


# As 0.1.0 has them: stored messages contain their numbers.
DIGEST = "c2f513e8e23ec9b2a30ff08f6b2c7bc300d1f6802029a5649158bf37c587e788"


def test_the_phrases_of_packed_messages_do_not_change() -> None:
    assert (VERSION, hashlib.sha256(b"\0".join(PHRASES)).hexdigest()) == (b"\x01", DIGEST)


@pytest.mark.parametrize("broker", ["redis", "another redis"], indirect=True)
def test_stored_tasks_are_listed_and_sent(broker: Broker, redis_url: str, client: redis.Redis) -> None:
    load(client)
    for queue in ("shop", "other"):
        broker.forget_later(queue)
    app = broker.app(redis_queue_url=redis_url, redis_queue_delay_queue="scheduled", task_default_queue="shop")
    delayed = DurableTasks(app, leases=False)
    delayed.schedules.delete("tick")
    listed = {entry.id: entry.task for entry in delayed.list()}
    assert len(listed) == len(IDS) + 1
    assert {id_: listed.get(id_) for id_ in IDS} == {**dict.fromkeys(IDS, "plain"), "id of unique": "single"}
    assert [entry.id for entry in delayed.list(queue="other")] == ["id of rich"]
    for id_ in listed:
        assert delayed.run_now(id_)
    # The other one is a run of the schedule.
    assert Dispatcher(app, delayed.queue).run().sent == len(IDS) + 1
    found = {_id(message): message for queue in ("shop", "other") for message in broker.take(queue)}
    assert found.keys() >= IDS
    assert json.loads(found["id of non-ASCII"].body)[1] == CALLS["non-ASCII"]["kwargs"]
    rich = found["id of rich"]
    assert (rich.properties["priority"], rich.headers["trace"], rich.headers["timelimit"]) == (5, "Zoë", [60, None])
    assert rich.headers["expires"].startswith("2100-01-01T00:00:00")


def _id(message: Any) -> str:
    return str(message.headers.get("id") or json.loads(message.body)["id"])


def test_a_worker_runs_all(server: RedisServer) -> None:
    """Delayed tasks of both protocols, a schedule, messages of a flow, and those that a killed worker held."""
    with server.client() as client:
        load(client)
        expected = {f"{(name,)} {options.get('kwargs', {})}" for name, options in CALLS.items()}
        expected |= {f"{(name,)} {{}}" for name in ("unique", "pushed", "schedule", "in flight")}
        expected |= {f"{(f'flow {number}',)} {{}}" for number in range(3)}
        arguments = ("worker", "--pool", "threads", "--concurrency", "2", "--queues", "shop,other")
        environment = {"BROKER_URL": f"redis+socket://{server.socket}"}
        with CeleryProcess("-A", "tests.support.celery.release_app", *arguments, environment=environment) as worker:
            ran = wait_until(
                lambda: {text.decode() for text in client.lrange(RAN, 0, -1)} >= expected or None,
                timeout=90,
                description="all tasks to run",
            )
            assert ran
            assert "Traceback" not in worker.output
