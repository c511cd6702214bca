"""The checks of the messages in flight at a Redis broker: what never comes back, and who holds it without a lease."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redis_queue.basics.times import from_ms
from redis_queue.celery import DurableTasks
from redis_queue.cli import group
from redis_queue.doctor import Finding
from redis_queue.monitor.model import WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import AppAccess, access_to
from redis_queue.operate.diagnosis import LARGE, NAMED, in_flight_broker, repair
from tests.support.celery.leasing import Leasing
from tests.support.celery.leasing_names import WAIT
from tests.support.doctor.stage import problems
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until

QUEUE = "mail"


@pytest.fixture
def app(sound: RedisServer, client: redis.Redis) -> Iterator[Celery]:
    """An app of stock Celery whose broker is the store."""
    with app_on(sound) as app:
        yield app


def app_on(server: RedisServer, **options: Any) -> Celery:
    app = Celery("shop", broker=f"redis+socket://{server.socket}", set_as_current=False)
    app.conf.update(task_default_queue=QUEUE, broker_transport_options=options)
    return app


def take(app: Celery, count: int = 1) -> list[tuple[str, str]]:
    """Send tasks and take them as a stock worker that is killed; return their ids and delivery tags."""
    found = []
    for _ in range(count):
        app.send_task("shop.charge")
        with app.connection_for_read() as connection:
            channel = connection.channel()
            channel.qos.restore_at_shutdown = False
            message = channel.basic_get(QUEUE)
            found.append((message.headers["id"], message.delivery_tag))
    return sorted(found, key=lambda pair: pair[1])


def found(app: Celery | None, client: redis.Redis, check: str = "in flight", *, ask: bool = False) -> list[Finding]:
    return problems(access_to(client, "redis_queue") if app is None else AppAccess(app), check, ask=ask)


class TestIndex:
    def test_a_message_that_never_comes_back_is_an_error(self, app: Celery, client: redis.Redis) -> None:
        [(one, tag), _] = take(app, 2)
        assert found(app, client) == []
        client.zrem("unacked_index", tag)
        [said] = found(app, client)
        assert (said.severity, said.repairable, said.advice) == ("error", True, "redis-queue doctor --fix")
        assert said.found == (
            f"1 message in flight, but not in unacked_index: lost if the worker is gone: task {one} ({tag})"
        )
        assert found(None, client) == [said]

    def test_many_are_counted(self, app: Celery, client: redis.Redis) -> None:
        client.hset("unacked", mapping={f"tag-{number:04}": "{" for number in range(1200)})
        client.hset("unacked", "tag-0000", json.dumps([{"headers": {"id": "x"}}, "a" * LARGE, ""]))
        [said] = found(app, client)
        assert said.found.startswith("1,200 messages in flight, ")
        assert said.found.endswith(f": tag-0000, tag-0001, tag-0002, tag-0003, tag-0004 and {1200 - NAMED:,} more")

    def test_a_repair_brings_it_back(self, app: Celery, client: redis.Redis) -> None:
        take(app, 3)
        client.delete("unacked_index")
        client.zadd(
            "redis_queue:lease_ends:unacked_index", dict.fromkeys(map(bytes.decode, client.hkeys("unacked")), 1)
        )
        planned = repair(AppAccess(app), dry_run=True)
        assert [(row.severity, row.found) for row in planned] == [
            ("warning", "add 3 messages in flight to unacked_index")
        ]
        assert not client.exists("unacked_index")
        [done] = repair(AppAccess(app), dry_run=False)
        assert (done.check, done.severity, done.found) == ("in flight", "ok", planned[0].found)
        assert repair(AppAccess(app), dry_run=False) == []
        assert found(app, client) == []
        for tag, score in client.zrange("unacked_index", 0, -1, withscores=True):
            assert abs(score - time.time()) < 60
            client.zadd("unacked_index", {tag: score - 3601})
        with app.connection_for_read() as connection:
            connection.default_channel.qos.restore_visible(num=10)
        assert (client.llen(QUEUE), client.exists("unacked", "unacked_index")) == (3, 0)

    def test_the_command_repairs_it(self, app: Celery, client: redis.Redis, sound: RedisServer) -> None:
        take(app)
        client.delete("unacked_index")
        assert CliRunner().invoke(group, ["doctor", "--url", sound.url]).exit_code == 1
        done = CliRunner().invoke(group, ["doctor", "--url", sound.url, "--fix", "--yes"])
        assert (done.exit_code, "1 repaired" in done.output) == (0, True)
        assert client.zcard("unacked_index") == 1

    def test_a_repair_leaves_what_was_settled_meanwhile(self, app: Celery, client: redis.Redis) -> None:
        take(app)
        client.delete("unacked_index")
        with in_flight_broker(AppAccess(app)) as broker:
            assert broker is not None
            tags = broker.sample()
            client.delete("unacked")
            assert broker.flags(tags, repair=True) == b"0"
        assert not client.exists("unacked_index")

    def test_work_is_no_finding(self, app: Celery, client: redis.Redis) -> None:
        done = threading.Event()

        def work() -> None:
            with app.connection_for_read() as connection:
                channel = connection.channel()
                while not done.is_set():
                    app.send_task("shop.charge")
                    channel.basic_ack(channel.basic_get(QUEUE).delivery_tag)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(30):
                assert found(None, client) == []
                assert repair(access_to(client, "redis_queue"), dry_run=False) == []
        finally:
            done.set()
            thread.join()

    def test_the_keys_of_the_broker_may_have_other_names(self, sound: RedisServer, client: redis.Redis) -> None:
        with app_on(sound, global_keyprefix="shop:", unacked_index_key="mine") as app:
            take(app)
            client.delete("shop:mine")
            [said] = found(app, client)
            assert "not in shop:mine" in said.found
            repair(AppAccess(app), dry_run=False)
            assert client.zcard("shop:mine") == 1
            assert found(app, client) == []

    def test_an_unreachable_broker_is_a_finding(self, app: Celery, sound: RedisServer, client: redis.Redis) -> None:
        app.conf.update(redis_queue_url=sound.url, broker_url="redis://user:secret@127.0.0.1:1/0")
        said = [*found(app, client), *repair(AppAccess(app), dry_run=False)]
        assert [row.found.partition(":")[0] for row in said] == ["could not be checked", "could not be repaired"]
        assert not any("secret" in row.found for row in said)


BARE = "workers without leases"


def report(client: redis.Redis, name: str, *, keeper: bool | None, lists: tuple[str, ...] = (QUEUE,)) -> None:
    """Report a worker, with leases unless *keeper* is None."""
    Reports(client, "redis_queue").write(WorkerRow(name, from_ms(0), from_ms(0), keeper=keeper, lists=lists))


def lease(client: redis.Redis, tag: str, seconds: float) -> None:
    """Let the lease of a message end so many seconds after the message was taken."""
    score = must(client.zscore("unacked_index", tag))
    client.zadd("redis_queue:lease_ends:unacked_index", {tag: score + seconds})


class TestBareWorkers:
    def test_messages_without_a_lease_beside_others_with_one(self, app: Celery, client: redis.Redis) -> None:
        [(_, one), (_, two), _] = take(app, 3)
        assert found(app, client, BARE) == []
        lease(client, one, 60)
        lease(client, two, -1)
        [said] = found(app, client, BARE)
        assert said.severity == "warning"
        assert said.found == (
            "workers without leases consume beside workers with leases; without a lease: 2 of 3 messages in flight. If "
            "they are killed, their tasks come back only by kombu's visibility timeout (1 h); tasks that run for "
            "longer than it run twice"
        )
        assert said.advice.endswith("an app with DurableTasks(app)")
        assert len(found(None, client, BARE)) == 1
        for tag in client.hkeys("unacked"):
            lease(client, tag.decode(), 60)
        assert found(app, client, BARE) == []

    @pytest.mark.parametrize(
        ("keepers", "lists", "names"),
        [
            ([True, None], (QUEUE,), "b@test"),
            ([True, *[None] * 7], (QUEUE,), "b@test, c@test, d@test, e@test, f@test and 2 more"),
            ([True, False], (QUEUE,), ""),
            ([None, None], (QUEUE,), ""),
            # Workers of another broker than the store.
            ([True, None], (), ""),
        ],
    )
    def test_idle_workers_are_known_by_their_reports(
        self, app: Celery, client: redis.Redis, keepers: list[bool | None], lists: tuple[str, ...], names: str
    ) -> None:
        for number, keeper in enumerate(keepers):
            report(client, f"{'abcdefgh'[number]}@test", keeper=keeper, lists=lists)
        texts = [row.found for row in found(app, client, BARE)]
        assert [text.partition(". If")[0].partition("leases: ")[2] for text in texts] == [names] * bool(names)

    def test_another_broker_than_redis_has_no_leases(
        self, app: Celery, client: redis.Redis, sound: RedisServer
    ) -> None:
        report(client, "a@test", keeper=True)
        report(client, "b@test", keeper=None)
        app.conf.update(redis_queue_url=sound.url, broker_url="amqp://127.0.0.1:1//")
        assert found(app, client, BARE) == []

    def test_an_unreachable_broker_is_a_finding(self, app: Celery, sound: RedisServer, client: redis.Redis) -> None:
        app.conf.update(redis_queue_url=sound.url, broker_url="redis://127.0.0.1:1/0")
        [said] = found(app, client, BARE)
        assert said.found.startswith("could not be checked: ")

    def test_workers_of_both_kinds(self, sound: RedisServer, client: redis.Redis) -> None:
        leasing = Leasing(sound, client, f"redis+socket://{sound.socket}")
        app = leasing.app()
        app.conf.control_exchange = "leasing-control"
        with leasing.busy("new", timeout=30.0):
            assert found(app, client, BARE, ask=True) == []
            with leasing.worker("old", leases=False, pool="threads") as old:
                old.wait_for_output("ready.")
                leasing.send(WAIT)
                leasing.wait_for_starts(2)
                wait_until(lambda: app.control.ping(timeout=0.5), description="an answer of the worker")
                [said] = found(app, client, BARE, ask=True)
                assert said.found.startswith("workers without leases consume beside workers with leases: old@")
                assert " (no report); without a lease: 1 of 2 messages in flight. If" in said.found
                leasing.end_task("old")
                leasing.end_task("new")
                leasing.wait_until_settled()


@pytest.mark.parametrize(
    ("celery_version", "kombu_version", "said"),
    [
        ("5.6.2", "5.7.0", ["Celery 5.6.2: a task of a chord that runs twice"]),
        ("5.7.0", "5.6.9", ["kombu 5.6.9: reply queues of clients that were killed"]),
        ("5.7.0", "5.7.1", []),
    ],
)
def test_versions_with_known_faults(
    app: Celery, monkeypatch: pytest.MonkeyPatch, celery_version: str, kombu_version: str, said: list[str]
) -> None:
    monkeypatch.setattr("celery.__version__", celery_version)
    monkeypatch.setattr("kombu.__version__", kombu_version)
    found = problems(AppAccess(app), "versions")
    assert [finding.severity for finding in found] == ["warning"] * len(said)
    assert all(finding.found.startswith(text) for finding, text in zip(found, said, strict=True))


def test_a_broker_without_commands_of_atomic_fetch() -> None:
    with RedisServer("--rename-command", "CLIENT", "") as server, app_on(server) as app:
        DurableTasks(app)
        (found,) = problems(AppAccess(app), "broker commands")
        assert found.found == "the broker: this Redis has no CLIENT, needed by atomic fetch"
