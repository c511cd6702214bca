"""The pages of Celery's queues: counts, messages, search; actions reach exactly the messages of their preview."""

import json
import re
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue.operate.audit import Audit
from redis_queue.store.keys import FlowKeys
from redis_queue.web import dashboard
from tests.support.celery.brokers import Broker
from tests.support.cpu import least_seconds
from tests.support.web.browser import Browser, Page
from tests.support.web.contents import KEY, Open

PAGE = "/celery-queue?name=mail"
MOVE = ("verb", "move")


@pytest.fixture
def limited(app: Celery) -> None:
    """A flow of a task."""
    app.conf.redis_queue_flow = {"shop.limited": {"limit": 1}}


@pytest.fixture
def mail(app: Celery, filled: redis.Redis) -> redis.Redis:
    """The queues "mail" with six messages, and "slow"."""
    app.conf.task_queues = [Queue("mail"), Queue("slow")]
    for number in range(6):
        task = "shop.remind" if number % 2 else "shop.mail"
        app.send_task(task, [number], {"password": "hunter2"}, queue="mail", task_id=f"task-{number}")
    return filled


def ids(client: redis.Redis, key: str) -> list[str]:
    return [json.loads(element)["headers"]["id"] for element in reversed(client.lrange(key, 0, -1))]


def waiting(client: redis.Redis, *flows: str) -> list[Any]:
    """Return how many messages of each flow wait for a place."""
    found: Any = client.hmget(FlowKeys("redis_queue").backlog.decode(), flows)
    return list(found)


def boxes(page: Page, *numbers: int) -> list[str]:
    """Return the references of rows, counted from 0."""
    found = [value for name, value in page.form_with(MOVE).boxes if name == "row"]
    return [found[number] for number in numbers]


def preview(browser: Browser, verb: str, path: str = PAGE, **changes: Any) -> Page:
    return browser.press(browser.get(path), verb, **changes)


def audit(client: redis.Redis) -> tuple[str, str, int, str, list[str]]:
    action = Audit(client, "redis_queue").last()[0]
    return action.verb, action.queue, action.count, action.detail, [subject.id for subject in action.subjects]


