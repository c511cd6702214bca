"""Messages that wait in Celery's queues on Redis: look, search, delete, move, purge; only those that were chosen."""

from __future__ import annotations

import json
import pickle
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue.basics.options import Conditions
from redis_queue.celery import DurableTasks
from redis_queue.celery.message.destinations import ForbiddenDestinationError
from redis_queue.celery.queues.contents import REACH, QueueContents
from redis_queue.celery.queues.message import Element, WaitingMessage
from redis_queue.celery.queues.open import purge, queue_contents
from redis_queue.errors import ConfigurationError, InvalidNameError, InvalidValueError, StoreError, WrongTypeError
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions.messages import check_target, remove
from redis_queue.operate.items import Messages
from redis_queue.operate.listing import LOOK_BYTES, Selection
from tests.support.actions import references_of
from tests.support.celery.brokers import Broker
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import must

STEP_3 = "mail\x06\x163"


@pytest.fixture
def app(app: Celery) -> Celery:
    """The app, with the queues "mail" and "slow"."""
    app.conf.task_queues = [Queue("mail"), Queue("slow")]
    DurableTasks(app, leases=False)
    return app


@pytest.fixture
def access(app: Celery) -> AppAccess:
    return AppAccess(app)


Send = Callable[..., str]


@pytest.fixture
def send(app: Celery) -> Send:
    def send(number: int, task: str = "shop.mail", **options: Any) -> str:
        options = {"queue": "mail", "task_id": f"task-{number}", **options}
        return str(app.send_task(task, [number], {"name": f"n{number}"}, **options).id)

    return send


def look(access: AppAccess, limit: int = 500, **conditions: Any) -> list[WaitingMessage]:
    return list(Messages(access, "mail", Conditions(**conditions)).page(None, limit).items)


def ids(client: redis.Redis, key: str) -> list[str]:
    """Return the ids of the messages in a list, the next one first."""
    return [json.loads(element)["headers"]["id"] for element in reversed(client.lrange(key, 0, -1))]


def done(access: AppAccess, references: list[str], target: str | None = None) -> int:
    return sum(batch.count for batch in remove(access, "mail", references, target))


def lose_a_reply(contents: QueueContents, monkeypatch: pytest.MonkeyPatch, part: bytes = b"") -> list[object]:
    """Lose the reply of the first command that has *part*; return the command once that has happened."""
    link = contents._scripts._link
    send, lost = link.send, list[object]()

    def lose(*command: Any) -> Any:
        reply = send(*command)
        if not lost and any(isinstance(word, bytes) and part in word for word in command):
            lost.append(command)
            raise redis.ConnectionError("reply lost")
        return reply

    monkeypatch.setattr(link, "send", lose)
    return lost


