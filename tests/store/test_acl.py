"""The roles of docs/security.md: each works with exactly its rules, and loses nothing with fewer."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue, Lock, RedisQueue, StoreRefusedError, StoreUnavailableError
from redis_queue.celery import DispatchLoop, DurableTasks
from redis_queue.celery.leases.poison import DeliveryLimit
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.model import Push
from redis_queue.doctor.roles import ROLES, Role
from redis_queue.operate.audit import Audit
from redis_queue.store.script_files import all_scripts, load
from redis_queue.store.scripts import load_scripts, missing_scripts
from tests.support.acl import ACTION, ACTS, is_redis_6, rules_of, set_user
from tests.support.cluster import RedisCluster
from tests.support.paths import ROOT
from tests.support.recording import record_commands
from tests.support.servers import RedisServer
from tests.support.store.stage import snapshot
from tests.support.wait import wait_until

DOCUMENT = ROOT / "docs" / "security.md"
AUDIT = b"redis_queue:audit"

each_role = pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])

Limit = Callable[[str], redis.Redis]


def queues(client: redis.Redis) -> tuple[RedisQueue, DelayQueue]:
    return RedisQueue("work", client), DelayQueue("later", client)


def fill(client: redis.Redis) -> None:
    """Put entries into every state and load the scripts."""
    client.flushall()
    queue, delayed = queues(client)
    for number in range(6):
        queue.put(number)
        delayed.push(number, id=f"due-{number}")
    queue.put("later", delay=60)
    delayed.push("x", delay=60, id="far")
    for holder, take in ((queue, queue.get), (delayed, lambda: delayed.claim()[0])):
        message: Any = take()
        holder.nack(message, dead=True)
    assert queue.get() is not None
    load_scripts(client)


def orphans(client: redis.Redis) -> list[bytes]:
    """Return the ids of records that are in no state; an id in two states is allowed after a refused script."""
    found: list[bytes] = []
    for records in client.scan_iter("*}:records"):
        root = records.removesuffix(b"records").decode()
        places = [*client.lrange(f"{root}ready", 0, -1)]
        for name in ("waiting", "in_flight", "dead"):
            places += client.zrange(f"{root}{name}", 0, -1)
        found += [id_ for id_ in client.hkeys(records) if id_ not in places]
    return found


@each_role
def test_the_document_names_exactly_what_the_role_needs(role: Role) -> None:
    rows = re.findall(rf"^### {role.name}\n.*?```\n(.*?)\n```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert rows == [role.rules]


@each_role
def test_the_role_works_with_its_rules(role: Role, client: redis.Redis, limited: Limit) -> None:
    fill(client)
    ACTS[role.name](*queues(limited(role.rules)))
    assert orphans(client) == []


def test_the_roles_list_what_python_sends(client: redis.Redis, limited: Limit) -> None:
    sent: dict[str, set[str]] = {}
    for role in ROLES:
        fill(client)
        if not role.keys:
            client.script_flush()
        user = limited(role.rules)
        with record_commands(client) as commands:
            ACTS[role.name](*queues(user))
        # Of every connection.
        sent[role.name] = {*commands} - {"auth", "client|setinfo", "echo", "evalsha", "hello", "select"}
    listed = {role.name: {*role.commands.split()} for role in ROLES}
    assert {name: commands - listed[name] for name, commands in sent.items() if not commands <= listed[name]} == {}
    # A dispatcher that waits sends the others: see the test of its wake-up.
    assert set().union(*listed.values()) - set().union(*sent.values()) == {"ping", "subscribe"}


@each_role
def test_the_role_loses_nothing_with_any_command_less(role: Role, client: redis.Redis, limited: Limit) -> None:
    for command in role.allowed:
        fill(client)
        rules = " ".join(rule for rule in role.rules.split() if rule != f"+{command}")
        with suppress(StoreRefusedError):
            ACTS[role.name](*queues(limited(rules)))
        # An admin may leave the record of an entry that it deleted.
        assert role.name == "admin" or orphans(client) == [], command


@each_role
def test_the_role_needs_each_of_its_keys(role: Role, client: redis.Redis, limited: Limit) -> None:
    apart = {"~redis_queue:probe:*", "&{redis_queue:delay:*"}
    for pattern in {*role.keys} - apart:
        fill(client)
        rules = " ".join(rule for rule in role.rules.split() if rule != pattern)
        with pytest.raises(StoreRefusedError):
            ACTS[role.name](*queues(limited(rules)))


@each_role
def test_the_role_does_not_reach_other_keys(role: Role, client: redis.Redis, limited: Limit) -> None:
    fill(client)
    other = limited(role.rules)
    client.set("secret", "x")
    with pytest.raises(redis.exceptions.NoPermissionError):
        other.get("secret")
    with pytest.raises(redis.exceptions.NoPermissionError):
        other.execute_command("EVALSHA", load("queue/stats").sha, 1, "secret")
    with pytest.raises(StoreRefusedError):
        RedisQueue("work", other, prefix="another").stats()
    with pytest.raises(redis.exceptions.NoPermissionError):
        other.flushall()


def test_a_holder_can_access_only_locks(client: redis.Redis, limited: Limit) -> None:
    fill(client)
    holder = limited(rules_of("holder"))
    before = snapshot(client)
    for look in (RedisQueue("work", holder).stats, Lock("x", holder, prefix="another").acquire):
        with pytest.raises(StoreRefusedError):
            look()
    records = "{redis_queue:queue:work}:records"
    with pytest.raises(redis.exceptions.NoPermissionError):
        # A script that the role may run, on keys of a queue.
        holder.execute_command("EVALSHA", load("lock/release").sha, 2, records, records, "x")
    assert snapshot(client) == before


ENDLESS = "while true do end"


@each_role
def test_no_role_may_run_its_own_scripts(role: Role, client: redis.Redis, limited: Limit) -> None:
    fill(client)
    user = limited(role.rules)
    # Redis 6.2 does not know some commands; no version runs them.
    for command in (
        ("EVAL", ENDLESS, 0),
        ("EVAL_RO", ENDLESS, 0),
        ("FUNCTION", "LOAD", f"#!lua name=x\nredis.register_function('x', function() {ENDLESS} end)"),
        ("FCALL", "x", 0),
        ("SCRIPT", "FLUSH"),
    ):
        with pytest.raises(redis.ResponseError):
            user.execute_command(*command)
    if role.name == "loader":
        # The loader must not run scripts.
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.evalsha(user.script_load(ENDLESS), 0)
    else:
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.script_load(ENDLESS)
    assert client.ping()


def test_missing_scripts_raise_an_error_that_says_how_to_load_them(client: redis.Redis, limited: Limit) -> None:
    for role in ROLES:
        if not role.scripts:
            continue
        fill(client)
        client.script_flush()
        user = limited(role.rules)
        before = snapshot(client)
        with pytest.raises(StoreUnavailableError, match="run `redis-queue load-scripts`"):
            ACTS[role.name](*queues(user))
        assert snapshot(client) == before
        # The loader cannot read data.
        assert load_scripts(limited(rules_of("loader"))) == len(all_scripts())
        ACTS[role.name](*queues(limited(role.rules)))


def test_only_the_operator_can_change_the_audit_log(client: redis.Redis, limited: Limit) -> None:
    fill(client)
    Audit(client, "redis_queue").record(ACTION)
    before = client.dump(AUDIT)
    names = [role.name for role in ROLES if role.name != "operator"]
    # In Redis 6.2 a user with the roles dashboard and another one may write the audit log; docs/security.md says so.
    together = [name for name in names if name != "dashboard"] if is_redis_6(client) else names
    for roles in ([[name] for name in names], [together]):
        for some in roles:
            user = limited(" ".join(map(rules_of, some)))
            for command in (
                ("DEL", AUDIT),
                ("UNLINK", AUDIT),
                ("LTRIM", AUDIT, 1, 0),
                ("LPUSH", AUDIT, "{}"),
                ("RPUSH", AUDIT, "{}"),
                ("SET", AUDIT, "x"),
                ("EVALSHA", load("records/purge").sha, 8, *[AUDIT] * 8, 1),
            ):
                with pytest.raises(redis.ResponseError):
                    user.execute_command(*command)
    assert client.dump(AUDIT) == before


def test_in_a_cluster_the_scripts_are_loaded_into_every_node(
    cluster: RedisCluster, cluster_client: redis.RedisCluster
) -> None:
    (more,) = re.findall(r"In Redis Cluster each user needs `([^`]+)`", DOCUMENT.read_text())
    nodes = [server.client() for server in cluster.servers]
    for node in nodes:
        node.script_flush()
        for name in ("loader", "producer"):
            set_user(node, name, f"{rules_of(name)} {more}")

    def user(name: str) -> redis.RedisCluster:
        (host, port), *_ = cluster.nodes
        # A node announces a replica once the replica follows its primary.
        connected_client = wait_until(lambda: client_of_all_nodes(host, port, name), description="six nodes")
        assert isinstance(connected_client, redis.RedisCluster)
        return connected_client

    def client_of_all_nodes(host: str, port: int, name: str) -> redis.RedisCluster | None:
        found = redis.RedisCluster(host=host, port=port, username=name, password="pw")
        if len(found.get_nodes()) == len(nodes):
            return found
        found.close()
        return None

    loader, producer = user("loader"), user("producer")
    try:
        with pytest.raises(StoreUnavailableError, match="run `redis-queue load-scripts`"):
            DelayQueue("later", producer, shards=8).push("x")
        assert load_scripts(loader) == len(all_scripts())
        assert [missing_scripts(node) for node in nodes] == [[]] * len(nodes)
        DelayQueue("later", producer, shards=8).push_many([Push(number) for number in range(32)])
        assert DelayQueue("later", cluster_client, shards=8).count() == 32
    finally:
        for client in (loader, producer):
            client.close()
        for node in nodes:
            node.execute_command("ACL", "DELUSER", "loader", "producer")
            node.close()


AppOf = Callable[..., Celery]


@pytest.fixture
def app_of(redis_server: RedisServer, client: redis.Redis) -> Iterator[AppOf]:
    """Return an app whose store user has the rules of these roles; broker and store are one Redis."""
    apps: list[Celery] = []
    socket = redis_server.socket

    def make(*names: str, more: str = "", **settings: Any) -> Celery:
        user = "-".join(names)
        set_user(client, user, " ".join([*map(rules_of, names), more]))
        load_scripts(client)
        app = Celery("tests", broker=f"redis+socket://{socket}", set_as_current=False)
        app.conf.update(redis_queue_url=f"unix://{user}:pw@{socket}", **settings)
        DurableTasks(app, leases=False)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()
        client.execute_command("ACL", "DELUSER", StoredTasks.of(app).store.url.split("//")[1].split(":")[0])


def test_a_producer_can_send_and_change_the_tasks_of_an_app(app_of: AppOf) -> None:
    app = app_of("producer")
    delayed = DurableTasks(app, leases=False)
    results = [app.send_task("shop.remind", countdown=60) for _ in range(3)]
    many = delayed.send_many([app.signature("shop.remind") for _ in range(2)], countdown=60)
    assert delayed.get(results[0].id) is not None
    assert delayed.reschedule(results[0].id, countdown=90)
    assert delayed.run_now(results[0].id)
    assert delayed.cancel(results[1].id)
    results[2].revoke()
    assert [delayed.get(result.id) is None for result in (*results, *many)] == [False, True, True, False, False]


def test_a_producer_that_counts_needs_the_rules_of_the_dashboard(app_of: AppOf) -> None:
    producer = DurableTasks(app_of("producer"), leases=False)
    for look in (producer.count, lambda: list(producer.list()), producer.forecast):
        with pytest.raises(StoreRefusedError):
            look()
    combined = DurableTasks(app_of("producer", "dashboard"), leases=False)
    assert (combined.count(), list(combined.list()), sum(count for _, count in combined.forecast())) == (0, [], 0)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["broker and store are one", "another broker"])
def test_a_dispatcher_sends_a_task_after_a_wake_up(
    elsewhere: bool, app_of: AppOf, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of("dispatcher", more="~work*", redis_queue_dispatch_interval=60.0)
    if elsewhere:
        app.conf.broker_url += "?virtual_host=1"
    loop = DispatchLoop(app)
    (channel,) = StoredTasks.of(app).queue.moves.wake_channels()
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        wait_until(lambda: client.pubsub_numsub(channel) == [(channel, 1)], description="a listening dispatcher")
        app_of("producer").send_task("shop.remind", queue="work", countdown=0.05)
        wait_until(lambda: loop.total.sent == 1, description="the task to be sent")
    finally:
        loop.stop()
        thread.join()
        with app.connection_for_write() as connection:
            found = connection.default_channel.client.llen("work")
            connection.default_channel.queue_delete("work")
    assert found == 1
    assert caplog.messages == []


def test_a_worker_with_leases_needs_a_few_more_commands(app_of: AppOf) -> None:
    (more,) = re.findall(r"A worker with leases .*?needs\s+`([^`]+)`", DOCUMENT.read_text(), re.DOTALL)
    app = app_of("dispatcher", more=more)
    limit = DeliveryLimit(app)
    limit.add_start("task")
    assert len(limit.starts("task")) == 1
    limit.forget("task")
    assert limit.starts("task") == []
    StoredTasks.of(app).queue.foreign.bury(Push(b"x", id="task"), reason="its worker died", deliveries=5)
