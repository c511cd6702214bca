"""The page of unique tasks: owned keys, their tasks, and the release of a key with a preview."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.admission.owners import Owners, field_of
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import FlowKeys
from redis_queue.web import dashboard
from tests.support.wait import must
from tests.support.web.browser import Browser, Page
from tests.support.web.contents import KEY, everything

KEYS = FlowKeys("redis_queue")
RELEASE = ("verb", "unique-release")
ORDER = ("key", "order:7")


@pytest.fixture
def owners(filled: redis.Redis) -> Owners:
    return Owners(filled, "redis_queue")


def write(client: redis.Redis, field: bytes | str, record: bytes | str = "1a - w 1000 id", ends: float = 2e12) -> None:
    """Write an owner as another program would."""
    client.hset(KEYS.owners.decode(), mapping={field: record})
    client.zadd(KEYS.owner_ends, {field.encode() if isinstance(field, str) else field: ends})


def preview(browser: Browser, key: str = "order:7", **changes: Any) -> Page:
    return browser.send(browser.get("/unique").form_with(("key", key)), RELEASE, **changes)


class TestList:
    def test_shows_owners_those_first_that_end_first(self, reader: Browser, owners: Owners) -> None:
        page = reader.get("/unique")
        assert "3 owned keys." in page.text
        rows = (
            "order:7 shop.sync delayed task-0",
            "order:8 shop.sync delayed",
            "one for all calls shop.rebuild delayed",
        )
        places = [page.text.find(row) for row in rows]
        assert -1 not in places
        assert places == sorted(places)
        assert "in 60 min" in page.text or "in 1 h" in page.text or "in 59 min" in page.text
        assert [link for link in page.links if link.startswith("/task?")] == [
            f"/task?id={id_}" for id_ in ("task-0", "task-1", "runs")
        ]

    @pytest.mark.parametrize(
        ("mark", "state"), [("s", "sending"), ("d", "delayed"), ("w", "waiting"), ("r", "running")]
    )
    def test_states(self, mark: str, state: str, reader: Browser, filled: redis.Redis) -> None:
        write(filled, field_of("shop.other", "k"), f"1a - {mark} 1000 id")
        assert f"k shop.other {state} id" in reader.get("/unique?task=other").text

    def test_search(self, reader: Browser, owners: Owners) -> None:
        page = reader.get("/unique?task=build")
        assert "1 owned key found." in page.text
        assert "shop.sync" not in page.text
        assert "No task with a name like this owns a key." in reader.get("/unique?task=order").text

    @pytest.mark.parametrize("search", ["", "?task=many"])
    def test_many_owners_have_pages(self, search: str, reader: Browser, filled: redis.Redis) -> None:
        filled.delete(KEYS.owners, KEYS.owner_ends)
        for number in range(120):
            write(filled, field_of("many", f"key {number:03}"), f"1a - w 1000 id-{number:03}", 2e12 + number)
        page, seen = reader.get(f"/unique{search}"), list[str]()
        while True:
            seen += [link for link in page.links if link.startswith("/task?")]
            following = [link for link in page.links if "offset=" in link]
            if not following:
                break
            page = reader.get(following[-1])
        assert seen == [f"/task?id=id-{number:03}" for number in range(120)]
        assert "There are no more owned keys." in reader.get("/unique?offset=500").text

    def test_without_owners_it_says_what_they_are(self, client: redis.Redis) -> None:
        text = Browser(dashboard(client, secret_key=KEY)).get("/unique").text
        assert "No task owns a key. A unique task owns its key while it waits or runs" in text

    def test_an_app_has_its_own_keys(self, app: Celery, owners: Owners) -> None:
        url = app.conf.broker_url
        with Celery("other", broker=url, set_as_current=False) as other:
            other.conf.broker_transport_options = {"global_keyprefix": "shop:"}
            assert "No task owns a key." in Browser(dashboard(other, secret_key=KEY)).get("/unique").text
            field = field_of("shop.own", "k")
            assert StoredTasks.of(other).unique.acquire(field, "1a", task_id="of-app", ttl_ms=60_000).owns
            assert "k shop.own sending of-app" in Browser(dashboard(other, secret_key=KEY)).get("/unique").text

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("/unique?offset=-1", "offset"),
            ("/unique?offset=x", "offset"),
            ("/unique?other=1", "Unknown parameter"),
            ("/unique?task=a&task=b", "given 2 times"),
            ("/unique?task=a%0Ab", "must be printable"),
            (f"/unique?task={'x' * 250}", "must be at most 200 printable characters"),
            (f"/unique?task={'x' * 301}", "at most 300"),
        ],
    )
    def test_parameters_are_checked(self, path: str, text: str, reader: Browser, owners: Owners) -> None:
        page = reader.open(path)
        assert (page.status, text in page.text) == (400, True), page.text

    def test_texts_that_no_form_can_name_have_no_button(self, writer: Browser, filled: redis.Redis) -> None:
        before = sum(RELEASE in form.buttons for form in writer.get("/unique").forms)
        for number, field in enumerate((b"\xff\0a", b"t\0\xff", b"t\0a\xe2\x80\x8bb", b"", b"x" * 300 + b"\0a")):
            write(filled, field, f"1a - w 1000 id-{number}")
        write(filled, "t\0k", b"1a - w 1000 \xff\n")
        page = writer.get("/unique")
        assert f"{before + 6} owned keys." in page.text
        assert sum(RELEASE in form.buttons for form in page.forms) == before == 3

    def test_owners_that_cannot_be_read_are_an_error(self, reader: Browser, filled: redis.Redis) -> None:
        filled.set(KEYS.owner_ends, "x")
        page = reader.open("/unique")
        assert (page.status, "owner_ends is a string" in page.text) == (503, True)


class TestRelease:
    def test_frees_the_key_and_nothing_else(self, writer: Browser, owners: Owners, filled: redis.Redis) -> None:
        before = everything(filled)
        page = preview(writer)
        assert "Free the key 'order:7' of shop.sync?" in page.text
        assert "The task task-0 (delayed) goes on, so two tasks with this key may run at once." in page.text
        assert everything(filled) == before
        done = writer.send(page.confirmation)
        assert "the key 'order:7' of shop.sync is free; the task task-0 goes on." in done.text
        assert "2 owned keys." in done.text
        assert [owner.key for owner in owners.list()] == ["order:8", ""]
        changed = {key for key, value in everything(filled).items() if before.get(key) != value}
        assert {KEYS.owners, KEYS.owner_ends} <= changed
        assert KEYS.replaced not in changed
        action = Audit(filled, "redis_queue").last()[0]
        assert (action.user, action.verb, action.queue, action.count) == ("local", "unique-release", "shop.sync", 1)
        assert (action.detail, [subject.id for subject in action.subjects]) == ("order:7", ["task-0"])
        assert "unique-release" in writer.get("/task?id=task-0").text

    def test_a_task_without_keys(self, writer: Browser, owners: Owners) -> None:
        page = preview(writer, "")
        assert "Free the key of shop.rebuild?" in page.text
        assert "the key of shop.rebuild is free;" in writer.send(page.confirmation).text
        assert owners.get("shop.rebuild") is None

    def test_a_key_that_another_task_owns_meanwhile_stays(
        self, writer: Browser, owners: Owners, filled: redis.Redis
    ) -> None:
        listed, confirmed = writer.get("/unique"), preview(writer).confirmation
        write(filled, field_of("shop.sync", "order:7"), "9a - r 1000 other")
        asked = writer.send(listed.form_with(ORDER), RELEASE)
        assert "Another task owns this key now: other (running)." in asked.text
        assert [form for form in asked.forms if form.method == "post"] == []
        done = writer.send(confirmed)
        assert "0 of 1 released. Skipped: 1 (the task 'task-0' no longer owns the key 'order:7'" in done.text
        assert must(owners.get("shop.sync", "order:7")).task_id == "other"
        assert [action for action in Audit(filled, "redis_queue").last() if action.verb == "unique-release"] == []

    def test_a_key_that_is_freed_in_the_same_moment_is_told(
        self, writer: Browser, owners: Owners, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        confirmed = preview(writer).confirmation
        monkeypatch.setattr(Owners, "release", lambda *_, **__: False)
        assert "the task 'task-0' no longer owns the key 'order:7' of shop.sync" in writer.send(confirmed).text

    def test_a_key_that_is_free_meanwhile_is_told(self, writer: Browser, owners: Owners) -> None:
        form, confirmed = writer.get("/unique").form_with(ORDER), preview(writer).confirmation
        assert owners.release("shop.sync", "order:7")
        for answer, status in ((writer.post(form, RELEASE), 200), (writer.post(confirmed), 409)):
            assert answer.status_code == status
            assert "no task owns the key 'order:7' of shop.sync." in Page(answer).text

    @pytest.mark.parametrize(
        ("changes", "status", "text"),
        [
            ({"task": None}, 400, "Which unique? Choose one from the list."),
            ({"task": "x" * 201}, 400, "must be 1 to 200 printable characters"),
            ({"key": "x" * 256}, 400, "256 bytes: must be 1 to 255"),
            ({"key": "x" * 301}, 400, "must have at most 300 characters"),
            ({"key": "a\nb"}, 400, "must be printable"),
            ({"id": "a\nb"}, 400, "must be printable"),
            ({"verb": "flow-set"}, 400, "must be one of unique-release"),
        ],
    )
    def test_forms_are_checked(
        self, changes: dict[str, Any], status: int, text: str, writer: Browser, owners: Owners
    ) -> None:
        form, confirmed = writer.get("/unique").form_with(ORDER), preview(writer).confirmation
        answers = [writer.post(confirmed, **changes)]
        if "verb" not in changes:
            answers.append(writer.post(form, RELEASE, **changes))
        for answer in answers:
            assert (answer.status_code, text in Page(answer).text) == (status, True), Page(answer).text
        assert owners.count() == 3
