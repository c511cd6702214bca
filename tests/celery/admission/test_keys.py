"""Single keys of a flow: pauses and limits of their own, what waits of them, and what it costs."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.admission import flow_keys
from redis_queue.admission.declarations import Declarations
from redis_queue.admission.flows import Flows
from redis_queue.admission.rules import Flow
from redis_queue.basics.options import Conditions
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import InvalidValueError
from redis_queue.operate.access import AppAccess
from redis_queue.operate.flow_keys import Keys, key_rows
from redis_queue.operate.items import Messages
from redis_queue.store.scripts import Scripts
from tests.support.celery.flow_names import WORK
from tests.support.celery.flows import KEYS, QUEUE, Fleet, counts, flow_app, taken, taking_flows
from tests.support.recording import commands_run
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

FLOW = f"queue:{QUEUE}"
FAIR = {FLOW: {"fair": "{key}"}}
KEYED = {"work": {"key": "{key}", "limit": 10}}


def send(app: Celery, *keys: str, task: str = "work") -> None:
    for number, key in enumerate(keys):
        app.tasks[task].delay(key, number)


@pytest.fixture
def flows(client: redis.Redis) -> Flows:
    """A flow with keys, as declared by an app."""
    found = Flows(client, "redis_queue")
    found.declare({FLOW: Flow(fair="{key}", limit_each=2, rate_each="100/s")})
    return found


class TestPause:
    @pytest.mark.parametrize(("flow", "settings"), [(FLOW, FAIR), ("work", KEYED)], ids=["fair", "keyed"])
    def test_only_the_paused_key_waits(
        self, server: RedisServer, client: redis.Redis, flow: str, settings: dict[str, Any]
    ) -> None:
        with taking_flows(server, settings, processes=100) as (app, taker):
            flows = StoredTasks.of(app).flow
            flows.pause(flow, key="b")
            send(app, "a", "b", "b", "c")
            assert sorted(key for key, _ in taken(taker)) == ["a", "c"]
            taker.settle()
            # It survives what workers do when they start, a change of the flow, and a reset of its limits.
            flows.declare(StoredTasks.of(app).settings.flows)
            Declarations(Scripts(client), KEYS).write("shop", StoredTasks.of(app).settings.flows)
            flows.set(flow, limit=50)
            flows.reset(flow)
            flows.reset(flow, key="b")
            send(app, "a", "b")
            assert [key for key, _ in taken(taker)] == ["a"]
            assert flows.key(flow, "b").waiting == 3
            taker.settle()
            flows.resume(flow, key="b")
            assert [key for key, _ in taken(taker)] == ["b"] * 3
            taker.settle()
            assert counts(client) == {}
            assert not client.exists(KEYS.rules(flow))

    def test_what_runs_goes_on_and_what_is_given_back_waits(self, server: RedisServer) -> None:
        with taking_flows(server, FAIR, processes=100) as (app, taker):
            send(app, "b", "a")
            assert len(taken(taker)) == 2
            StoredTasks.of(app).flow.pause(FLOW, key="b")
            assert StoredTasks.of(app).flow.key(FLOW, "b").running == 1
            next(message for message in taker.messages if b'"b"' in bytes(str(message.body), "utf-8")).reject(
                requeue=True
            )
            taker.messages.clear()
            assert taken(taker) == []
            StoredTasks.of(app).flow.resume(FLOW, key="b")
            assert taken(taker) == [["b", 0]]

    def test_a_resume_wakes_a_worker(self, server: RedisServer) -> None:
        with taking_flows(server, FAIR) as (app, taker):
            StoredTasks.of(app).flow.pause(FLOW, key="b")
            send(app, "b")
            assert taken(taker) == []
            taker.channel._fetch.look_at = float("inf")  # type: ignore[union-attr]
            StoredTasks.of(app).flow.resume(FLOW, key="b")
            taker.take(1)

    def test_it_outlives_workers(self, server: RedisServer, client: redis.Redis) -> None:
        fleet = Fleet(server, client, FAIR)
        with fleet.stack, fleet.producer() as app:
            flows = StoredTasks.of(app).flow
            flows.declare({FLOW: Flow(**FAIR[FLOW])})  # type: ignore[arg-type]
            flows.pause(FLOW, key="b")
            stopped = app.send_task(WORK, kwargs={"key": "b"}).id
            for name in ("a", "b"):
                with fleet.worker(name).ready():
                    other = app.send_task(WORK, kwargs={"key": "a"}).id
                    wait_until(lambda: other in fleet.entered(), timeout=20, description="the other key to run")  # noqa: B023
            assert stopped not in fleet.entered()
            fleet.start("c")
            flows.resume(FLOW, key="b")
            wait_until(lambda: stopped in fleet.entered(), timeout=20, description="the resumed key to run")
            fleet.wait_until_free()


class TestLimits:
    def test_they_have_precedence_over_those_of_every_key(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, {FLOW: {"fair": "{key}", "limit_each": 2}}, processes=100) as (app, taker):
            flows = StoredTasks.of(app).flow
            flows.declare(StoredTasks.of(app).settings.flows)
            for key, limit in (("one", 1), ("many", None), ("none", 0)):
                flows.set(FLOW, key=key, limit=limit)
            send(app, *(key for key in ("one", "two", "many", "none") for _ in range(4)))
            ran = [key for key, _ in taken(taker)]
            assert {key: ran.count(key) for key in ("one", "two", "many", "none")} == {
                "one": 1,
                "two": 2,
                "many": 4,
                "none": 0,
            }
            # A change of one lets what waits start, and nothing else.
            flows.set(FLOW, key="none", limit=3)
            flows.reset(FLOW, key="one")
            assert sorted(key for key, _ in taken(taker)[len(ran) :]) == ["none"] * 3 + ["one"]
            taker.settle()
            assert flows.key(FLOW, "one").own == {}

    def test_a_rate_of_a_key(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, FAIR, processes=100) as (app, taker):
            flows = StoredTasks.of(app).flow
            flows.declare(StoredTasks.of(app).settings.flows)
            flows.set(FLOW, key="slow", rate="2/h", burst=2)
            send(app, *["slow", "fast"] * 5)
            ran = [key for key, _ in taken(taker)]
            assert (ran.count("slow"), ran.count("fast")) == (2, 5)
            flows.set(FLOW, key="slow", rate=None)
            assert [key for key, _ in taken(taker)[7:]] == ["slow"] * 3
            flows.set(FLOW, key="slow", rate="1/h")
            flows.reset(FLOW, key="slow")
            assert client.zcard(KEYS.rates) == 0

    def test_they_are_known_by_name(self, flows: Flows) -> None:
        flows.set(FLOW, key="a", limit=5, rate="2/s", burst=3)
        flows.pause(FLOW, key="a")
        assert flows.key(FLOW, "a").own == {"limit": 5, "rate_ms": 500.0, "burst": 3}
        flows.set(FLOW, key="a", rate=None)
        flows.set(FLOW, key="a", limit=None)
        found = flows.key(FLOW, "a")
        assert (found.own, found.paused) == ({"limit": None, "rate_ms": None, "burst": None}, True)
        flows.resume(FLOW, key="a")
        assert flows.reset(FLOW, key="a").limits == flows.find(FLOW).limits
        assert flows.key(FLOW, "a") == flow_keys.KeyState("a", 0, 0)

    @pytest.mark.parametrize(
        ("place", "given", "text"),
        [
            ((FLOW, "a"), {"limit_each": 1}, "of one key, use limit= and rate="),
            ((FLOW, "a"), {"limit": -1}, "limit=-1: must be"),
            ((FLOW, "a"), {"rate": "often"}, "rate='often': must be"),
            ((FLOW, ""), {"limit": 1}, "key='': 0 bytes: must be 1 to 255"),
            ((FLOW, "x" * 256), {"limit": 1}, "must be 1 to 255"),
            ((FLOW, "a\0b"), {"limit": 1}, "must not have control characters"),
            (("plain", "a"), {"limit": 1}, "key='a': plain has no keys"),
            (("nosuch", "a"), {"limit": 1}, "unknown flow 'nosuch'"),
        ],
    )
    def test_wrong_values_change_nothing(
        self, flows: Flows, client: redis.Redis, place: tuple[str, str], given: dict[str, Any], text: str
    ) -> None:
        flows.declare({"plain": Flow(limit=1)})
        with pytest.raises(InvalidValueError, match=text.replace("(", "\\(")):
            flows.set(place[0], key=place[1], **given)
        assert not list(client.scan_iter("*rules*"))

    def test_there_are_at_most_a_thousand(
        self, flows: Flows, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flow_keys, "MAX_SET", 3)
        for number in range(3):
            flows.pause(FLOW, key=f"k{number}")
        with pytest.raises(InvalidValueError, match=r"key='k3': 3 keys of queue:flows are paused or have limits"):
            flows.pause(FLOW, key="k3")
        # Those that are set can be changed, and make room.
        flows.set(FLOW, key="k0", limit=1)
        flows.resume(FLOW, key="k1")
        flows.pause(FLOW, key="k3")
        assert flows.of_keys.changed(FLOW) == ["k0", "k2", "k3"]

    @pytest.mark.parametrize("raw", [b"text", b"\xff", b"5", b"- - -", b"x y z 0", b"9" * 5000, b"1e999 = = 0 more"])
    def test_what_another_program_or_version_wrote_is_ignored(
        self, server: RedisServer, client: redis.Redis, raw: bytes
    ) -> None:
        with taking_flows(server, FAIR, processes=100) as (app, taker):
            client.hset(KEYS.rules(FLOW).decode(), "a", raw)
            send(app, "a")
            assert len(taken(taker)) == 1
            flows = StoredTasks.of(app).flow
            assert flows.key(FLOW, "a").paused is False
            flows.pause(FLOW, key="a")
            assert flows.key(FLOW, "a").paused is True

    def test_a_hash_of_another_type_stops_nothing(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, FAIR, processes=100) as (app, taker):
            client.set(KEYS.rules(FLOW), "text")
            send(app, "a")
            assert len(taken(taker)) == 1

    def test_a_flow_with_something_set_is_kept(self, flows: Flows, client: redis.Redis) -> None:
        declarations = Declarations(Scripts(client), KEYS)
        declarations.write("shop", {FLOW: Flow(fair="{key}")})
        flows.pause(FLOW, key="a")
        declarations.write("shop", {})
        assert flows.get(FLOW)
        flows.resume(FLOW, key="a")
        declarations.write("shop", {"other": Flow(limit=1)})
        declarations.write("shop", {})
        assert flows.get(FLOW) is None


class TestCost:
    def test_of_an_admission_it_is_the_same_however_many_are_set(
        self, server: RedisServer, client: redis.Redis
    ) -> None:
        with taking_flows(server, FAIR, processes=100) as (app, taker):
            spent = []
            for number in (1, 1000):
                rules = {f"set{each}": "5 = = 0" for each in range(number)}
                client.hset(KEYS.rules(FLOW).decode(), mapping=rules)
                send(app, *"abcdefgh")
                before = commands_run(client)
                assert len(taken(taker)) == 8
                spent.append(commands_run(client) - before)
                taker.settle()
            # Besides what an idle consumer asks meanwhile.
            assert spent[1] < spent[0] + 100

    def test_of_paused_keys_others_pay_nothing(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, FAIR, processes=1) as (app, taker):
            flows, names = StoredTasks.of(app).flow, [f"key{number}" for number in range(400)]
            flows.declare(StoredTasks.of(app).settings.flows)
            for name in names:
                client.hset(KEYS.rules(FLOW).decode(), name, "= = = 1")
            send(app, *names)
            assert taken(taker) == []
            spent = []
            for _ in range(4):
                before = commands_run(client)
                send(app, "free")
                assert taken(taker) == [["free", 0]]
                spent.append(commands_run(client) - before)
                taker.settle()
            # Besides what an idle consumer asks meanwhile: the more, the slower the machine is.
            assert min(spent) < 150


class TestListing:
    @pytest.fixture
    def access(self, server: RedisServer, flows: Flows) -> Iterator[AppAccess]:
        """An app with the keys k0 to k9 with as many messages, "runs", which runs, and "set", which is paused."""
        with flow_app(server, {FLOW: {"fair": "{key}", "limit_each": 2}}) as app:
            send(app, *(f"k{number}" for number in range(10) for _ in range(number)))
            StoredTasks.of(app).flow.pause(FLOW, key="set")
            yield AppAccess(app)

    def names(self, access: AppAccess, *, size: int = 50, **options: Any) -> list[str]:
        """Return all keys that are listed, page by page."""
        found, cursor = list[str](), None
        for _ in range(50):
            page = Keys(access, FLOW, **options).page(cursor, size)
            found += [state.key for state in page.items]
            cursor = page.next
            if cursor is None:
                return found
        pytest.fail("no end")

    @pytest.mark.parametrize("size", [1, 3, 50])
    def test_pages_cover_each_key_once(self, access: AppAccess, client: redis.Redis, size: int) -> None:
        client.hset(KEYS.running.decode(), mapping={f"{FLOW}\0runs": 1, f"{FLOW}\0k3": 1, "other\0x": 1})
        most = [f"k{number}" for number in range(9, 0, -1)]
        assert self.names(access, size=size) == [*most, "runs", "set"]
        assert self.names(access, size=size, changed=True) == ["set"]
        assert self.names(access, size=size, part="s") == ["runs", "set"]
        # The key itself comes first, and once.
        client.zadd(KEYS.keys(FLOW), {"k11": 99, "xk1": 5})
        assert self.names(access, size=size, part="k1") == ["k1", "k11", "xk1"]
        assert self.names(access, part="nosuch") == []

    def test_the_oldest_message_of_each_key(self, access: AppAccess, client: redis.Redis) -> None:
        send(access.app, "k2", task="sync")
        states = Keys(access, FLOW).page(None, 50).items
        rows = {row.state.key: row.since for row in key_rows(access, FLOW, states)}
        assert {key for key, since in rows.items() if since is None} == {"k2", "set"}
        now = access.inspector.now()
        assert all(0 <= (now - since).total_seconds() < 60 for since in rows.values() if since)
        # Of "k2", one message has another key in the flow of its task, and may be older than the others.
        send(access.app, "shop")
        of_task = key_rows(access, "sync", access.flows.of_keys.states("sync", ["shop:k2"]))
        assert of_task[0].since is None
        # Another program may name any time.
        for group in client.scan_iter("*:list:*"):
            client.lset(group, -1, b'"redis_queue_sent": 999999999999999')
        assert {row.since.year for row in key_rows(access, FLOW, states) if row.since} == {9999}

    def test_with_many_keys_a_page_costs_no_more_than_its_rows(self, access: AppAccess, client: redis.Redis) -> None:
        counted = {}
        for many in (0, 100_000):
            for first in range(0, many, 10_000):
                client.zadd(
                    KEYS.keys(FLOW), {f"tenant{number}": number + 20 for number in range(first, first + 10_000)}
                )
            for name, options in {"most": {}, "exact": {"part": "k5"}, "rare": {"part": "zzz"}}.items():
                before = commands_run(client)
                page = Keys(access, FLOW, **options).page(None, 20)  # type: ignore[arg-type]
                key_rows(access, FLOW, page.items)
                counted[name, many] = (commands_run(client) - before, page.looked)
                if name == "exact":
                    assert page.items[0].key == "k5"
        assert max(looked for _, looked in counted.values()) <= 1100
        assert max(spent for spent, _ in counted.values()) < 60


def test_groups_are_found_by_whole_keys(server: RedisServer, client: redis.Redis) -> None:
    with flow_app(server, {FLOW: {"fair": "{key}"}, "work": {"key": "{number}", "limit": 1}}) as app:
        for key, number in itertools.product(("a", "aa", "a*", "[a]", "x"), (1, 2)):
            app.tasks["work"].delay(key, number)
        access = AppAccess(app)
        for key in ("a", "aa", "a*", "[a]"):
            found = list(Messages(access, FLOW, Conditions(), key).all())
            assert sorted(message.args for message in found) == [f"('{key}', 1)", f"('{key}', 2)"]
        assert len(list(Messages(access, "work", Conditions(), "1").all())) == 5
        assert list(Messages(access, FLOW, Conditions(), "1").all()) == []
