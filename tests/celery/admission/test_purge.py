"""A purge of a queue deletes also what waits for a place, and leaves nothing of it behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue.admission import backlog as backlog_module
from redis_queue.admission.backlog import Backlog
from redis_queue.admission.owners import field_of
from redis_queue.basics.options import Conditions
from redis_queue.celery.queues.open import broker_queues, purge
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions.messages import remove
from redis_queue.operate.items import Messages
from redis_queue.operate.task_life import task_life
from redis_queue.store.chunks import MANY
from redis_queue.store.scripts import Scripts
from tests.support.actions import references_of
from tests.support.celery.brokers import Broker
from tests.support.celery.fetching import Taker, connected
from tests.support.celery.flow_names import WORK
from tests.support.celery.flows import KEYS, QUEUE, Fleet, counts, flow_app, taken, taking_flows
from tests.support.celery.uniques import app_of, outdate, owned, owners, send, taking, traces
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.store.stage import snapshot

OTHER = f"{QUEUE}-other"
"""Its name begins as that of the queue."""

LIMITED = {f"queue:{QUEUE}": {"limit": 1}}

OF_WAITING = [b"oldest", b"backlog", b"list", b"ring", b"open", b"timers", b"blocked", b"keys", b"signal", b"slot"]
"""Parts of keys of messages that wait, and of callers; the others are those of limits, and of what is in flight."""


@pytest.fixture
def app(server: RedisServer, client: redis.Redis) -> Iterator[Celery]:
    """An app with limits of queues, tasks and keys, a rate, and a task without a flow of its own."""
    flows: dict[str, Any] = {
        f"queue:{QUEUE}": {"fair": "{key}", "limit_each": 2},
        f"queue:{OTHER}": {"limit": 1},
        "work": {"rate": "1/h", "key": "{key}"},
        "slow": {"rate": "1/h"},
    }
    with flow_app(server, flows) as found:

        @found.task(name="slow", shared=False)  # type: ignore[untyped-decorator]
        def slow(key: str = "", number: int = 0) -> None:
            """Do nothing."""

        @found.task(name="plain", shared=False)  # type: ignore[untyped-decorator]
        def plain(key: str = "", number: int = 0) -> None:
            """Do nothing."""

        yield found


def fill(app: Celery, queue: str = QUEUE, keys: str = "abc") -> int:
    """Send messages of several tasks, keys and priorities; return their number."""
    calls = [(name, key, step) for name in ("work", "sync", "slow", "plain") for key in keys for step in (0, 0, 9)]
    # The place of this key is free while it waits for its rate.
    calls += [("work", "rated", 0)] * 2
    for number, (name, key, step) in enumerate(calls):
        app.tasks[name].apply_async((key, number), queue=queue, priority=step)
    return len(calls)


def of_flows(client: redis.Redis, *ignored: bytes) -> dict[bytes, Any]:
    """Return all keys of flows, except those whose parts are *ignored*."""
    rows = {key.partition(b"}:")[2]: value for key, value in snapshot(client).items() if key.startswith(b"{")}
    return {name: value for name, value in rows.items() if name.partition(b":")[0] not in ignored}


def members(client: redis.Redis, kind: str) -> list[bytes]:
    """Return the members of the sorted sets of one *kind*."""
    found: list[bytes] = []
    for key in client.scan_iter(f"{{redis_queue:flow}}:{kind}:*"):
        found += client.zrange(key, 0, -1)
    return found


def rings_of(groups: Collection[bytes]) -> set[bytes]:
    """Return the rings to which *groups* belong."""
    return {group.rsplit(b"\0", 2)[0] for group in groups}


def check(client: redis.Redis) -> dict[bytes, int]:
    """Check that all keys of flows agree with the lists; return the lengths of the lists by group."""
    root = b"{redis_queue:flow}:list:"
    groups = {key.removeprefix(root): client.llen(key) for key in client.scan_iter(f"{root.decode()}*")}
    backlog: Counter[bytes] = Counter()
    keys: dict[bytes, Counter[bytes]] = {}
    for group, length in groups.items():
        _, queue, task, of_task, of_queue = group.split(b"\0")
        for flow, key in ((b"queue:%b" % queue, of_queue), (task, of_task)):
            backlog.update({flow: length} if flow else {})
            if key:
                keys.setdefault(b"keys:%b" % flow, Counter()).update({key: length})
    assert {flow: int(count) for flow, count in client.hgetall(KEYS.backlog.decode()).items()} == backlog
    found = {name: value for name, value in of_flows(client).items() if name.startswith(b"keys:")}
    assert found == {name: sorted(counter.items(), key=lambda row: (row[1], row[0])) for name, counter in keys.items()}
    assert set(client.zrange(KEYS.oldest.decode(), 0, -1)) == groups.keys()
    rings = rings_of(groups)
    assert set(members(client, "ring")) <= groups.keys()
    assert set(members(client, "open")) <= rings
    assert {*members(client, "timers"), *members(client, "blocked")} <= groups.keys() | rings
    assert groups.keys() <= {*members(client, "ring"), *members(client, "timers"), *members(client, "blocked")}
    return groups


def of_queue(client: redis.Redis, queue: str = QUEUE) -> list[bytes]:
    return [group for group in check(client) if group.split(b"\0")[1] == queue.encode()]


def ready(app: Celery, queue: str = QUEUE) -> tuple[int | None, int]:
    """Return the counts of *queue* that its users see."""
    with broker_queues(app) as queues:
        (depth,) = queues.depths([queue])
    return depth.ready, depth.waiting_for_place


def purged(app: Celery, queue: str = QUEUE, limit: int = MANY) -> int:
    """Purge *queue*; return how many messages were deleted."""
    return sum(purge(app, queue, limit))


@pytest.mark.parametrize("paused", [(), (f"queue:{QUEUE}", "work")], ids=["running", "paused"])
def test_nothing_of_the_queue_is_left_and_others_are_untouched(
    app: Celery, server: RedisServer, client: redis.Redis, paused: tuple[str, ...]
) -> None:
    flow = StoredTasks.of(app).flow
    flow.declare(StoredTasks.of(app).settings.flows)
    with connected(server) as connection:
        taker = Taker(connection, [QUEUE, OTHER], 100, processes=100)
        fill(app)
        fill(app, OTHER)
        # Some run, and the others wait for a turn, for a place, or for a rate.
        assert taken(taker)
        taker.settle()
        fill(app)
        assert taken(taker)
        fill(app, keys="xyz")
        for name in paused:
            flow.pause(name)
        before, mine, in_use = check(client), set(of_queue(client)), of_flows(client, *OF_WAITING)
        others = {group: length for group, length in before.items() if group not in mine}
        waiting = sum(before.values()) - sum(others.values())
        assert others
        assert {b"held", b"running", b"rates"} <= in_use.keys()
        # It has groups of all tasks and priorities, in each place.
        assert {tuple(group.split(b"\0")[:3:2]) for group in mine} == {
            (step, task) for step in (b"0", b"9") for task in (b"work", b"sync", b"slow", b"")
        }
        if not paused:
            for kind in ("ring", "timers", "blocked"):
                assert mine.intersection(members(client, kind)), kind
            assert rings_of(mine).intersection(members(client, "timers"))
            assert rings_of(others).intersection(members(client, "blocked"))
        assert ready(app) == (waiting, waiting)

        assert purged(app) == waiting

        assert check(client) == others
        assert ready(app) == (0, 0)
        assert of_flows(client, *OF_WAITING) == in_use
        assert purged(app) == 0
        assert purged(app, OTHER) == sum(others.values())
        assert {name.partition(b":")[0] for name in of_flows(client)} & {*OF_WAITING} <= {b"signal", b"slot"}
        taker.settle()
        assert counts(client) == {}

        for name in paused:
            flow.resume(name)
        app.tasks["sync"].apply_async(("a", 1000))
        app.tasks["work"].apply_async(("new", 1001))
        assert sorted(taken(taker)) == [["a", 1000], ["new", 1001]]
        taker.settle()
        assert counts(client) == {}


def test_a_message_in_flight_keeps_its_place_until_its_end(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, LIMITED, processes=100) as (app, taker):
        for number in range(3):
            app.tasks["work"].apply_async(("a", number))
        assert taken(taker) == [["a", 0]]
        assert purged(app) == 2
        app.tasks["work"].apply_async(("a", 3))
        assert taken(taker) == [["a", 0]]
        assert counts(client) == {"running": {"queue:flows": 1}, "waiting": {"queue:flows": 1}, "held": 1}
        taker.settle()
        assert taken(taker) == [["a", 3]]
        taker.settle()
        assert counts(client) == check(client) == {}


class TestLimits:
    def test_no_more_than_the_limit_are_deleted(
        self, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backlog_module, "PURGED", 2)
        left = fill(app)
        client.lpush(QUEUE, *["plain"] * 3)
        # Those in the broker first.
        assert purged(app, limit=2) == 2
        assert (sum(check(client).values()), ready(app)) == (left, (left + 1, left))
        assert purged(app, limit=2) == 2
        left -= 1
        for limit in (1, 4, 7):
            assert purged(app, limit=limit) == limit
            left -= limit
            assert sum(check(client).values()) == left
            assert ready(app) == (left, left)
        assert purged(app) == left
        assert check(client) == {}

    def test_the_groups_of_a_queue_are_found_among_many(
        self, client: redis.Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backlog_module, "SCAN", 150)
        with flow_app(server) as app:
            for number in range(300):
                for queue in (QUEUE, OTHER):
                    app.tasks["sync"].apply_async((str(number),), queue=queue)
            batches = list(Backlog(Scripts(client), KEYS).purge(QUEUE, 250))
            assert (sum(batches), max(batches)) == (250, 50)
            assert purged(app) == 50
            assert (len(of_queue(client)), len(of_queue(client, OTHER))) == (0, 300)

    def test_a_call_deletes_few_messages(self, client: redis.Redis, server: RedisServer) -> None:
        with flow_app(server, LIMITED) as app:
            app.tasks["work"].apply_async()
            (key,) = client.scan_iter("{redis_queue:flow}:list:*")
            client.lpush(key, *["{}"] * 599)
            client.hset(KEYS.backlog.decode(), f"queue:{QUEUE}", 600)
            assert list(purge(app, QUEUE, MANY)) == [250, 250, 100]
            client.flushdb()
            for _ in range(4):
                app.tasks["work"].apply_async(("x" * 300_000,))
            assert list(purge(app, QUEUE, MANY)) == [2, 2]
            assert check(client) == {}

    def test_the_name_of_a_queue_is_no_pattern(self, client: redis.Redis, server: RedisServer) -> None:
        with flow_app(server) as app:
            app.conf.task_queues = [Queue(name) for name in ("a*", "ab", "[a]b", "a?")]
            for name in ("a*", "ab", "[a]b", "a?"):
                app.tasks["sync"].apply_async(("k",), queue=name)
            for name in ("a*", "a?", "[a]b"):
                assert purged(app, name) == 1
            assert (of_queue(client, "ab"), len(check(client))) == ([b"0\0ab\0sync\0shop:k\0"], 1)


class TestScript:
    def test_a_repeated_call_has_one_effect(self, client: redis.Redis, server: RedisServer) -> None:
        with flow_app(server) as app:
            for number in range(4):
                app.tasks["sync"].apply_async(("k", number))
            (group,) = check(client)
            script = Scripts(client).bind("admission/purge", KEYS, slot=KEYS.slot("caller"))
            # Those of other programs are left out.
            call = {
                "sequence": 1,
                "limit": 3,
                "more": [b"text", b"", b"", b"\0\0\0\0", b"", b"", *[group, b"", b""] * 2],
            }
            assert [script(now=0, **call) for _ in range(2)] == [b"3 2 0", b"3 2 0"]
            assert check(client) == {group: 1}
            assert script(now=0, **{**call, "sequence": 2}) == b"1 4 0"
            assert check(client) == {}

    def test_what_cannot_be_read_does_not_hide_the_list(self, client: redis.Redis, server: RedisServer) -> None:
        with flow_app(server) as app:
            client.set(KEYS.backlog.decode(), "of another program")
            client.lpush(QUEUE, "plain")
            assert purged(app) == 1


class TestUniqueTasks:
    @pytest.mark.parametrize("task", ["end", "start", "latest", "hourly", "single"])
    def test_the_key_is_free(self, server: RedisServer, client: redis.Redis, task: str) -> None:
        with app_of(server) as app, taking(server) as taker:
            first = send(app, task, 7, "a")
            assert send(app, task, 7, "b") == first
            assert purged(app) == 1 + (task == "latest")
            assert (owned(app), traces(client)) == ({}, [])
            assert send(app, task, 7, "c") != first
            assert taken(taker) == [[7, "c"]]

    def test_of_a_replaced_message_nothing_is_left(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            first = send(app, "latest", 7, "a")
            assert send(app, "latest", 7, "b") == first
            assert client.zcard(KEYS.replaced.decode()) == 1
            assert purged(app, limit=1) == 1
            assert not client.exists(KEYS.replaced)
            assert owned(app) == {("latest", "order:7"): "waiting"}
            assert taken(taker) == [[7, "b"]]
            taker.settle()
            assert traces(client) == []

    def test_what_is_being_sent_in_its_place_keeps_the_key(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            send(app, "latest", 7, "a")
            found = owners(app).acquire(field_of("latest", "order:7"), "ab", task_id="id", ttl_ms=60_000, replaces=True)
            assert found.replaces
            assert purged(app) == 1
            assert owned(app) == {("latest", "order:7"): "sending"}
            # Its sender died: the message that is gone does not own the key again.
            outdate(client, "latest", "order:7")
            assert owned(app) == {}
            send(app, "latest", 7, "b")
            assert taken(taker) == [[7, "b"]]

    def test_one_that_runs_keeps_its_key(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            first = send(app, "end", 7)
            assert taken(taker) == [[7]]
            send(app, "end", 8)
            assert purged(app) == 1
            assert owned(app) == {("end", "order:7"): "running"}
            assert send(app, "end", 7) == first
            taker.settle()
            assert traces(client) == []


def test_control_purges_the_queues_of_the_app(server: RedisServer, client: redis.Redis) -> None:
    for name in ("purge", "discard_all"):
        with flow_app(server) as app:
            app.conf.task_queues = [Queue(QUEUE), Queue("second")]
            for queue in (QUEUE, "second", "unknown"):
                app.tasks["sync"].apply_async(("k",), queue=Queue(queue))
                client.lpush(queue, "plain")
            assert getattr(app.control, name)() == 4
            assert list(check(client)) == [b"0\0unknown\0sync\0shop:k\0"]
            client.flushdb()


class TestProcesses:
    def test_the_command_deletes_what_waits_and_that_of_celery_does_not(
        self, stack: ExitStack, server: RedisServer, client: redis.Redis
    ) -> None:
        fleet = Fleet(server, client, LIMITED, stack=stack)

        def run(*arguments: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "celery", "-A", "tests.support.celery.flow_app", *arguments],
                cwd=ROOT,
                env={**os.environ, "BROKER_URL": fleet.url, "SETTINGS": json.dumps(fleet.all_settings)},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        fleet.start("a")
        with fleet.producer() as app:
            sent = [app.send_task(WORK, ("x",), {"hold": True}).id for _ in range(4)]
            fleet.wait_for("enter", 1)
            assert "No messages purged" in run("purge", "-f")
            assert run("redis-queue", "celery-queue", QUEUE, "purge", "--dry-run") == "3 to be deleted\n"
            assert run("redis-queue", "celery-queue", QUEUE, "purge", "--yes") == "3 deleted\n"
            last = app.send_task(WORK, ("x",)).id
        fleet.release()
        fleet.wait_for("leave", 2)
        assert fleet.entered() == [sent[0], last]
        fleet.wait_until_free()

    def test_a_worker_that_purges(self, stack: ExitStack, server: RedisServer, client: redis.Redis) -> None:
        fleet = Fleet(server, client, LIMITED, stack=stack)
        with fleet.producer() as app:
            for _ in range(3):
                app.send_task(WORK, ("x",))
            fleet.start("a", arguments=["--purge"])
            last = app.send_task(WORK, ("x",)).id
        fleet.wait_for("leave", 1)
        fleet.wait_until_free()
        assert fleet.entered() == [last]


def test_rabbitmq(server: RedisServer, client: redis.Redis, rabbitmq_url: str) -> None:
    with Broker(rabbitmq_url) as broker:
        name, other = broker.name("mail"), broker.name("other")
        flows = {f"queue:{name}": {"limit": 1}, f"queue:{other}": {"limit": 1}}
        with flow_app(server, flows, broker_url=rabbitmq_url, redis_queue_url=server.url) as app:
            app.conf.task_queues = [Queue(name), Queue(other)]
            with app.connection_for_write() as connection:
                producer = app.amqp.Producer(connection)
                for _ in range(2):
                    producer.publish("plain", routing_key=name, declare=app.conf.task_queues)
            for queue in (name, name, name, other):
                app.tasks["work"].apply_async(queue=queue)
            assert ready(app, name) == (5, 3)
            assert list(purge(app, name, 5)) == [2, 3]
            assert (ready(app, name), ready(app, other)) == ((0, 0), (1, 1))


class TestChosen:
    """Messages that wait for a place are found, and deleted by id, like those of a list."""

    @pytest.mark.parametrize("broker", ["redis", "amqp"])
    def test_are_found_and_deleted_alone(
        self, server: RedisServer, client: redis.Redis, rabbitmq_url: str, broker: str
    ) -> None:
        settings: dict[str, Any] = {"redis_queue_unique": {"work": {"key": "{key}"}}}
        if broker == "amqp":
            settings |= {"broker_url": rabbitmq_url, "redis_queue_url": f"unix://{server.socket}"}
        with flow_app(server, {f"queue:{QUEUE}": {"limit": 1, "fair": "{key}"}}, **settings) as app:
            access = AppAccess(app)
            kept = [app.tasks["sync"].delay(f"k{number}", number).id for number in range(3)]
            middle = [app.tasks["sync"].delay("k1", number).id for number in range(10, 14)]
            unique = app.tasks["work"].delay("u", 1).id
            found = list(Messages(access, QUEUE, Conditions()).all())
            assert {message.id for message in found} == {*kept, *middle, unique}
            assert {message.waits_for for message in found} == {"a place"}
            life = task_life(access, middle[1])
            assert (life.state, life.queue) == ("waiting", QUEUE)
            assert f"waits in {QUEUE} for a place" in [f"{event.what} {event.detail}" for event in life.events]
            chosen = [message for message in found if message.id in (middle[1], middle[2], unique)]
            done = list(remove(access, QUEUE, references_of(chosen)))
            assert sum(each.count for each in done) == 3
            left = [message.id for message in Messages(access, QUEUE, Conditions()).all()]
            assert sorted(left) == sorted([*kept, middle[0], middle[3]])
            # Its key is free.
            assert app.tasks["work"].delay("u", 2).id != unique
            list(remove(access, QUEUE, references_of(Messages(access, QUEUE, Conditions()).all())))
            assert counts(client) == {}
            assert client.zcard(KEYS.oldest) == 0

    @pytest.mark.parametrize("broker", ["redis", "amqp"])
    def test_are_moved_to_another_queue(
        self, server: RedisServer, client: redis.Redis, rabbitmq_url: str, broker: str
    ) -> None:
        settings: dict[str, Any] = {"redis_queue_unique": {"work": {"key": "{number}"}}}
        if broker == "amqp":
            settings |= {"broker_url": rabbitmq_url, "redis_queue_url": f"unix://{server.socket}"}
        with flow_app(server, {f"queue:{QUEUE}": {"fair": "{key}", "limit_each": 1}}, **settings) as app:
            access = AppAccess(app)
            for key in ("a", "b"):
                for number in range(3):
                    app.tasks["work"].delay(key, f"{key}{number}")
            large = app.tasks["sync"].delay("a", "x" * 300_000).id
            moving = Messages(access, f"queue:{QUEUE}", Conditions(), "a")
            done = list(remove(access, f"queue:{QUEUE}", references_of(moving.all()), OTHER, "a"))
            assert sum(each.count for each in done) == 4
            assert [len(list(messages.all())) for messages in (moving, Messages(access, QUEUE, Conditions()))] == [0, 3]
            moved = list(Messages(access, OTHER, Conditions()).all())
            found = [message for message in moved if message.task == "work"]
            assert [message.args for message in found] == [f"('a', 'a{number}')" for number in range(3)]
            assert {message.id for message in moved} == {large, *(message.id for message in found)}
            check(client)
            # Their unique keys are theirs, and there is no way back but another move.
            assert app.tasks["work"].delay("a", "a1").id == found[1].id
            assert [each.count for each in remove(access, OTHER, references_of(moved[:1]), OTHER)] == [0]
            with connected(server) as connection:
                taker = Taker(connection, [OTHER], 10, processes=10)
                assert [call[1] for call in taken(taker) if len(call[1]) == 2] == ["a0", "a1", "a2"]
                records = [json.loads(record) for record in client.hvals("unacked")]
                assert {record[2] for record in records} == {OTHER}
                assert {record[0]["properties"]["delivery_info"]["routing_key"] for record in records} == {OTHER}
                taker.settle()
            step = b"9" if broker == "amqp" else b"0"
            assert check(client) == {b"%b\0%b\0\0\0b" % (step, QUEUE.encode()): 3}
            assert owned(app) == {("work", f"b{number}"): "waiting" for number in range(3)}

    def test_a_repeated_move_has_one_effect(self, server: RedisServer, client: redis.Redis) -> None:
        with flow_app(server, LIMITED) as app:
            app.tasks["work"].delay("a", 1)
            (group,) = check(client)
            (element,) = client.lrange(f"{{redis_queue:flow}}:list:{group.decode()}", 0, -1)
            script = Scripts(client).bind("admission/remove", KEYS, slot=KEYS.slot("caller"))
            call: dict[str, Any] = {"source": group, "step": 0, "task": "", "of_task": "", "of_queue": ""}
            more = [0, len(element), element, "", b"moved"]
            flags = [script(now=0, sequence=1, queue=OTHER, **call, more=more) for _ in range(2)]
            assert (flags, check(client)) == ([b"1", b"1"], {f"0\0{OTHER}\0\0\0".encode(): 1})
