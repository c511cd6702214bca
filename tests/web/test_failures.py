"""The pages of failed tasks, and the actions on them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import timedelta

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue
from redis_queue.celery.message.envelope import Envelope
from redis_queue.delay.model import Push
from redis_queue.monitor.failures import Failures
from redis_queue.operate.actions.failures import NO_MESSAGE
from redis_queue.store.keys import MonitorKeys
from redis_queue.web import actions, dashboard
from tests.support.wait import must
from tests.support.web.browser import Browser, Page
from tests.support.web.contents import KEY, Open, everything, fill_failures, last_action

KEYS = MonitorKeys("redis_queue")


def kept(client: redis.Redis) -> set[str]:
    return {failure.id for failure in Failures(client, "redis_queue").list()[0]}


def row(browser: Browser, id_: str) -> str:
    """Return the value of the check box of a failure."""
    boxes = [value for name, value in browser.get("/failures").form("/preview").boxes if name == "row"]
    (found,) = [box for box in boxes if box.endswith(f":{id_}")]
    return found


def preview(browser: Browser, verb: str, **changes: object) -> Page:
    return browser.send(browser.get("/failures").form("/preview"), ("verb", verb), **changes)


def delay_entry(client: redis.Redis, id_: str) -> Envelope:
    """Return the message that waits under *id_*."""
    entry = must(DelayQueue("scheduled", client).get(id_))
    return Envelope.unpack(entry.payload, entry.id, entry.headers)


def test_groups_come_first_then_failures(reader: Browser) -> None:
    page = reader.get("/failures")
    assert page.text.index("By task and exception") < page.text.index("Failures, the last one first")
    assert "2 failures; the last 1,000 are kept for 7 days." in page.text
    assert "5 failures not kept because more than 100 came from a worker in a second" in page.text
    assert "/failures?task=shop.remind&exception=ValueError" in page.links


@pytest.mark.parametrize(
    ("query", "told"), [("", "the last 24 h of the last 1"), ("?worker=worker", "those that match of")]
)
def test_a_bounded_look_says_what_it_counts(
    query: str, told: str, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a search, groups count all failures; only their curves are of the last ones."""
    monkeypatch.setattr("redis_queue.operate.failure_groups.MAX_LOOKED_AT", 1)
    assert f"By task and exception, {told}" in reader.get(f"/failures{query}").text


def test_an_empty_list_says_what_will_be_here(client: redis.Redis, app: Celery) -> None:
    client.flushall()
    page = Browser(dashboard(app, secret_key=KEY)).get("/failures")
    assert "Tasks that fail are kept here for 7 days." in page.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("task=shop.remind", 2),
        ("task=shop", 0),
        ("exception=ValueError", 2),
        ("text=brok", 2),
        ("text=argument", 2),
        ("worker=worker&since=1h", 2),
        ("worker=other", 0),
        ("since=2100-01-01T00:00Z", 0),
    ],
)
def test_a_search(query: str, found: int, reader: Browser) -> None:
    page = reader.get(f"/failures?{query}")
    assert len({link for link in page.links if link.startswith("/failure?")}) == found
    assert ("By task and exception" in page.text) == (found > 0)
    assert ("No match among" in page.text) == (found == 0)


@pytest.mark.parametrize(
    "query", ["since=yesterday", "after=x", "limit=0", "nosuch=1", "task=a&task=b", "task=" + "x" * 301]
)
def test_a_bad_request_is_refused(query: str, reader: Browser) -> None:
    assert reader.open(f"/failures?{query}").status == 400


def test_pages_lead_to_all_failures(reader: Browser, filled: redis.Redis) -> None:
    first = reader.get("/failures?limit=1")
    (following,) = [link for link in first.links if "after=" in link]
    second = reader.get(following)
    shown = [link for page in (first, second) for link in page.links if link.startswith("/failure?id=")]
    assert {link.partition("id=")[2] for link in shown[-2:]} == {"lost", "failed"}


def test_one_failure_hides_its_arguments_until_they_are_requested(reader: Browser) -> None:
    page = reader.get("/failure?id=failed")
    for text in ("Traceback (most recent call last):", "ValueError: broken", "250 ms", "Attempts 3"):
        assert text in page.text
    assert "argument" not in page.text.replace("Arguments", "").replace("Show arguments", "")
    page = reader.get("/failure?id=failed&body=1")
    assert "('argument',) {'password': ***}" in page.text
    assert "hunter2" not in page.source


@pytest.mark.parametrize("id_", ["nosuch", "", "x" * 300])
def test_an_unknown_failure(id_: str, reader: Browser) -> None:
    assert reader.open(f"/failure?id={id_}").status == 404


def test_a_retry_and_its_audit(writer: Browser, filled: redis.Redis) -> None:
    asked = preview(writer, "retry", row=[row(writer, "failed")])
    assert "Retry 1 failure?" in asked.text
    assert kept(filled) == {"failed", "lost"}
    done = writer.send(asked.confirmation)
    assert "1 retried." in done.text
    assert kept(filled) == {"lost"}
    assert (delay_entry(filled, "failed").task, delay_entry(filled, "failed").headers["retries"]) == ("shop.remind", 0)
    assert last_action(filled) == ("local", "retry", "failures", 1, "")
    assert writer.post(asked.confirmation).status_code == 409