class TestLook:
    def test_messages_come_in_the_order_of_workers_with_what_they_tell(
        self, access: AppAccess, send: Send, client: redis.Redis
    ) -> None:
        for number, priority in enumerate((5, 0, 0, 9)):
            send(number, priority=priority)
        found = look(access)
        assert [message.id for message in found] == ["task-1", "task-2", "task-0", "task-3"]
        assert [message.element.step for message in found] == [0, 0, 3, 9]
        first = found[0]
        assert (first.task, first.args, first.kwargs) == ("shop.mail", "[1]", "{'name': 'n1'}")
        assert first.since is not None
        assert abs(first.since.timestamp() - time.time()) < 60
        assert first.element.size == len(client.lindex("mail", -1) or b"")

    def test_pages_continue_where_they_ended(self, access: AppAccess, send: Send) -> None:
        for number in range(7):
            send(number, priority=3 * (number % 2))
        seen: list[str] = []
        cursor: tuple[int, int] | None = (0, 0)
        while cursor is not None:
            found = Messages(access, "mail", Conditions()).page(cursor, 3)
            assert len(found.items) <= 3
            seen += [message.id for message in found.items]
            cursor = found.next
        assert seen == [f"task-{number}" for number in (0, 2, 4, 6, 1, 3, 5)]

    @pytest.mark.parametrize(
        ("conditions", "expected"),
        [
            ({"task_part": "remind"}, ["task-1"]),
            ({"task": "shop.remind"}, ["task-1"]),
            ({"task": "remind"}, []),
            ({"id_prefix": "task-2"}, ["task-2"]),
            ({"text": "n0"}, ["task-0"]),
            ({"text": "n0", "task_part": "remind"}, []),
        ],
    )
    def test_search(self, access: AppAccess, send: Send, conditions: dict[str, str], expected: list[str]) -> None:
        for number, task in enumerate(("shop.mail", "shop.remind", "shop.mail")):
            send(number, task)
        assert [message.id for message in look(access, **conditions)] == expected

    def test_a_page_reads_a_bounded_number_of_messages_and_bytes(self, access: AppAccess, client: redis.Redis) -> None:
        client.lpush("mail", *["x"] * 3000)
        found = Messages(access, "mail", Conditions(task_part="never")).page(None, 50)
        assert (found.looked, found.next) == (1000, (0, 1000))
        client.delete("mail")
        client.lpush("mail", *["x" * 1_000_000] * 30)
        found = Messages(access, "mail", Conditions(task_part="never")).page(None, 50)
        assert found.next is not None
        assert 8 <= found.looked <= 18

    def test_the_search_for_an_action_reads_a_bounded_number_of_bytes(
        self, access: AppAccess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redis_queue.operate.listing.MAX_BYTES_TO_ACT", 8 * LOOK_BYTES)
        client.lpush("mail", *["x" * 60_000] * 600)
        messages = Messages(access, "mail", Conditions(task_part="never"))
        assert messages.gather(10_000, lambda found: found) == Selection([], True, messages.report)
        # Two pages of 8 MiB.
        assert 200 < messages.report.looked < 400

    def test_nothing_beyond_the_reach_is_read(self, access: AppAccess, client: redis.Redis) -> None:
        client.lpush("mail", *["x"] * (REACH + 5))
        messages = Messages(access, "mail", Conditions(task_part="never"))
        assert list(messages.all()) == []
        assert messages.report.looked == REACH

    @pytest.mark.parametrize(
        "element",
        [
            b"",
            b"\xff\x00",
            b"[]",
            b'{"headers": [], "properties": 1}',
            b'{"headers": {"id": {}, "task": 1, "argsrepr": null, "retries": 1e999, "redis_queue_sent": 1e9}}',
            b'{"headers": {"id": "%b"}}' % (b"x" * 70_000),
            b'{"a":' * 5000,
            pickle.dumps({"headers": {}}),
        ],
    )
    def test_records_of_other_programs_are_shown_without_a_task(
        self, access: AppAccess, client: redis.Redis, element: bytes
    ) -> None:
        client.lpush("mail", element)
        (found,) = look(access)
        assert (found.task, found.args, found.retries, found.since) == ("", "", 0, None)
        assert found.element.size == len(element)
        assert done(access, references_of([found]), "slow") == 0
        assert client.llen("mail") == 1
        assert done(access, references_of([found])) == 1
        assert client.llen("mail") == 0

    def test_a_large_message_is_read_by_its_end(self, access: AppAccess, send: Send, app: Celery) -> None:
        app.send_task("shop.mail", ["x" * 10_000_000], queue="mail", task_id="large", argsrepr='("...",)')
        (found,) = look(access)
        assert (found.id, found.task, found.args) == ("large", "shop.mail", '("...",)')
        assert found.since is not None
        assert found.element.size > 10_000_000
        assert len(found.element.head) + len(found.element.tail) < 10_000

    def test_a_key_of_another_type_is_an_error(self, access: AppAccess, client: redis.Redis) -> None:
        client.set("mail", "text")
        with pytest.raises(WrongTypeError):
            look(access)


class TestRemove:
    def test_only_the_chosen_messages_are_deleted(self, access: AppAccess, send: Send, client: redis.Redis) -> None:
        for number in range(6):
            send(number)
        chosen = [message for message in look(access) if message.id in ("task-1", "task-4")]
        assert done(access, references_of(chosen)) == 2
        assert ids(client, "mail") == ["task-0", "task-2", "task-3", "task-5"]
        assert done(access, references_of(chosen)) == 0
        assert client.llen("mail") == 4

    def test_moved_messages_keep_order_and_priority_and_get_a_new_route(
        self, access: AppAccess, send: Send, client: redis.Redis, app: Celery
    ) -> None:
        app.send_task("shop.mail", queue="slow", task_id="first")
        for number in range(250):
            send(number, priority=3 * (number % 2))
        before = {message.id: message for message in look(access)}
        assert done(access, [before[f"task-{number}"].element.reference for number in range(240)], "slow") == 240
        assert ids(client, "slow") == ["first", *(f"task-{number}" for number in range(0, 240, 2))]
        assert ids(client, "slow\x06\x163") == [f"task-{number}" for number in range(1, 240, 2)]
        assert (client.llen("mail"), client.llen(STEP_3)) == (5, 5)

    def test_kombu_returns_a_moved_message_to_its_new_queue(
        self, access: AppAccess, send: Send, client: redis.Redis, app: Celery
    ) -> None:
        send(1)
        assert done(access, references_of(look(access)), "slow") == 1
        with app.connection_for_read() as connection:
            message = must(app.amqp.queues["slow"](connection.default_channel).get())
            assert message.headers["id"] == "task-1"
            assert json.loads(message.body)[0] == [1]
            message.requeue()
        assert (ids(client, "slow"), client.exists("mail")) == (["task-1"], 0)

    def test_messages_that_workers_take_meanwhile_are_left_out(
        self, access: AppAccess, send: Send, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(40):
            send(number)
        chosen = references_of(look(access)[1::2])
        take, taken = QueueContents._take, []

        def busy(self: QueueContents, *arguments: Any) -> Any:
            taken.extend(client.rpop("mail", 5) or [])
            send(100 + len(taken))
            return take(self, *arguments)

        monkeypatch.setattr(QueueContents, "_take", busy)
        count = done(access, chosen)
        assert len(taken) == 5
        assert count == 20 - 2
        assert ids(client, "mail") == [*(f"task-{number}" for number in range(6, 40, 2)), "task-105"]

    def test_a_changed_message_stays(self, access: AppAccess, send: Send, client: redis.Redis) -> None:
        send(1)
        chosen = references_of(look(access))
        client.lset("mail", 0, (client.lindex("mail", 0) or b"").replace(b'"retries": 0', b'"retries": 1'))
        assert done(access, chosen) == 0
        assert client.llen("mail") == 1

    def test_large_messages(self, access: AppAccess, app: Celery, client: redis.Redis) -> None:
        for size in (200_000, 2_000_000):
            app.send_task("shop.mail", ["x" * size], queue="mail", task_id=f"size-{size}")
        chosen = references_of(look(access))
        assert done(access, chosen, "slow") == 1
        assert (ids(client, "slow"), ids(client, "mail")) == (["size-200000"], ["size-2000000"])
        assert done(access, chosen) == 1
        assert client.llen("mail") == 0

    def test_a_lost_reply_removes_once(
        self, access: AppAccess, send: Send, client: redis.Redis, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            send(number)
        with queue_contents(app, "mail") as contents:
            references = [element.reference for element in contents.read(0)]
            lost = lose_a_reply(contents, monkeypatch, b":slot:")
            counts = [len(removed) for removed, _ in contents.remove(references[:1], "slow")]
        assert (len(lost), sum(counts)) == (1, 1)
        assert (ids(client, "slow"), ids(client, "mail")) == (["task-0"], ["task-1", "task-2"])

    def test_a_full_redis_can_be_emptied(self) -> None:
        with RedisServer() as server, server.client() as client:
            app = Celery("tests", broker=f"redis+socket://{server.socket}", set_as_current=False)
            app.conf.update(redis_queue_url=server.url, task_queues=[Queue("mail"), Queue("slow")])
            DurableTasks(app, leases=False)
            for number in range(10):
                app.send_task("shop.mail", [number], queue="mail")
            client.config_set("maxmemory", "1")
            access = AppAccess(app)
            chosen = references_of(look(access))
            assert done(access, chosen[:3], "slow") == 3
            assert done(access, chosen[3:6]) == 3
            assert sum(purge(app, "mail", 4)) == 4
            assert (client.llen("mail"), client.llen("slow")) == (0, 3)
            app.close()

    @pytest.mark.parametrize("references", [[], ["0"], ["x.y"], ["0." + "f" * 32], ["99999999999999999999.0"]])
    def test_unknown_references_are_no_error(self, access: AppAccess, send: Send, references: list[str]) -> None:
        send(1)
        assert done(access, references) == 0

    def test_the_target_is_checked(self, access: AppAccess, app: Celery) -> None:
        check_target(access, "mail", "slow")
        with pytest.raises(InvalidNameError, match="did you mean 'slow'"):
            check_target(access, "mail", "slwo")
        with pytest.raises(InvalidNameError, match="must be another queue"):
            check_target(access, "mail", "mail")
        app.conf.redis_queue_allowed_queues = ["nothing"]
        with pytest.raises((InvalidNameError, ForbiddenDestinationError)):
            check_target(access, "mail", "unacked")


class TestPurge:
    def test_as_many_are_deleted_as_were_counted_the_next_ones_first(
        self, access: AppAccess, send: Send, client: redis.Redis
    ) -> None:
        for number in range(6):
            send(number, priority=3 * (number % 2))
        assert sum(purge(access.app, "mail", 5)) == 5
        assert (ids(client, "mail"), ids(client, STEP_3)) == ([], ["task-5"])

    def test_a_long_queue_is_deleted_in_batches(self, access: AppAccess, client: redis.Redis) -> None:
        client.lpush("mail", *["x"] * 1200)
        assert list(purge(access.app, "mail", 1200)) == [500, 500, 200]

    def test_a_lost_reply_deletes_no_more(
        self, send: Send, client: redis.Redis, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(5):
            send(number)
        with queue_contents(app, "mail") as contents:
            lost = lose_a_reply(contents, monkeypatch)
            assert (list(contents.purge(2)), len(lost)) == ([2], 1)
        assert ids(client, "mail") == ["task-2", "task-3", "task-4"]

    def test_rabbitmq_deletes_all_and_shows_none(self, rabbitmq_url: str, redis_url: str, client: redis.Redis) -> None:
        with Broker(rabbitmq_url) as broker:
            name = broker.name("mail")
            app = broker.app(redis_queue_url=redis_url, task_queues=[Queue(name)])
            for _ in range(3):
                app.send_task("any", queue=name)
            access = AppAccess(app)
            with pytest.raises(ConfigurationError, match="the broker is amqp: must be Redis"):
                Messages(access, name, Conditions()).page(None, 10)
            assert sum(purge(app, name, 1)) == 3


class TestPermissions:
    RULES = re.findall(
        r"^```\n(.*)\n```$",
        (ROOT / "docs" / "security.md")
        .read_text()
        .partition("### Celery's queues on the broker")[2]
        .partition("###")[0],
        re.MULTILINE,
    )

    def test_the_documented_rules_suffice_and_readers_cannot_act(self) -> None:
        read, act = self.RULES
        with RedisServer(tcp=True) as server, server.client() as client:
            app = Celery("tests", broker=server.url, set_as_current=False)
            app.conf.update(redis_queue_url=server.url, task_queues=[Queue("mail"), Queue("slow")])
            DurableTasks(app, leases=False)
            for number in range(9):
                app.send_task("shop.mail", [number], queue="mail", priority=number)
            access = AppAccess(app)
            app.conf.broker_url = server.url.replace("://", "://limited:pw@")
            app.pool.force_close_all()
            client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", *read.split())
            assert access.celery_queues is not None
            rows = {row.name: (row.ready, row.error) for row in access.celery_queues.overview().rows}
            assert rows["mail"] == (9, "")
            chosen = references_of(look(access))
            with pytest.raises(StoreError):
                done(access, chosen)
            with pytest.raises(StoreError):
                list(purge(app, "mail", 9))
            assert len(look(access)) == 9
            client.execute_command("ACL", "SETUSER", "limited", *act.split())
            assert done(access, chosen[:3], "slow") == 3
            assert done(access, chosen[3:6]) == 3
            assert sum(purge(app, "mail", 9)) == 3
            client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "+ping", "+info")
            assert "cannot be read" in access.celery_queues.overview().error
            app.close()


def test_invalid_arguments_are_refused(app: Celery) -> None:
    with queue_contents(app, "mail") as contents:
        for limit in (0, 501, True, "1"):
            with pytest.raises(InvalidValueError, match="limit="):
                contents.read(0, limit=limit)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="offset="):
            contents.read(0, -1)


def test_nothing_beyond_the_reach_is_removed(access: AppAccess, client: redis.Redis) -> None:
    client.lpush("mail", *["x"] * REACH, "last")
    last = Element(0, REACH, len(b"last"), b"last").reference
    assert done(access, [last]) == 0
    client.rpop("mail")
    assert done(access, [last]) == 1
