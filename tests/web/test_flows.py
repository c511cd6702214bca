"""The pages of flows: limits, keys, state; pause, resume, change and reset, each with a preview."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue.admission.flows import Flows
from redis_queue.admission.rules import Flow, FlowLimits, FlowState
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Scripts
from redis_queue.web import dashboard
from tests.support.wait import must
from tests.support.web.browser import Browser, Page, pages_from
from tests.support.web.contents import KEY, everything, last_action

BULK = "/flow?name=queue:bulk"
SLOW = "/flow?name=queue:slow"
SYNC = "/flow?name=shop.sync"
MAIL = "/celery-queue?name=mail"

NONE = "\N{EN DASH}"
"""Stands for no limit."""


@pytest.fixture
def flows(app: Celery, filled: redis.Redis) -> Flows:
    """The flows of the filled Redis; the app has a queue "mail" without a flow."""
    app.conf.task_queues = [Queue("mail"), Queue("slow"), Queue("bulk")]
    return Flows(filled, "redis_queue")


def state(flows: Flows, name: str) -> FlowState:
    return must(flows.get(name))


def preview(browser: Browser, verb: str, path: str = BULK, **changes: Any) -> Page:
    return browser.press(browser.get(path), verb, **changes)


def put(client: redis.Redis, queue: str, key: str, message: str) -> None:
    """Let *message* wait for a place in the flow of *queue*."""
    keys = FlowKeys("redis_queue")
    send = Scripts(client).bind("admission/send", keys, slot=keys.slot(str(client.incr("calls"))))
    group = {"step": 0, "queue": queue, "task": "", "of_task": "", "of_queue": key}
    assert send(now=0, sequence=1, **group, is_new=1, message=message)


class TestList:
    def test_shows_limits_counts_and_state(self, reader: Browser, flows: Flows) -> None:
        page = reader.get("/flows")
        assert "4 flows." in page.text
        text = page.text.replace(NONE, "-")
        assert "queue:bulk 40 4 - 2/s 1 2 7" in text
        assert "queue:quiet - - - - - 0 0 paused" in text
        assert "queue:slow 3 - 100/m - 5 0 0 paused changed" in text
        assert "shop.sync - 1 - - - 1 3" in text
        assert [link for link in page.links if link.startswith("/flow?")] == [
            f"/flow?name={name}" for name in ("queue:bulk", "queue:quiet", "queue:slow", "shop.sync")
        ]

    def test_different_bursts_are_both_shown(self, reader: Browser, flows: Flows) -> None:
        flows.declare({"queue:bulk": Flow(rate="5/s", burst=9, fair="{tenant}")})
        flows.set("queue:bulk", rate_each="1/s")
        assert "queue:bulk - - 5/s 1/s 9 / 1 2 7" in reader.get("/flows").text.replace(NONE, "-")

    def test_search(self, reader: Browser, flows: Flows) -> None:
        page = reader.get("/flows?name=queue:s")
        assert "1 flow found." in page.text
        assert page.link("/flow?").endswith("queue:slow")
        assert "No flow has a name like this." in reader.get("/flows?name=nosuch").text

    def test_many_flows_have_pages(self, reader: Browser, flows: Flows) -> None:
        flows.declare({f"many-{number:03}": Flow(limit=1) for number in range(120)})
        pages = pages_from(reader, "/flows?name=many", mark="offset=")
        seen = [link for page in pages for link in page.links if link.startswith("/flow?")]
        assert seen == [f"/flow?name=many-{number:03}" for number in range(120)]
        assert "There are no more flows." in reader.get("/flows?offset=500").text

    def test_without_flows_it_says_what_they_are(self, client: redis.Redis) -> None:
        page = Browser(dashboard(client, secret_key=KEY)).get("/flows")
        assert "A flow limits how many messages of a queue or a task run at once" in page.text
        assert 'app.conf.redis_queue_flow = {"queue:mail": {"limit": 10}}' in page.text

    def test_names_that_no_flow_can_have_are_no_links(self, reader: Browser, flows: Flows, filled: redis.Redis) -> None:
        keys = FlowKeys("redis_queue")
        filled.hset(keys.config.decode(), mapping={b"\xff": "1 - - - - - - -", "": "x", "queue:": "y", "z" * 300: ""})
        page = reader.get("/flows")
        assert "8 flows." in page.text
        assert sum(link.startswith("/flow?") for link in page.links) == 4


class TestOne:
    def test_shows_limits_now_and_in_the_code(self, reader: Browser, flows: Flows) -> None:
        text = reader.get(SLOW).text
        for fact in ("Flow queue:slow", "State paused changed", "Paused: no message starts", "Limit 3 10"):
            assert fact in text, fact
        assert "Rate 100/m 100/m Burst 5 5" in text
        assert "Keys, those" not in text

    def test_shows_keys_with_the_most_waiting_first(self, reader: Browser, flows: Flows) -> None:
        text = reader.get(BULK).text
        assert "Running 2 Waiting 7 State in force" in text
        assert "In this flow, keys take turns." in text
        assert "Key Running Waiting Oldest Set for it ann 2 6 - ben 0 1 -" in text.replace(NONE, "-")
        assert "In this flow, limits count for each key." in reader.get(SYNC).text

    def test_messages_without_a_key_have_a_row(self, reader: Browser, flows: Flows, filled: redis.Redis) -> None:
        filled.hincrby(flows.redis_keys.backlog.decode(), "queue:bulk", 3)
        assert "ben 0 1 - (no key) 0 3" in reader.get(BULK).text.replace(NONE, "-")
        assert "(no key)" not in reader.get(f"{BULK}&part=ben").text

    def test_keys_have_pages_and_a_search(self, reader: Browser, flows: Flows, filled: redis.Redis) -> None:
        key = FlowKeys("redis_queue").keys("queue:bulk")
        filled.zadd(key, {f"tenant-{number:03}": 1000 - number for number in range(98)})
        flows.pause("queue:bulk", key="zoe")
        expected = [*(f"tenant-{number:03}" for number in range(98)), "ann", "ben", "zoe"]
        for query, names in {
            "": expected,
            "&part=ten": expected[:98],
            "&part=en": ["tenant-000"],
            "&part=ben": ["ben"],
            "&changed=1": ["zoe"],
            "&part=x": [],
        }.items():
            pages = list(pages_from(reader, BULK + query))
            links = [link for page in pages for link in page.links if link.startswith("/flow/key?")]
            seen = [link.rpartition("=")[2] for link in links]
            assert (seen[: len(names)], bool(seen)) == (names, bool(names)), query
        assert "No match among" in pages[-1].text
        assert "1,000 keys looked at" not in pages[-1].text

    def test_links_to_its_queue_or_its_task(self, reader: Browser, flows: Flows, filled: redis.Redis) -> None:
        assert reader.get(BULK).link("celery-queue").endswith("/celery-queue?name=bulk")
        assert reader.get(SYNC).link("task=shop.sync").startswith("/history")
        without_app = Browser(dashboard(filled, secret_key=KEY))
        assert not [link for link in without_app.get(BULK).links if "celery-queue" in link]

    def test_a_paused_queue_without_a_flow(self, reader: Browser, flows: Flows) -> None:
        text = reader.get("/flow?name=queue:quiet").text
        assert "This queue has no flow: it is only paused." in text
        assert "In the code" not in text

    @pytest.mark.parametrize(
        ("path", "status", "text"),
        [
            ("/flow", 404, "name is missing"),
            ("/flow?name=", 404, "name is missing"),
            ("/flow?name=queue:blk", 404, "did you mean 'queue:bulk'?"),
            ("/flow?name=queue:", 400, "must be followed by the name of a queue"),
            (f"/flow?name={'x' * 250}", 400, "must be 1 to 200 printable characters"),
            (f"/flow?name={'x' * 301}", 400, "at most 300"),
            ("/flow?name=a%0Ab", 400, "must be printable"),
            (f"{BULK}&name=x", 400, "given 2 times"),
            (f"{BULK}&other=1", 400, "Unknown parameter"),
            ("/flows?offset=-1", 400, "offset"),
            ("/flows?other=1", 400, "Unknown parameter"),
        ],
    )
    def test_parameters_are_checked(self, path: str, status: int, text: str, reader: Browser, flows: Flows) -> None:
        page = reader.open(path)
        assert (page.status, text in page.text) == (status, True), page.text


class TestKey:
    """The page of one key: what waits, a pause, limits of its own; move and delete."""

    ANN = "/flow/key?name=queue:mail&key=ann"

    @pytest.fixture
    def mail(self, app: Celery, flows: Flows, filled: redis.Redis) -> Flows:
        """A flow "queue:mail" in which three messages of "ann" and one of "ben" wait."""
        app.conf.redis_queue_flow = {"queue:mail": {"fair": "{tenant}"}}
        flows.declare({"queue:mail": Flow(fair="{tenant}")})
        for number, tenant in enumerate(("ann", "ann", "ben", "ann")):
            headers = {"id": f"mail-{number}", "task": "shop.mail", "argsrepr": f"({number},)", "kwargsrepr": "{}"}
            message = {"body": "", "headers": headers, "properties": {"delivery_info": {}}}
            put(filled, "mail", tenant, json.dumps(message))
        return flows

    def test_shows_its_messages(self, reader: Browser, mail: Flows) -> None:
        page = reader.get(self.ANN)
        assert "Key ann of queue:mail" in page.text
        assert [found["href"] for _, found in page.tags if found.get("aria-current") == "true"] == ["/queues"]
        assert "Running 0 Waiting 3 State in force" in page.text
        assert [f"mail-{number}" in page.text for number in range(4)] == [True, True, False, True]
        assert "(1,)" not in page.text
        assert "(1,)" in reader.get(f"{self.ANN}&body=1").text
        assert "mail-3" not in reader.get(f"{self.ANN}&id_prefix=mail-1").text
        assert not [button for found in page.forms if found.method == "post" for button in found.buttons]
        assert reader.get("/flow?name=queue:mail").link("/flow/key?").endswith("key=ann")

    def test_pause_limit_and_reset(self, writer: Browser, mail: Flows, filled: redis.Redis) -> None:
        page = preview(writer, "flow-pause", self.ANN)
        assert "Pause the key 'ann' of queue:mail?" in page.text
        assert "neither those that wait with this key (3), nor later ones" in page.text
        assert not mail.key("queue:mail", "ann").paused
        done = writer.send(page.confirmation)
        assert "key ann of queue:mail: paused; 0 running, 3 waiting." in done.text
        assert "Paused: no message of this key starts" in done.text
        assert last_action(filled) == ("local", "flow-pause", "queue:mail", 1, "key ann")
        page = preview(writer, "flow-set", self.ANN, limit="2", rate="100/m")
        assert "Limit none 2 Rate none 100/m" in page.text
        assert "paused, limit 2, rate 100/m" in writer.send(page.confirmation).text
        assert "ann 0 3" in writer.get("/flow?name=queue:mail&changed=1").text
        page = preview(writer, "flow-reset", self.ANN)
        assert "The key stays paused." in page.text
        writer.send(page.confirmation)
        assert mail.key("queue:mail", "ann").own == {}
        writer.send(preview(writer, "flow-resume", self.ANN).confirmation)
        assert not mail.key("queue:mail", "ann").paused

    @pytest.mark.parametrize(("verb", "count"), [("delete", 3), ("move", 3)])
    def test_all_its_messages(self, writer: Browser, mail: Flows, filled: redis.Redis, verb: str, count: int) -> None:
        page = preview(writer, verb, self.ANN, matching="1", to="slow")
        place = " to slow" if verb == "move" else ""
        assert f"{verb.capitalize()} 3 messages of key ann of queue:mail{place}?" in page.text
        put(filled, "mail", "ann", "{}")
        done = writer.send(page.confirmation)
        assert f"{count} {verb}d." in done.text
        assert last_action(filled)[1:] == (verb, "queue:mail", 3, f"key ann{', slow' if verb == 'move' else ''}")
        waiting = {key: mail.key("queue:mail", key).waiting for key in ("ann", "ben")}
        assert waiting == {"ann": 1, "ben": 1}
        moved = filled.llen(FlowKeys("redis_queue").messages("0\0slow\0\0\0ann"))
        assert moved == (3 if verb == "move" else 0)

    @pytest.mark.parametrize(
        ("path", "status", "text"),
        [
            ("/flow/key?name=queue:mail", 404, "key is missing"),
            ("/flow/key?name=queue:blk&key=a", 404, "did you mean"),
            ("/flow/key?name=queue:slow&key=a", 400, "queue:slow has no keys"),
            (f"/flow/key?name=queue:mail&key={'x' * 256}", 400, "must be 1 to 255"),
            ("/flow/key?name=queue:mail&key=a%0Ab", 400, "must be printable"),
            (f"{ANN}&after=x", 400, "invalid place"),
            (f"{BULK}&changed=2", 400, "must be one of 0, 1"),
            (f"{BULK}&after=x", 400, "invalid place"),
        ],
    )
    def test_parameters_are_checked(self, path: str, status: int, text: str, reader: Browser, mail: Flows) -> None:
        page = reader.open(path)
        assert (page.status, text in page.text) == (status, True), page.text


class TestCeleryQueue:
    def test_links_to_its_flow(self, reader: Browser, flows: Flows) -> None:
        page = reader.get("/celery-queue?name=slow")
        assert "Flow queue:slow : limit 3, rate 100/m, burst 5; 0 running, 0 waiting." in page.text
        assert "Paused: no message starts" in page.text
        assert page.link("/flow?").endswith("/flow?name=queue:slow")
        assert not [link for link in reader.get(MAIL).links if "/flow?" in link]

    def test_the_list_of_queues_shows_which_are_paused(self, reader: Browser, flows: Flows) -> None:
        for path in ("/queues", "/"):
            text = reader.get(path).text.replace(NONE, "-")
            assert re.search(r"slow [\d. -]+ paused", text), path
            assert not re.search(r"mail [\d. -]+ paused", text), path

    def test_a_queue_without_a_flow_can_be_paused(self, writer: Browser, flows: Flows, filled: redis.Redis) -> None:
        page = preview(writer, "flow-pause", MAIL)
        assert "Pause queue:mail?" in page.text
        assert page.link("celery-queue").endswith("mail")
        assert flows.get("queue:mail") is None
        done = writer.send(page.confirmation)
        assert "queue:mail: paused." in done.text
        assert "This queue has no flow: it is only paused." in done.text
        assert last_action(filled) == ("local", "flow-pause", "queue:mail", 1, "")
        assert ("verb", "flow-set") not in [button for found in done.forms for button in found.buttons]
        page = preview(writer, "flow-resume", MAIL)
        done = writer.send(page.confirmation)
        assert "queue:mail: no limits." in done.text
        assert "Celery queue mail" in done.text
        assert flows.get("queue:mail") is None

    def test_without_an_app_it_returns_to_the_list(self, flows: Flows, filled: redis.Redis) -> None:
        writer = Browser(dashboard(filled, secret_key=KEY, allow_write=True))
        done = writer.send(preview(writer, "flow-resume", "/flow?name=queue:quiet").confirmation)
        assert "queue:quiet: no limits." in done.text
        assert "3 flows." in done.text

    def test_flows_that_cannot_be_read_do_not_hide_queues(
        self, reader: Browser, flows: Flows, filled: redis.Redis
    ) -> None:
        keys = FlowKeys("redis_queue")
        for key in (keys.config, keys.flags):
            filled.set(key, "x")
        for path in ("/", "/queues", MAIL):
            assert "mail" in reader.get(path).text
        assert reader.open("/flows").status == 503


class TestActing:
    def test_pause_and_resume(self, writer: Browser, flows: Flows, filled: redis.Redis) -> None:
        page = preview(writer, "flow-pause")
        assert "neither those that wait in this flow (7), nor later ones. Running messages go on: 2." in page.text
        assert not state(flows, "queue:bulk").paused
        assert "queue:bulk: paused, limit 40" in writer.send(page.confirmation).text
        assert state(flows, "queue:bulk").paused
        assert last_action(filled) == ("local", "flow-pause", "queue:bulk", 1, "")
        page = preview(writer, "flow-resume")
        assert "7 wait in this flow." in page.text
        assert "queue:bulk: limit 40" in writer.send(page.confirmation).text
        assert not state(flows, "queue:bulk").paused
        assert last_action(filled) == ("local", "flow-resume", "queue:bulk", 1, "")

    def test_change_limits(self, writer: Browser, flows: Flows, filled: redis.Redis) -> None:
        before = everything(filled)
        page = preview(writer, "flow-set", limit="20", rate="100/m", limit_each="none", rate_each="", burst="3")
        assert "Change the limits of queue:bulk?" in page.text
        assert "Limit 40 20 Rate none 100/m Limit of each key 4 none Burst 1 3" in page.text
        assert everything(filled) == before
        done = writer.send(page.confirmation)
        text = "queue:bulk: limit 20, rate 100/m, burst 3, rate of each key 2/s, burst of each key 3"
        assert f"{text}; in the code: limit 40, limit of each key 4, rate of each key 2/s." in done.text
        assert state(flows, "queue:bulk").limits == FlowLimits(20, None, 600.0, 3, 500.0, 3)
        detail = "limit 20, rate 100/m, limit of each key none, burst 3"
        assert last_action(filled) == ("local", "flow-set", "queue:bulk", 1, detail)
        assert "State changed" in done.text

    def test_a_flow_with_keys_has_limits_of_each_key_only(self, writer: Browser, flows: Flows) -> None:
        offered = [name for name, _ in writer.get(SYNC).form_with(("verb", "flow-set")).fields]
        assert offered == ["token", "name", "limit", "rate", "burst"]
        page = preview(writer, "flow-set", SYNC, limit="2")
        assert "Limit of each key 1 2" in page.text
        assert "shop.sync: limit of each key 2; in the code" in writer.send(page.confirmation).text
        assert state(flows, "shop.sync").limits == FlowLimits(limit_each=2)

    def test_reset(self, writer: Browser, flows: Flows, filled: redis.Redis) -> None:
        page = preview(writer, "flow-reset", SLOW)
        assert "in all workers: limit 10, rate 100/m, burst 5. Now: limit 3, rate 100/m, burst 5." in page.text
        assert "The flow stays paused." in page.text
        assert "queue:slow: paused, limit 10" in writer.send(page.confirmation).text
        assert state(flows, "queue:slow").limits.limit == 10
        assert last_action(filled) == ("local", "flow-reset", "queue:slow", 1, "")

    def test_a_pause_of_meanwhile_is_told(self, writer: Browser, flows: Flows) -> None:
        pages = writer.get(BULK), writer.get(SLOW)
        flows.pause("queue:bulk")
        flows.resume("queue:slow")
        for page, verb, text in zip(
            pages, ("flow-pause", "flow-resume"), ("It is paused already.", "It is not paused."), strict=True
        ):
            shown = writer.press(page, verb)
            assert text in shown.text
            assert [found for found in shown.forms if found.method == "post"] == []

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({}, "change what? Give a limit, a rate or a burst"),
            ({"limit": "x"}, "limit='x': must be a whole number, or none"),
            ({"limit": "-1"}, "limit=-1: must be a whole number from 0 to 1,000,000"),
            ({"limit": "1000001"}, "must be a whole number from 0 to 1,000,000"),
            ({"limit": "9" * 20}, "must be a whole number, or none"),
            ({"limit_each": "1.5"}, "limit_each='1.5': must be a whole number, or none"),
            ({"rate": "5"}, "rate='5': must be a number per s, m, h or d"),
            ({"rate_each": "0/s"}, "rate_each='0/s': must be a number per s, m, h or d"),
            ({"burst": "none"}, "burst='none': must be a whole number"),
            ({"burst": "0"}, "burst=0: must be a whole number from 1"),
            ({"burst": "x" * 301}, "at most 300"),
            ({"limit": ["1", "2"]}, "given 2 times"),
            ({"limit": "1", "name": "queue:blk"}, "did you mean 'bulk'?"),
            ({"limit": "1", "name": "shop.snc"}, "did you mean 'shop.sync'?"),
            ({"limit": "1", "name": "queue:"}, "must be followed by the name of a queue"),
            ({"limit": "1", "name": "queue:quiet"}, "has no flow"),
            ({"limit": "1", "name": "queue:mail"}, "has no flow"),
            ({"limit": "1", "name": None}, "Which flow?"),
            ({"limit": "1", "verb": "flow-stop"}, "must be one of flow-pause, flow-resume"),
            ({"limit": "1", "verb": "flow-reset", "name": "queue:mail"}, "has no flow"),
            ({"verb": "flow-pause", "name": "queue:miaal"}, "no such Celery queue; did you mean 'mail'?"),
            ({"limit_each": "1", "name": "shop.sync"}, "need a flow with fair=; use limit= and rate="),
        ],
    )
    def test_invalid_forms_change_nothing(
        self, changes: dict[str, Any], text: str, writer: Browser, flows: Flows, filled: redis.Redis
    ) -> None:
        found, before = writer.get(BULK).form_with(("verb", "flow-set")), everything(filled)
        refused = writer.send(found, None if "verb" in changes else ("verb", "flow-set"), **changes)
        assert (refused.status in (400, 404), text in refused.text) == (True, True), refused.text
        assert everything(filled) == before