def test_other_arguments_of_one_failure(writer: Browser, filled: redis.Redis) -> None:
    form = writer.get("/failure?id=failed").form("/preview")
    asked = writer.send(form, ("verb", "retry"), args='["<b>"]', kwargs='{"a": 1}')
    assert 'args ["<b>"]' in asked.text
    writer.send(asked.confirmation)
    assert json.loads(delay_entry(filled, "failed").body)[:2] == [["<b>"], {"a": 1}]
    assert last_action(filled)[-1] == "args, kwargs"


@pytest.mark.parametrize(
    "fields", [{"args": "{}"}, {"args": "["}, {"kwargs": "[]"}, {"rate": "0"}, {"rate": "x"}, {"rate": "nan"}]
)
def test_invalid_options_are_refused(fields: dict[str, str], writer: Browser, filled: redis.Redis) -> None:
    before = everything(filled)
    form = writer.get("/failure?id=failed").form("/preview")
    assert writer.post(form, ("verb", "retry"), **fields).status_code == 400
    assert everything(filled) == before


def test_all_matches_at_a_rate(writer: Browser, filled: redis.Redis) -> None:
    failures = Failures(filled, "redis_queue")
    full = must(failures.get("failed"))
    more = [replace(full, id=f"more{number}") for number in range(60)]
    failures.keep(more, 1000, 7)
    asked = preview(writer, "retry", matching="1", rate="2")
    assert "Retry 62 failures?" in asked.text
    assert "rate 2" in asked.text
    done = writer.send(asked.confirmation)
    assert "61 of 62 retried." in done.text
    assert f"1 skipped: {NO_MESSAGE}." in done.text
    queue = DelayQueue("scheduled", filled)
    due = sorted(entry.due_at for entry in queue.scan() if entry.id.startswith(("failed", "more")))
    assert len(due) == 61
    assert timedelta(seconds=29.9) < due[-1] - due[0] < timedelta(seconds=31)
    # Also between two batches, which are stored one after the other.
    assert max(later - earlier for earlier, later in itertools.pairwise(due)) < timedelta(seconds=0.7)
    assert last_action(filled) == (
        "local",
        "retry",
        "failures",
        61,
        "rate 2; 1 skipped: its message was too large to be kept, or could not be read",
    )


def test_delete(writer: Browser, filled: redis.Redis) -> None:
    asked = preview(writer, "delete", row=[row(writer, "lost"), row(writer, "failed")])
    assert "2 deleted." in writer.send(asked.confirmation).text
    assert kept(filled) == set()
    assert last_action(filled) == ("local", "delete", "failures", 2, "")


def test_a_failure_that_came_after_the_preview_is_left_alone(writer: Browser, filled: redis.Redis) -> None:
    asked = preview(writer, "delete", row=[row(writer, "failed")])
    filled.zincrby(KEYS.failed_at, 5, "failed")
    assert "0 of 1 deleted. Skipped: 1 (gone, or failed again)." in writer.send(asked.confirmation).text
    assert kept(filled) == {"failed", "lost"}


@pytest.mark.parametrize("fields", [{}, {"row": "x"}, {"row": "1:"}, {"row": "1:" + "x" * 300}, {"verb": "nosuch"}])
def test_invalid_forms_are_refused(fields: dict[str, str], writer: Browser, filled: redis.Redis) -> None:
    before = everything(filled)
    form = writer.get("/failures").form("/preview")
    assert writer.post(form, **{"verb": "delete", **fields}).status_code == 400
    assert everything(filled) == before


def test_without_a_dispatcher_pages_say_that_tasks_wait(open_dashboard: Open, filled: redis.Redis) -> None:
    browser = open_dashboard(allow_write=True)
    assert "No dispatcher runs" not in browser.get("/failure?id=failed").text
    filled.delete("{redis_queue:delay:scheduled:0}:dispatchers")
    assert "No dispatcher runs" in browser.get("/failure?id=failed").text
    assert "No dispatcher runs" in preview(browser, "retry", row=[row(browser, "failed")]).text


def test_an_action_covers_what_fits(writer: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MAX_FORM_BYTES", 40)
    asked = preview(writer, "delete", matching="1")
    assert "There may be more matches. This action covers 1" in asked.text


def test_another_entry_under_the_id_stays(writer: Browser, filled: redis.Redis) -> None:
    DelayQueue("scheduled", filled).push_many([Push("other", id="failed", delay=60)])
    asked = preview(writer, "retry", row=[row(writer, "failed")])
    writer.send(asked.confirmation)
    queue = DelayQueue("scheduled", filled)
    ids = {entry.id for entry in queue.scan() if entry.id.startswith("failed")}
    assert len(ids) == 2
    assert kept(filled) == {"lost"}


def test_a_retry_without_a_delay_queue_is_refused_in_the_preview(client: redis.Redis) -> None:
    client.flushall()
    fill_failures(client)
    browser = Browser(dashboard(client, secret_key=KEY, allow_write=True))
    form = browser.get("/failures").form("/preview")
    asked = browser.post(form, ("verb", "retry"), matching="1")
    assert asked.status_code == 400
    assert "name the Celery app" in asked.text
    assert kept(client) == {"failed", "lost"}