class TestReading:
    @pytest.mark.parametrize("path", ["/", "/queues", "/queues?name=mail"])
    def test_celery_queues_come_first(self, path: str, reader: Browser, mail: redis.Redis) -> None:
        page = reader.get(path)
        assert page.text.index("Celery's queues") < page.text.index("Quarantined", page.text.index("Celery's queues"))
        assert re.search(r"mail 6 [\d.]+ \w+ 0 0 0 no known worker", page.text)
        assert page.link("celery-queue?name=mail").endswith("/celery-queue?name=mail")

    def test_the_page_shows_counts_and_messages_without_arguments(self, reader: Browser, mail: redis.Redis) -> None:
        page = reader.get(PAGE)
        assert "Ready 6" in page.text
        assert page.text.index("task-0 shop.mail") < page.text.index("task-1 shop.remind")
        assert not [found for found in page.forms if found.method == "post" and (found.buttons or found.boxes)]
        assert "hunter2" not in page.source
        shown = reader.get(f"{PAGE}&body=1")
        assert "[0] {'password': ***}" in shown.text
        assert "hunter2" not in shown.source

    def test_search_and_pages(self, reader: Browser, mail: redis.Redis) -> None:
        page = reader.get(f"{PAGE}&task=remind&limit=2")
        assert ["task-1" in page.text, "task-3" in page.text, "task-5" in page.text] == [True, True, False]
        assert "task-5" in reader.get(page.link("after=")).text
        text = reader.get(f"{PAGE}&task=shop.remin_").text
        assert "No match among 6 messages; did you mean 'shop.remind' or" in text

    def test_many_queues_have_pages(self, reader: Browser, app: Celery, mail: redis.Redis) -> None:
        app.conf.task_queues = [Queue(f"q-{number:03}") for number in range(120)]
        page = reader.get("/queues?name=q-")
        assert ["q-049" in page.text, "q-050" in page.text] == [True, False]
        assert "q-050" in reader.get(page.link("celery=50")).text

    def test_hostile_messages(self, reader: Browser, mail: redis.Redis) -> None:
        mail.delete("mail")
        headers = {"id": "<script>\u202e", "task": "<b>\x1b[2J", "argsrepr": "</pre><script>alert(1)</script>"}
        mail.lpush(
            "mail", json.dumps({"headers": headers, "body": "", "properties": {}}), b"\xff\x00", "x" * 10_000_000
        )
        page = reader.get(f"{PAGE}&body=1")
        assert "<script>" not in page.source
        assert "\u202e" not in page.source
        assert "\x1b" not in page.source
        assert page.text.count("not a task") == 2
        assert "10,000,000" in page.text

    def test_a_key_of_another_type_is_an_error_of_one_row(self, reader: Browser, mail: redis.Redis) -> None:
        mail.set("slow", "text")
        assert "mail 6" in reader.get("/queues").text
        assert "another program has written it" in reader.get("/celery-queue?name=slow").text

    @pytest.mark.parametrize(
        ("path", "status", "text"),
        [
            ("/celery-queue", 404, "name is missing"),
            ("/celery-queue?name=", 404, "name is missing"),
            (f"/celery-queue?name={'x' * 201}", 404, "must be 1 to 200"),
            (f"{PAGE}&name=slow", 400, "given 2 times"),
            (f"{PAGE}&other=1", 400, "Unknown parameter"),
            (f"{PAGE}&after=1", 400, "invalid place"),
            (f"{PAGE}&after=999.999999999", 200, "No message waits"),
            (f"{PAGE}&limit=0", 400, "limit"),
            (f"{PAGE}&body=2", 400, "body"),
            (f"{PAGE}&task={'x' * 301}", 400, "at most 300"),
            ("/queues?celery=-1", 400, "celery"),
            ("/celery-queue?name=mial", 200, "did you mean 'mail'?"),
        ],
    )
    def test_parameters_are_checked(
        self, path: str, status: int, text: str, reader: Browser, mail: redis.Redis
    ) -> None:
        page = reader.open(path)
        assert (page.status, text in page.text) == (status, True), page.text

    def test_without_an_app_there_are_none(self, filled: redis.Redis) -> None:
        browser = Browser(dashboard(filled, secret_key=KEY))
        assert "Celery's queues" not in browser.get("/queues").text
        assert browser.open(PAGE).status == 404

    def test_without_a_broker_the_page_shows_the_error(
        self, reader: Browser, app: Celery, mail: redis.Redis, redis_url: str
    ) -> None:
        app.conf.update(broker_url="redis://user:secret@127.0.0.1:1/0", redis_queue_url=redis_url)
        for path in ("/", "/queues", PAGE):
            page = reader.get(path)
            assert "the broker cannot be read" in page.text
            assert "secret" not in page.source

    def test_a_page_of_ten_thousand_queues_is_fast(self, reader: Browser, mail: redis.Redis) -> None:
        pipe = mail.pipeline(transaction=False)
        for number in range(9_900):
            pipe.lpush(f"q-{number:05}", "x")
            pipe.sadd(f"_kombu.binding.q-{number:05}", f"q-{number:05}\x06\x16\x06\x16q-{number:05}")
        pipe.execute()
        reader.get("/queues")
        assert least_seconds(lambda: reader.get("/queues"), 0.2, mail) <= 0.2


