"""The counts of Celery's queues on each kind of broker: bounded, and never an error of the whole page."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

import pytest
import redis
from celery import Celery
from kombu.entity import Exchange, Queue

from redis_queue.basics.times import from_ms
from redis_queue.celery import DurableTasks
from redis_queue.celery.settings import CelerySettings
from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.monitor.model import WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import AppAccess
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.forecast import demand
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.queue_row import CeleryQueueRow
from redis_queue.store.keys import FlowKeys, MonitorKeys
from tests.support.celery.brokers import Broker
from tests.support.celery.flows import flow_app
from tests.support.clock import Clock
from tests.support.ports import HOST
from tests.support.servers import RedisServer
from tests.support.services import RabbitServer
from tests.support.wait import must, wait_until

MANY = 9_000


@pytest.fixture
def make_app(redis_server: RedisServer, client: redis.Redis) -> Iterator[Callable[..., Celery]]:
    """Make an app with broker and store in the shared Redis."""
    made: list[Celery] = []

    def make(**settings: Any) -> Celery:
        url = f"redis+socket://{redis_server.socket}"
        app = Celery("tests", set_as_current=False)
        app.conf.update({"broker_url": url, "redis_queue_url": redis_server.url, **settings})
        DurableTasks(app, leases=False)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def queues_of(app: Celery) -> CeleryQueues:
    return must(AppAccess(app).celery_queues)


def rows_of(app: Celery) -> dict[str, CeleryQueueRow]:
    return {row.name: row for row in queues_of(app).overview().rows}


def task() -> None:
    """Do nothing."""


def report(client: redis.Redis, name: str, *queues: str, **fields: Any) -> None:
    began = from_ms(0)
    Reports(client, "redis_queue").write(WorkerRow(name, began, began, queues=queues, **fields))


class TestOnRedis:
    def test_all_priorities_are_counted_and_the_age_is_that_of_the_oldest(
        self, make_app: Callable[..., Celery], client: redis.Redis
    ) -> None:
        app = make_app()
        for number in range(50):
            app.send_task("shop.mail", [number], queue="mail", priority=number % 10)
        for key in client.keys("mail*"):
            # The oldest message is at the right end.
            element = json.loads(client.lindex(key, -1) or b"")
            element["headers"]["redis_queue_sent"] -= 12_000
            client.lset(key, -1, json.dumps(element))
        row = rows_of(app)["mail"]
        assert (row.kind, row.ready, row.in_flight, row.consumers, row.error) == ("celery", 50, 0, 0, "")
        assert row.oldest_age is not None
        assert 12 <= row.oldest_age < 60
        assert row.is_unconsumed

    def test_queues_of_the_configuration_routes_bindings_and_workers_are_known(
        self, make_app: Callable[..., Celery], client: redis.Redis
    ) -> None:
        app = make_app(
            task_queues=[Queue("plain"), Queue("orders", Exchange("shop"), routing_key="order")],
            task_routes={"shop.route": {"queue": "by-route"}, "shop.broken": {"queue": object()}},
        )
        for name in ("shop.route", "shop.broken"):
            app.task(name=name, shared=False)(task)
        report(client, "one@test", "by-worker", "by-worker")
        client.sadd("_kombu.binding.bound", "key\x06\x16\x06\x16by-binding")
        before = set(app.amqp.queues)
        rows = rows_of(app)
        assert set(rows) == {"celery", "plain", "orders", "by-route", "by-worker", "by-binding"}
        assert rows["by-worker"].consumers == 1
        assert set(app.amqp.queues) == before

    def test_messages_in_flight_are_counted_for_each_queue(
        self, make_app: Callable[..., Celery], client: redis.Redis
    ) -> None:
        app = make_app(task_queues=[Queue("plain"), Queue("orders", Exchange("shop"), routing_key="order")])
        app.send_task("any", queue="plain")
        app.send_task("any", queue="orders")
        with app.connection_for_read() as connection:
            for name in ("plain", "orders"):
                assert app.amqp.queues[name](connection.default_channel).get() is not None
            rows = rows_of(app)
        assert {name: (row.ready, row.in_flight) for name, row in rows.items() if name != "celery"} == {
            "plain": (0, 1),
            "orders": (0, 1),
        }

    def test_of_many_messages_in_flight_only_the_number_is_read(
        self, make_app: Callable[..., Celery], client: redis.Redis
    ) -> None:
        app = make_app()
        client.hset("unacked", mapping={f"tag-{number}": "x" for number in range(2000)})
        overview = queues_of(app).overview()
        assert (overview.in_flight, overview.rows[0].in_flight) == (2000, None)
        report(client, "one@test", "celery", held={"celery": 7})
        assert queues_of(app).overview().rows[0].in_flight == 7

    @pytest.mark.parametrize(
        "damage",
        [
            lambda client: client.set("celery", "text"),
            lambda client: client.lpush("celery", b"\xff\x00not JSON"),
            lambda client: client.lpush("celery", '{"headers": {"redis_queue_sent": 99999999999999999999}}'),
            lambda client: client.lpush("celery", '{"headers": {"redis_queue_eta": "9999-99-99T00:00"}}'),
            lambda client: client.lpush("celery", "x" * 10_000_000),
            lambda client: client.hset("unacked", "tag", b'["\xff", "", "\xfe"]'),
            lambda client: client.set("_kombu.binding.odd", "text"),
            lambda client: client.sadd("_kombu.binding.odd", b"\xff", "", "\x06\x16\x06\x16line\nbreak", "x" * 500),
        ],
    )
    def test_records_of_other_programs_are_no_failure(
        self, make_app: Callable[..., Celery], client: redis.Redis, damage: Callable[[Any], object]
    ) -> None:
        app = make_app()
        app.send_task("any", queue="whole")
        damage(client)
        overview = queues_of(app).overview()
        rows = {row.name: row for row in overview.rows}
        assert overview.error == ""
        assert set(rows) == {"celery", "whole"}
        assert (rows["whole"].ready, rows["whole"].error) == (1, "")
        assert rows["celery"].oldest_age is None
        assert bool(rows["celery"].error) == (client.type("celery") == b"string")

    def test_an_unreadable_key_of_the_messages_in_flight_is_an_error_of_each_row(
        self, make_app: Callable[..., Celery], client: redis.Redis
    ) -> None:
        client.set("unacked", "text")
        overview = queues_of(make_app()).overview()
        assert [bool(row.error) for row in overview.rows] == [True]

    def test_a_page_of_many_queues_takes_few_commands(
        self, make_app: Callable[..., Celery], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The names are looked up each time.
        monkeypatch.setattr("redis_queue.operate.celery_queues.REMEMBERED_SECONDS", 0.0)
        pipe = client.pipeline(transaction=False)
        for number in range(MANY):
            pipe.lpush(f"q-{number:05}", "x")
            pipe.sadd(f"_kombu.binding.q-{number:05}", f"q-{number:05}\x06\x16\x06\x16q-{number:05}")
        pipe.execute()
        queues = queues_of(make_app())
        queues.overview(limit=50)
        client.config_resetstat()
        page = queues.overview("q-08", offset=950, limit=50)
        assert (page.queues, page.next, page.ready) == (1000, None, MANY)
        assert [row.name for row in page.rows] == [f"q-{number:05}" for number in range(8950, 9000)]
        scripts = {name: row["calls"] for name, row in client.info("commandstats").items()}
        assert scripts["cmdstat_evalsha"] < 40
        assert "cmdstat_smembers" not in scripts

    def test_orders(self, make_app: Callable[..., Celery], client: redis.Redis) -> None:
        """Problems first: what nobody reads, what grows while nothing ends, then by age, by size, and by name."""
        queues = queues_of(
            make_app(task_queues=[Queue(name) for name in ("a-idle", "b-full", "c-old", "d-grows", "z-unread")])
        )
        report(client, "one@host", "celery", "a-idle", "b-full", "c-old", "d-grows")
        sent = round(time.time() * 1000)
        for name, count, age in (("b-full", 9, 0), ("c-old", 1, 50_000), ("d-grows", 1, 0), ("z-unread", 1, 0)):
            for _ in range(count):
                client.lpush(name, json.dumps({"headers": {"redis_queue_sent": sent - age}, "body": ""}))
        queues.overview()
        # As if the look was ten seconds ago.
        queues._looks = {name: (at - 10, size) for name, (at, size) in queues._looks.items()}
        client.lpush("d-grows", json.dumps({"headers": {"redis_queue_sent": sent}, "body": ""}))
        found = queues.overview(order="problem")
        assert [row.name for row in found.rows] == ["z-unread", "d-grows", "c-old", "b-full", "a-idle", "celery"]
        assert [round(row.growth_per_minute or 0) for row in found.rows][:3] == [0, 6, 0]
        client.delete("b-full")
        growths = [row.growth_per_minute or 0 for row in queues.overview(order="growth").rows]
        # Less the time that this test has taken.
        assert 5 < growths[0] <= 6
        assert growths[5] == pytest.approx(-9 * growths[0], rel=0.01)
        client.lpush("b-full", *"xxxxxxxxx")
        for order, first in (("ready", "b-full"), ("oldest", "c-old"), ("growth", "d-grows"), ("name", "a-idle")):
            page = queues.overview(order=order, limit=1)
            assert [row.name for row in page.rows] == [first]
            # The overview of the dashboard shows the oldest message, whatever the order.
            assert max(page.counted, key=lambda row: row.waited).name == "c-old"
        pages = [queues.overview(order="problem", offset=offset, limit=2) for offset in (0, 2, 4)]
        assert [row.name for page in pages for row in page.rows] == [row.name for row in found.rows]
        assert [page.next for page in pages] == [2, 4, None]

    def test_an_order_reads_no_more_than_the_lengths_of_most_queues(
        self, make_app: Callable[..., Celery], client: redis.Redis
    ) -> None:
        """Of 305 queues, the busy one is first, and those without messages cost their length."""
        names = [f"q-{number:03}" for number in range(305)]
        queues = queues_of(make_app(task_queues=[Queue(name) for name in names]))
        client.lpush("q-299", "x")
        queues.overview(limit=50)
        lengths = []
        for order in ("name", "problem"):
            client.config_resetstat()
            page = queues.overview(limit=50, order=order)
            stats = client.info("commandstats")
            lengths.append(sum(stats.get(name, {"calls": 0})["calls"] for name in ("cmdstat_llen", "cmdstat_lindex")))
        assert page.rows[0].name == "q-299"
        assert len(page.rows) == 50
        assert lengths[1] <= lengths[0] + 5

    def test_without_a_broker_the_rows_of_known_queues_have_an_error(self, make_app: Callable[..., Celery]) -> None:
        app = make_app(broker_url="redis://user:secret@127.0.0.1:1/0", task_queues=[Queue("mail")])
        overview = queues_of(app).overview()
        assert [row.name for row in overview.rows] == ["celery", "mail"]
        assert all(row.ready is None and "cannot be read" in row.error for row in overview.rows)
        assert "secret" not in overview.error

    def test_an_unknown_name_gets_a_suggestion(self, make_app: Callable[..., Celery], client: redis.Redis) -> None:
        queues = queues_of(make_app(task_queues=[Queue("mail")]))
        assert queues.check("mail") == "mail"
        with pytest.raises(InvalidNameError, match=r"queue='mial': no such Celery queue; did you mean 'mail'\?"):
            queues.check("mial")
        with pytest.raises(InvalidNameError, match="must be 1 to 200 printable characters"):
            queues.check("a\nb")
        client.lpush("unlisted", "x")
        assert queues.check("unlisted") == "unlisted"


class TestWaitingForPlace:
    FLOWS: ClassVar = {"queue:mail": {"limit": 1, "fair": "{key}"}}

    def test_they_are_among_the_ready_messages(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with flow_app(redis_server, self.FLOWS) as app:
            for number in range(3):
                app.tasks["work"].apply_async((f"tenant {number}",), queue="mail")
            app.tasks["sync"].apply_async(("a",), queue="other")
            app.send_task("any", queue="plain")
            client.lpush("mail", "of another program")
            overview = queues_of(app).overview()
            rows = {row.name: row for row in overview.rows}
            assert (overview.ready, overview.in_flight) == (6, 0)
            assert {name: (row.ready, row.waiting_for_place, row.listed) for name, row in rows.items()} == {
                "flows": (0, 0, 0),
                "mail": (4, 3, 1),
                "other": (1, 1, 0),
                "plain": (1, 0, 1),
            }
            assert rows["other"].is_unconsumed
            assert demand(AppAccess(app), [("queue", "mail"), ("queue", "other")]).ready == 5

    def test_the_age_is_that_of_the_oldest(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with flow_app(redis_server, self.FLOWS) as app:
            for _ in range(2):
                app.tasks["work"].apply_async(("tenant",), queue="mail")
            [key] = client.keys("{redis_queue:flow}:list:*")
            element = json.loads(client.lindex(key, -1) or b"")
            element["headers"]["redis_queue_sent"] -= 12_000
            client.lset(key, -1, json.dumps(element))
            assert 12 <= must(rows_of(app)["mail"].oldest_age) < 60

    def test_a_store_elsewhere_has_none(self, make_app: Callable[..., Celery], client: redis.Redis) -> None:
        keys = FlowKeys("redis_queue")
        client.hset(keys.backlog.decode(), "queue:celery", "3")
        assert rows_of(make_app(redis_queue_prefix="other"))["celery"].ready == 0
        assert rows_of(make_app())["celery"].ready == 3

    @pytest.mark.parametrize(
        "damage",
        [
            lambda client, keys: client.set(keys.backlog, "text"),
            lambda client, keys: client.hset(keys.backlog, "queue:celery", "many"),
            lambda client, keys: client.zadd(keys.oldest, {b"\xff": 1, "": 2}) and client.hset(keys.backlog, "a", 1),
        ],
    )
    def test_records_of_other_programs_count_nothing(
        self, make_app: Callable[..., Celery], client: redis.Redis, damage: Callable[..., object]
    ) -> None:
        damage(client, FlowKeys("redis_queue"))
        overview = queues_of(make_app()).overview()
        assert (overview.error, overview.ready, rows_of(make_app())["celery"].ready) == ("", 0, 0)

    def test_a_user_without_permission_for_flows_counts_the_lists(
        self, make_app: Callable[..., Celery], client: redis.Redis, redis_server: RedisServer
    ) -> None:
        client.lpush("celery", "x")
        client.execute_command(
            "ACL", "SETUSER", "plain", "reset", "on", ">pw", "~celery*", "~unacked*", "~_kombu*", "+@all"
        )
        try:
            url = f"redis+socket://plain:pw@{redis_server.socket}"
            assert rows_of(make_app(broker_url=url))["celery"].ready == 1
        finally:
            client.execute_command("ACL", "DELUSER", "plain")


class TestOnRabbitMQ:
    @pytest.fixture
    def broker(self, rabbitmq_url: str) -> Iterator[Broker]:
        with Broker(rabbitmq_url) as broker:
            yield broker

    def test_the_broker_counts_messages_and_consumers(
        self, broker: Broker, redis_url: str, client: redis.Redis
    ) -> None:
        name, missing = broker.name("mail"), broker.name("missing")
        app = broker.app(redis_queue_url=redis_url, task_queues=[Queue(name), Queue(missing)])
        for _ in range(3):
            app.send_task("any", queue=name)
        wait_until(lambda: rows_of(app)[name].ready == 3, description="three messages")
        rows = rows_of(app)
        assert (rows[name].in_flight, rows[name].consumers, rows[name].oldest_age) == (None, 0, None)
        assert (rows[missing].ready, rows[missing].error) == (0, "")
        with app.connection_for_read() as connection:
            consumer = connection.Consumer([app.amqp.queues[name]], on_message=lambda _: None)
            with consumer, suppress(TimeoutError):
                wait_until(lambda: rows_of(app)[name].consumers == 1, description="the consumer")


class TestManagement:
    @pytest.fixture(scope="class")
    @staticmethod
    def rabbit() -> Iterator[RabbitServer]:
        """A RabbitMQ with the management API."""
        with RabbitServer(management=True) as server:
            yield server

    def test_it_tells_messages_in_flight_and_rates(self, rabbit: RabbitServer, redis_url: str) -> None:
        with Broker(rabbit.url) as broker:
            name = broker.name("mail")
            url = f"http://guest:guest@{HOST}:{rabbit.management_port}/"
            app = broker.app(redis_queue_url=redis_url, redis_queue_management_url=url, task_queues=[Queue(name)])
            for _ in range(3):
                app.send_task("any", queue=name)
            with app.connection_for_read() as connection:
                assert app.amqp.queues[name](connection.default_channel).get() is not None
                # The API lags by some seconds.
                row = wait_until(
                    lambda: next((row for row in rows_of(app).values() if row.in_flight), None),
                    timeout=60,
                    description="a message in flight",
                )
            assert (row.ready, row.in_flight, row.consumers) == (2, 1, 0)
            assert row.put_per_minute is not None
            overview = queues_of(app).overview()
            assert overview.ready is not None

    @pytest.mark.parametrize("login", ["guest:wrong@", ""])
    def test_without_its_answer_the_counts_of_the_broker_remain(
        self, rabbit: RabbitServer, redis_url: str, login: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        port = rabbit.management_port if login else 1
        with Broker(rabbit.url) as broker:
            name = broker.name("mail")
            url = f"http://{login}{HOST}:{port}"
            app = broker.app(redis_queue_url=redis_url, redis_queue_management_url=url, task_queues=[Queue(name)])
            app.send_task("any", queue=name)
            row = wait_until(
                lambda: next((row for row in rows_of(app).values() if row.ready), None), description="the message"
            )
        assert (row.in_flight, row.put_per_minute, row.error) == (None, None, "")
        assert "the management API cannot be read" in caplog.text
        assert "wrong" not in caplog.text

    @pytest.mark.parametrize("url", ["amqp://host", "http://", "host:15672", 7, "http://host:99999", "http://a b\n"])
    def test_an_invalid_url_is_refused_without_its_password(
        self, make_app: Callable[..., Celery], client: redis.Redis, url: object
    ) -> None:
        app = make_app()
        app.conf.redis_queue_management_url = url
        with pytest.raises(ConfigurationError, match="management_url: must be like http://user:password@host:15672"):
            CelerySettings.of(app)


def test_the_growth_of_a_queue_tells_what_was_put(
    make_app: Callable[..., Celery], client: redis.Redis, clock: Clock
) -> None:
    app = make_app(task_queues=[Queue("mail")])
    queues = CeleryQueues(app, Inspector(client, clock=clock))
    Reports(client, "redis_queue", clock).write(WorkerRow("one@test", from_ms(0), from_ms(0), queues=("mail",)))
    assert queues.row("mail").put_per_minute is None
    client.lpush("mail", *["x"] * 20)
    clock.forward(1)
    assert queues.row("mail").put_per_minute is None
    clock.forward(9)
    assert queues.row("mail").put_per_minute == pytest.approx(120)
    client.delete("mail")
    assert queues.row("mail").put_per_minute == 0


class TestOnOtherBrokers:
    def test_nothing_is_known(self, make_app: Callable[..., Celery]) -> None:
        row = rows_of(make_app(broker_url="memory://"))["celery"]
        assert (row.ready, row.in_flight, row.consumers, row.error) == (None, None, 0, "")


def test_consumers_are_unknown_if_reports_cannot_be_read(make_app: Callable[..., Celery], client: redis.Redis) -> None:
    client.lpush("mail", "x")
    client.set(MonitorKeys("redis_queue").workers, "something else")
    row = queues_of(make_app()).row("mail")
    assert (row.ready, row.consumers, row.is_unconsumed) == (1, None, False)