class TestActing:
    def test_move_the_ticked_messages(self, writer: Browser, mail: redis.Redis) -> None:
        page = preview(writer, "move", row=boxes(writer.get(PAGE), 1, 4), to="slow")
        assert "Move 2 messages of mail to slow?" in page.text
        assert ["task-1" in page.text, "task-4" in page.text, "task-0" in page.text] == [True, True, False]
        assert mail.llen("mail") == 6
        done = writer.send(page.confirmation)
        assert "2 moved." in done.text
        assert (ids(mail, "slow"), ids(mail, "mail")) == (
            ["task-1", "task-4"],
            ["task-0", "task-2", "task-3", "task-5"],
        )
        assert audit(mail) == ("move", "mail", 2, "slow", ["task-1", "task-4"])

    def test_delete_all_matches_but_not_those_that_came_later(
        self, writer: Browser, app: Celery, mail: redis.Redis
    ) -> None:
        page = preview(writer, "delete", f"{PAGE}&task=remind", matching="1")
        assert "Delete 3 messages of mail?" in page.text
        app.send_task("shop.remind", queue="mail", task_id="later")
        mail.rpop("mail")
        mail.rpop("mail")
        done = writer.send(page.confirmation)
        assert "2 of 3 deleted. Skipped: 1 (taken by a worker" in done.text
        assert ids(mail, "mail") == ["task-2", "task-4", "later"]

    def test_purge(self, writer: Browser, app: Celery, mail: redis.Redis) -> None:
        page = preview(writer, "purge")
        assert "Delete 6 messages of mail?" in page.text
        app.send_task("shop.mail", queue="mail", task_id="later")
        assert "6 deleted." in writer.send(page.confirmation).text
        assert ids(mail, "mail") == ["later"]
        assert audit(mail) == ("purge", "mail", 6, "", [])

    def test_messages_that_wait_for_a_place_are_counted_and_purged(
        self, limited: None, writer: Browser, app: Celery, mail: redis.Redis
    ) -> None:
        for queue in ("mail", "mail", "mail", "slow", "slow"):
            app.send_task("shop.limited", queue=queue)
        assert "Ready 9 Waiting for a place 3 In flight 0" in writer.get(PAGE).text
        page = preview(writer, "purge")
        assert "Delete 9 messages of mail?" in page.text
        assert "9 messages will be deleted, also those that wait for a place in a flow" in page.text
        app.send_task("shop.limited", queue="mail")
        assert "9 deleted." in writer.send(page.confirmation).text
        assert audit(mail) == ("purge", "mail", 9, "", [])
        assert waiting(mail, "queue:mail", "queue:slow", "shop.limited") == [b"1", b"2", b"3"]
        slow = "/celery-queue?name=slow"
        assert len(re.findall("shop.limited .*? for a place", writer.get(slow).text)) == 2
        assert "2 deleted." in writer.send(preview(writer, "purge", slow).confirmation).text
        assert waiting(mail, "queue:mail", "queue:slow", "shop.limited") == [b"1", None, b"1"]

    @pytest.mark.parametrize(
        ("verb", "changes", "text"),
        [
            ("delete", {}, "Tick some rows first"),
            ("move", {"row": "0." + "0" * 32}, "Move to which queue?"),
            ("move", {"row": "0." + "0" * 32, "to": "slwo"}, "did you mean 'slow'?"),
            ("move", {"row": "0." + "0" * 32, "to": "mail"}, "must be another queue"),
            ("delete", {"row": "0.zz"}, "invalid row"),
            ("delete", {"row": "../x"}, "invalid row"),
            ("delete", {"row": [f"0.{number:032x}" for number in range(10_001)]}, "must be at most 10,000"),
            ("delete", {"row": "0." + "0" * 32, "name": "a\nb"}, "must be printable"),
            ("nothing", {}, "must be one of move, delete, purge"),
        ],
    )
    def test_previews_are_checked(
        self, verb: str, changes: dict[str, Any], text: str, writer: Browser, mail: redis.Redis
    ) -> None:
        page = writer.send(writer.get(PAGE).form_with(MOVE), ("verb", verb), **{"to": "", **changes})
        assert (page.status in (400, 404), text in page.text) == (True, True), page.text
        assert mail.llen("mail") == 6

    def test_a_queue_that_was_deleted_meanwhile(self, writer: Browser, mail: redis.Redis) -> None:
        page = writer.get(PAGE)
        mail.delete("mail")
        shown = writer.press(page, "delete", row=boxes(page, 0))
        assert "0 of 1 deleted." in writer.send(shown.confirmation).text
        assert "No match." in preview(writer, "delete", matching="1").text


def test_rabbitmq_shows_counts_and_purges(open_dashboard: Open, rabbitmq_url: str, redis_url: str) -> None:
    with Broker(rabbitmq_url) as broker:
        name = broker.name("mail")
        app = broker.app(redis_queue_url=redis_url, task_queues=[Queue(name)])
        app.send_task("any", queue=name)
        browser = open_dashboard(app, allow_write=True)
        page = browser.get(f"/celery-queue?name={name}")
        assert "Messages are not shown: the broker is amqp: must be Redis" in page.text
        confirmed = browser.press(page, "purge")
        assert "messages that arrive meanwhile are deleted as well" in confirmed.text
        assert "1 deleted." in browser.send(confirmed.confirmation).text
