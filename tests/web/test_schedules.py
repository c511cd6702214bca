"""The pages of schedules: list, time line, one schedule; put, change, pause, resume, run, backfill, delete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any, get_args
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import schedule as interval

from redis_queue import DelayQueue
from redis_queue.celery.message.headers import SCHEDULE
from redis_queue.celery.schedules.rules import read_rules
from redis_queue.celery.schedules.runs import calendar_of
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions import schedules as actions
from redis_queue.operate.audit import Audit
from redis_queue.operate.schedules import ScheduleRow
from redis_queue.operate.time_line import DAY_MS, GAP_MS, MAX_TIME, Span, lines
from redis_queue.schedules.definition import Definition, Dst, Missed, Overlap
from redis_queue.schedules.state import REASONS, State
from redis_queue.schedules.store import Change, ScheduleStore, Stored
from redis_queue.store.keys import Keys, ScheduleKeys
from redis_queue.web import dashboard
from redis_queue.web import schedules as pages
from redis_queue.web.schedules import Line
from tests.support.cpu import least_seconds
from tests.support.servers import RedisServer
from tests.support.wait import must
from tests.support.web.browser import Browser, Page, pages_from
from tests.support.web.contents import KEY, Open, delayed_of, everything, fill_schedules

PUT = ("verb", "schedule-put")
STORED = ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0))
DASH = "\N{EN DASH}"
START = 1_800_000_000_000 // GAP_MS * GAP_MS


@pytest.fixture
def schedules(app: Celery, filled: redis.Redis) -> Schedules:
    """The schedules of the app: one that is due often, one at night, a paused one, one that is over, a broken one."""
    app.main = "app"
    fill_schedules(filled)
    return AppAccess(app).schedules


def one(name: str) -> str:
    return f"/schedule?name={quote(name, safe='')}"


def act(browser: Browser, name: str, verb: str, **changes: Any) -> tuple[Page, Page]:
    """Send the form of the page of *name*; return its preview and the page after it was confirmed."""
    preview = browser.press(browser.get(one(name)), f"schedule-{verb}", **changes)
    assert preview.status == 200, preview.text
    return preview, browser.send(preview.confirmation)


def last_action(client: redis.Redis) -> tuple[str, str, int]:
    line = Audit(client, "redis_queue").last()[0]
    return line.verb, line.queue, line.count


def definition_of(schedules: Schedules, name: str) -> Definition:
    return must(schedules.find(name).definition)


def listed(page: Page) -> list[str]:
    """Return the names in the table, in order, by the row forms of a person who may act."""
    return [dict(found.fields)["name"] for found in page.forms if ("verb", "schedule-delete") in found.buttons]


def labels(page: Page) -> list[str]:
    """Return the texts of the time lines."""
    return [found["aria-label"] for tag, found in page.tags if tag == "svg" and found.get("viewbox") == "0 0 1000 16"]


class TestList:
    def test_shows_what_is_sent_next_first(self, writer: Browser, schedules: Schedules) -> None:
        page = writer.get("/schedules")
        assert listed(page) == ["often", "paused", "nightly", "broken", "over"]
        text = page.text.replace(DASH, "-")
        assert "5 schedules." in text
        often = (
            r"often every 1 min UTC shop\.report \S+ \S+ in 1 min \d+ s not ended runs 3 s late 9 2 1 late , 2 overlap"
        )
        assert re.search(often, text)
        assert ", 3 paused , 4 taken active" in text
        assert re.search(
            r"paused 30 2 \* \* \* Europe/Berlin shop\.report - - 9 2 .* paused until \d+ \w+ \d+:\d+", text
        )
        assert "broken - - 0 0 0 unreadable a definition that is not JSON" in text
        assert "over 30 2 * * * Europe/Berlin shop.report - - 5 0 0 over" in text
        assert page.link("/task?").endswith("id=runs")

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("name=ni", ["nightly"]),
            ("name=report", ["often", "paused", "nightly", "over"]),
            ("state=paused", ["paused"]),
            ("state=active", ["often", "nightly"]),
            ("state=unreadable", ["broken"]),
            ("state=over&name=o", ["over"]),
            ("state=over&name=x", []),
            ("sort=name", ["broken", "nightly", "often", "over", "paused"]),
            ("sort=task", ["broken", "nightly", "often", "over", "paused"]),
            ("sort=runs", ["often", "paused", "over", "broken", "nightly"]),
            ("sort=failed", ["often", "paused", "broken", "nightly", "over"]),
            ("sort=skipped&name=report", ["often", "paused", "nightly", "over"]),
        ],
    )
    def test_search_and_order(self, query: str, found: list[str], writer: Browser, schedules: Schedules) -> None:
        page = writer.get(f"/schedules?{query}")
        assert listed(page) == found
        assert bool(found) or "No match among 5 schedules." in page.text

    @pytest.mark.parametrize("query", ["", "sort=name", "name=many", "state=active&sort=runs"])
    def test_many_have_pages(self, query: str, writer: Browser, filled: redis.Redis) -> None:
        store_many(ScheduleStore(DelayQueue("scheduled", filled)), 120)
        seen = [name for page in pages_from(writer, f"/schedules?{query}") for name in listed(page)]
        assert seen == [f"many-{number:05}" for number in range(120)]

    def test_only_the_first_ones_are_sorted(self, writer: Browser, filled: redis.Redis, monkeypatch: Any) -> None:
        monkeypatch.setattr(pages, "MAX_SORTED", 7)
        store_many(ScheduleStore(DelayQueue("scheduled", filled)), 20)
        page = writer.get("/schedules?sort=name&limit=5")
        assert "Only the 7 that are sent next are sorted." in page.text
        page = writer.get(page.link("after=5"))
        assert listed(page) == ["many-00005", "many-00006"]
        assert not [link for link in page.links if "after=" in link]

    def test_without_schedules_it_says_how_to_begin(self, client: redis.Redis, writer: Browser) -> None:
        page = writer.get("/schedules")
        assert "app.conf.redis_queue_schedules = True" in page.text
        assert "or here" in page.text
        assert page.form_with(PUT).action.endswith("/actions/schedule/preview")
        without_app = Browser(dashboard(client, secret_key=KEY, allow_write=True)).get("/schedules")
        assert "or here" not in without_app.text
        assert not [found for found in without_app.forms if PUT in found.buttons]

    def test_without_an_app_schedules_can_be_paused(self, filled: redis.Redis, schedules: Schedules) -> None:
        browser = Browser(dashboard(filled, secret_key=KEY, allow_write=True))
        buttons = {verb for found in browser.get(one("often")).forms for _, verb in found.buttons}
        assert buttons == {"schedule-pause", "schedule-delete"}
        act(browser, "often", "pause")
        assert schedules.find("often").paused

    def test_a_broker_that_is_away_hides_nothing(self, filled: redis.Redis, schedules: Schedules) -> None:
        app = Celery("app", broker="amqp://127.0.0.1:1//", set_as_current=False)
        with app:
            app.conf.redis_queue_url = "redis://localhost"
            delayed_of(app, filled)
            browser = Browser(dashboard(app, secret_key=KEY, allow_write=True))
            assert len(listed(browser.get("/schedules"))) == 5
            _, done = act(browser, "often", "run")
            assert "sent as task" in done.text

    @pytest.mark.parametrize(
        ("path", "status", "text"),
        [
            ("/schedules?sort=due", 400, "sort='due': must be one of next, name"),
            ("/schedules?state=gone", 400, "state='gone': must be one of"),
            ("/schedules?after=x", 400, "after='x': must be an integer"),
            ("/schedules?other=1", 400, "Unknown parameter"),
            ("/schedule", 404, "name is missing"),
            ("/schedule?name=nightl", 404, "did you mean 'nightly'?"),
            (f"/schedule?name={'x' * 250}", 404, "must be 1 to 200 printable characters"),
            ("/schedule?name=a%0Ab", 400, "must be printable"),
            ("/schedule?name=often&name=x", 400, "given 2 times"),
            ("/schedule?name=often&body=2", 400, "body"),
        ],
    )
    def test_parameters_are_checked(
        self, path: str, status: int, text: str, reader: Browser, schedules: Schedules
    ) -> None:
        page = reader.open(path)
        assert (page.status, text in page.text) == (status, True), page.text


def row_of(app: Celery, rules: Any, **known: Any) -> ScheduleRow:
    """Return the row of a schedule that was stored at START, with *rules* in New York."""
    state = State("0123abcd", 0, START, **{name: known.pop(name) for name in ("runs",) if name in known})
    definition = Definition("one", "t", read_rules(rules), timezone="America/New_York", **known)
    due = calendar_of(definition).next(START, START) or 0
    return ScheduleRow.of(AppAccess(app), Stored("one", replace(state, due=due), definition, b"", due))


def spans_of(row: ScheduleRow, start: int = START) -> list[Span]:
    ((_, spans),) = lines([row], start)
    return spans


HOUR = 3_600_000


class TestTimeLine:
    """The spans of a line against the due times, one by one."""

    @pytest.mark.parametrize(
        "rules",
        [
            "*/15 * * * *",
            "0 */2 * * *",
            "30 2 * * *",
            "7,9 */3 * * *",
            "0 0 29 2 *",
            "every 7 h",
            ["0 9 * * *", "every 5 h"],
            "0,14 * * * *",
            "* 9-11 * * *",
            "*/5 * * * *",
            "* * * * *",
            "0-5 */4 * * *",
            "every 20 s",
        ],
    )
    @pytest.mark.parametrize("start", [START, 1_793_491_200_000, 1_774_051_200_000])
    def test_each_due_time_is_drawn_and_little_else(self, rules: Any, start: int, app: Celery) -> None:
        row = row_of(app, rules)
        row = replace(row, due=calendar_of(row.schedule.definition).next(start, START) or 0)  # type: ignore[arg-type]
        spans = spans_of(row, start)
        dues = calendar_of(row.schedule.definition).occurrences(start, start + DAY_MS - 1, 10_000, START)  # type: ignore[arg-type]
        assert len(spans) <= 96
        assert [due for due in dues if not any(span.start <= due <= span.end for span in spans)] == []
        known = set(dues)
        assert [span for span in spans if span.start not in known] == []
        # A span ends within a quarter of an hour after its last time, and has no longer pauses.
        for span in spans:
            inside = [due for due in dues if span.start <= due <= span.end]
            assert all(after - due < 2 * GAP_MS for due, after in pairwise([*inside, span.end]))
        assert all(first.end < second.start for first, second in pairwise(spans))

    @pytest.mark.parametrize(
        ("known", "count"),
        [
            ({"until": START + 3 * HOUR}, 3),
            ({"max_runs": 5}, 5),
            ({"max_runs": 5, "runs": 3}, 2),
            ({"max_runs": 5000}, 23),
            ({}, 23),
        ],
    )
    def test_it_ends_with_the_schedule(self, known: dict[str, Any], count: int, app: Celery) -> None:
        expected = [Span(START + hours * HOUR, START + hours * HOUR) for hours in range(1, count + 1)]
        assert spans_of(row_of(app, "every 1 h", **known)) == expected

    def test_a_span_ends_with_the_schedule(self, app: Celery) -> None:
        (span,) = spans_of(row_of(app, "every 10 s", until=START + HOUR))
        assert span == Span(START + 10_000, START + HOUR)

    def test_an_overdue_run_is_at_the_begin(self, app: Celery) -> None:
        row = replace(row_of(app, "every 10 h"), due=START - HOUR)
        first, *_ = spans_of(row)
        assert first == Span(START - HOUR, START - HOUR)
        assert Line.of(row, [first], START).marks == "M0 0V16"

    def test_only_the_next_run_is_drawn_of_those_for_which_no_time_is_left(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds = iter([0.0, 0.1, MAX_TIME - 0.01, MAX_TIME, 2.0])
        monkeypatch.setattr("redis_queue.operate.time_line.monotonic", lambda: next(seconds))
        many = row_of(app, [f"{minute} 3 * * *" for minute in range(10)])
        found = [spans for _, spans in lines([many] * 4, START)]
        assert [len(spans) for spans in found] == [1] * 4
        assert [spans[0].start < spans[0].end for spans in found] == [True] * 2 + [False] * 2

    def test_paused_ones_have_no_line(self, reader: Browser, schedules: Schedules) -> None:
        page = reader.get("/schedules")
        assert len(labels(page)) == 2
        assert labels(reader.get(one("paused"))) == []

    def test_its_text_names_the_times(self, reader: Browser, schedules: Schedules) -> None:
        schedules.put("hourly", "0 * * * *", "t", timezone="UTC")
        often = labels(reader.get(one("often")))[0]
        assert re.fullmatch(r"\d\d:\d\d to \d\d:\d\d often \(UTC\)", often)
        (label,) = labels(reader.get(one("hourly")))
        dues = [f"{at:%H:%M}" for at in schedules.next_runs("hourly", 10)]
        assert re.fullmatch(rf"{', '.join(dues)} and 1[34] more \(UTC\)", label)


class TestOne:
    def test_shows_figures_runs_and_events(self, reader: Browser, schedules: Schedules) -> None:
        text = reader.get(one("often")).text.replace(DASH, "-")
        for fact in (
            "Runs 9 Failed 2 Skipped: late 1 too late, or a newer one was due Skipped: overlap 2",
            "Skipped: taken 4 the key of the unique task was taken, or the task sent nothing",
            "Rules every 1 min",
            "Sent, not ended runs",
            "3 s not ended -",
            "1 s failed",
            "error",
            "no broker",
            "skipped 3 runs",
            "stocktaking until",
            "Arguments are hidden.",
        ):
            assert fact in text, fact
        assert "hunter2" not in text
        assert "argument" not in text.replace("Arguments are hidden", "")

    def test_headers_only_on_request(self, writer: Browser, schedules: Schedules) -> None:
        options: dict[str, Any] = {"priority": 3, "headers": {"tenant": "acme"}, "shadow": "acme"}
        schedules.put("special", "0 3 * * *", "t", **options)
        text = writer.get(one("special")).text
        assert "acme" not in text
        assert 'Options {"priority": 3, "queue": "celery"}' in text
        assert "Arguments are hidden." in text
        assert "to change it, show its arguments" in text
        assert '"tenant": "acme"' in writer.get(f"{one('special')}&body=1").text

    def test_arguments_on_request_without_secrets(self, reader: Browser, schedules: Schedules) -> None:
        page = reader.get(one("often"))
        text = reader.get(page.link("body=1")).text
        assert 'Args ["argument"] Kwargs {"token": *' in text
        assert "hunter2" not in text

    def test_next_runs_are_those_of_the_schedule(self, reader: Browser, schedules: Schedules) -> None:
        text = reader.get(one("nightly")).text
        runs = schedules.next_runs("nightly", 11)
        shown = [f"{at.astimezone(ZoneInfo('Europe/Berlin')):%F %T} {at:%F %T}" for at in runs]
        assert [entry in text for entry in shown] == [True] * 10 + [False]

    def test_links_to_the_task_of_a_run(self, reader: Browser, schedules: Schedules) -> None:
        page = reader.get(one("often"))
        assert {"/task?id=runs", "/task?id=first"} <= set(page.links)

    def test_a_task_links_to_its_schedule(self, writer: Browser, schedules: Schedules) -> None:
        _, done = act(writer, "nightly", "run")
        id_ = re.search(r"sent as task (\S+)\.", done.text)
        assert id_
        page = writer.get(f"/task?id={id_[1]}")
        assert page.link("/schedule?").endswith("name=nightly")
        assert not [link for link in writer.get("/task?id=task-1").links if link.startswith("/schedule?")]

    @pytest.mark.parametrize("schedule", ["x\n", 7, "", None, "x" * 300])
    def test_a_header_of_another_program_is_no_link(self, schedule: Any, reader: Browser, app: Celery) -> None:
        due = datetime.now(timezone.utc) + timedelta(hours=1)
        app.send_task("t", task_id="other", eta=due, headers={SCHEDULE: schedule})
        assert not [link for link in reader.get("/task?id=other").links if link.startswith("/schedule?")]

    def test_an_unreadable_one_can_only_be_deleted(self, writer: Browser, schedules: Schedules) -> None:
        page = writer.get(one("broken"))
        assert "It is not sent: a definition that is not JSON" in page.text
        assert {verb for found in page.forms for _, verb in found.buttons} == {"schedule-delete"}
        act(writer, "broken", "delete")
        assert schedules.get("broken") is None

    @pytest.mark.parametrize(
        ("definition", "since"),
        [({"exclude": [1]}, None), ({"rules": [1]}, None), ({}, "-100000000000000"), ({}, "999999999999999")],
    )
    def test_what_another_program_stored_is_shown_and_replaced(
        self, writer: Browser, schedules: Schedules, filled: redis.Redis, definition: dict[str, Any], since: str | None
    ) -> None:
        schedules.put("own", interval(timedelta(hours=5), relative=True), "shop.report")
        text = must(filled.hget(ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0)).schedules, "own"))
        assert isinstance(text, bytes)
        filled.hset(
            ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0)).schedules,
            "own",
            json.dumps({**json.loads(text), **definition}),
        )
        if since is not None:
            words = str(
                must(filled.hget(ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0)).schedule_states, "own")),
                "ascii",
            ).split()
            filled.hset(
                ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0)).schedule_states,
                "own",
                " ".join([*words[:2], since, *words[3:]]),
            )
        for address in (one("own"), "/schedules"):
            assert writer.get(address).status == 200
        assert "It is not sent:" in writer.get(one("own")).text
        put = schedules.put("own", 3600, "shop.report")
        assert (put.error, writer.get(one("own")).status) == ("", 200)

    def test_the_error_of_a_failed_run_is_shown(
        self, reader: Browser, schedules: Schedules, filled: redis.Redis
    ) -> None:
        now = datetime.now(timezone.utc)
        failure = Failure("first", "shop.report", "celery", "one", now, exception="KeyError", message="'eu'")
        Failures(filled, "redis_queue").keep([failure], 100, 7.0)
        assert "failed KeyError: 'eu'" in reader.get(one("often")).text

    def test_names_that_no_page_takes_are_no_links(self, writer: Browser, filled: redis.Redis) -> None:
        keys = STORED
        for name in (b"\xff", b"", b"a\nb", b"z" * 300):
            filled.zadd(keys.schedule_looks, {name: 5})
        page = writer.get("/schedules")
        assert "4 schedules." in page.text
        assert page.text.count("its name is invalid") == 4
        assert not [link for link in page.links if link.startswith("/schedule?")]

    def test_changes_by_people_are_those_of_the_schedule(self, writer: Browser, schedules: Schedules) -> None:
        act(writer, "often", "pause", reason="stocktaking again")
        act(writer, "nightly", "pause")
        text = writer.get(one("often")).text
        assert "schedule-pause often 1 reason stocktaking again" in text
        assert "schedule-pause nightly" not in text
        assert "Nobody has changed it" in writer.get(one("over")).text


class TestActions:
    def test_put(self, writer: Browser, schedules: Schedules, filled: redis.Redis) -> None:
        asked, before = writer.get("/schedules").form_with(PUT), everything(filled)
        values = {"name": "new", "rules": "0 3 * * *; every 2 h", "task": "shop.x", "args": '["a"]', "queue": "slow"}
        values |= {"missed": "all", "window": "90s", "max_runs": "3", "exclude": "2030-12-25", "timezone": "Asia/Tokyo"}
        preview = writer.send(asked, PUT, **values)
        assert everything(filled) == before
        assert "Store the schedule new? The app has no task 'shop.x'" in preview.text
        found = re.search(r"Next runs: (.*?) UTC, (.*?) UTC, (.*?) UTC\.", preview.text)
        assert found
        done = writer.send(preview.confirmation)
        assert done.text.count("new: 0 3 * * *; every 2 h. Next run:") == 1
        assert "Schedule new" in done.text
        definition = definition_of(schedules, "new")
        assert (definition.task, list(definition.args), definition.missed) == ("shop.x", ["a"], "all")
        assert (definition.window, definition.max_runs, definition.options) == (90_000, 3, {"queue": "slow"})
        # Intervals count from when it was stored: the cron rule is due as shown.
        assert any(f"{at:%F %T}" in found[0] for at in schedules.next_runs("new", 3))
        assert last_action(filled) == ("schedule-put", "new", 1)

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            ({"rules": ""}, "A schedule needs rules"),
            ({"task": ""}, "A schedule needs the name of a task."),
            ({"name": ""}, "Which schedule?"),
            ({"rules": "61 * * * *"}, "61"),
            ({"args": "[1"}, "args"),
            ({"timezone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'"),
            ({"missed": "some"}, "must be one of"),
            ({"jitter": "soon"}, "must be"),
            ({"max_runs": "-1"}, "must be a whole number"),
            ({"rules": "x" * 5000}, "must have at most"),
        ],
    )
    def test_a_bad_schedule_is_refused(
        self, values: dict[str, str], text: str, writer: Browser, schedules: Schedules, filled: redis.Redis
    ) -> None:
        before = everything(filled)
        asked = writer.get("/schedules").form_with(PUT)
        page = writer.send(asked, PUT, **{"name": "new", "rules": "0 3 * * *", "task": "t", **values})
        assert (page.status, text in page.text) == (400, True), page.text
        assert everything(filled) == before

    def test_a_form_that_is_sent_unchanged_changes_nothing(self, writer: Browser, schedules: Schedules) -> None:
        known: dict[str, Any] = {"args": ["a", 1], "kwargs": {"k": {"x": None}}, "queue": "slow", "missed": "skip"}
        known |= {
            "window": 90,
            "overlap": "queue",
            "jitter": 0.5,
            "expires": "next",
            "max_runs": 9,
            "exclude": ["2030-12-25"],
        }
        known |= {"pause_after_failures": 3, "until": datetime(2032, 1, 1, 12, 0, 0, 1000, tzinfo=timezone.utc)}
        known |= {"priority": 5, "countdown": 5, "dst": "celery", "overlap_timeout": 60.5}
        rules = [
            "0 3 * * 1",
            "every 90 s",
            {"cron": "0 4 13 * *", "weekdays": [5]},
            {"every": 60_500, "relative": True},
        ]
        schedules.put("full", rules, "shop.x", timezone="Asia/Tokyo", **known)
        preview = writer.send(writer.get(f"{one('full')}&body=1").form_with(PUT, ("name", "full")), PUT)
        assert "It is stored already." in preview.text

    def test_change(self, writer: Browser, schedules: Schedules) -> None:
        asked = writer.get(one("nightly")).form_with(PUT, ("name", "nightly"))
        preview = writer.send(asked, PUT, rules="45 2 * * *", jitter="5s")
        assert "Rules 30 2 * * * 45 2 * * *" in preview.text
        done = writer.send(preview.confirmation)
        assert "nightly: 45 2 * * *. Next run:" in done.text
        definition = definition_of(schedules, "nightly")
        assert (definition.rules, definition.jitter) == ([{"cron": "45 2 * * *"}], 5000)
        assert definition.timezone == "Europe/Berlin"

    def test_a_form_that_would_show_arguments_asks_for_that(self, writer: Browser, schedules: Schedules) -> None:
        schedules.put("special", "0 3 * * *", "t", args=["a"])
        page = writer.get(one("special"))
        assert "to change it, show its arguments" in page.text
        assert not [found for found in page.forms if PUT in found.buttons]

    def test_schedules_of_the_code_or_another_app_have_no_form(self, writer: Browser, schedules: Schedules) -> None:
        for name, known, why in (
            ("static", {"static": True}, "it is in the beat_schedule of its app: change it there"),
            ("other", {"app": "other"}, "it belongs to the app 'other'"),
            ("secret", {"kwargs": {"password": "hunter2"}}, "the form cannot express its kwargs"),
        ):
            made = replace(definition_of(schedules, "nightly"), name=name, **known)
            assert schedules.store.change([Change(name, b"", State("0123abcd", START * 2, START), made.text(), 1)])[0]
            page = writer.get(f"{one(name)}&body=1")
            assert why in page.text
            assert not [found for found in page.forms if PUT in found.buttons]

    def test_pause_and_resume(self, writer: Browser, schedules: Schedules, filled: redis.Redis) -> None:
        preview, done = act(writer, "often", "pause", until="2h", reason="stocktaking")
        assert "No run is sent until" in preview.text
        assert "often: paused until" in done.text
        schedule = schedules.find("often")
        assert schedule.pause_ends is not None
        assert timedelta(minutes=119) < schedule.pause_ends - datetime.now(timezone.utc) < timedelta(minutes=121)
        assert "stocktaking" in writer.get(one("often")).text
        _, done = act(writer, "often", "resume", catch_up="1")
        assert "State active" in done.text
        assert schedules.events("often")[0].text == "catches up"
        assert last_action(filled) == ("schedule-resume", "often", 1)

    def test_a_pause_ends_at_a_time_of_the_page(self, open_dashboard: Open, schedules: Schedules) -> None:
        writer = open_dashboard(allow_write=True, timezone="Asia/Tokyo")
        preview, _ = act(writer, "often", "pause", until="2030-01-01 09:00:00")
        assert "until 2030-01-01 00:00:00 UTC" in preview.text
        assert schedules.find("often").pause_ends == datetime(2030, 1, 1, tzinfo=timezone.utc)

    def test_run_now(self, writer: Browser, schedules: Schedules, filled: redis.Redis) -> None:
        _, done = act(writer, "nightly", "run")
        id_ = re.search(r"sent as task (\S+)\.", done.text)
        assert id_
        assert schedules.runs("nightly")[0].id == id_[1]
        assert "by hand" in done.text
        assert schedules.find("nightly").runs == 1

    def test_backfill(self, writer: Browser, schedules: Schedules, filled: redis.Redis) -> None:
        asked = writer.get(one("often")).form_with(("verb", "schedule-backfill"))
        preview = writer.send(asked, ("verb", "schedule-backfill"), start="-10m")
        found = re.search(r"Send (\d+) runs of often\?", preview.text)
        assert found
        done = writer.send(preview.confirmation)
        assert f"{found[1]} sent." in done.text
        assert schedules.find("often").runs == 9 + int(found[1])
        assert last_action(filled) == ("schedule-backfill", "often", int(found[1]))

    def test_delete(self, writer: Browser, schedules: Schedules) -> None:
        _, done = act(writer, "often", "delete")
        assert "often deleted." in done.text
        assert "4 schedules." in done.text
        assert schedules.get("often") is None

    def test_each_row_has_its_actions(self, writer: Browser, schedules: Schedules) -> None:
        page = writer.get("/schedules")
        assert [verb for _, verb in page.form_with(("verb", "schedule-delete"), ("name", "often")).buttons] == [
            "schedule-pause",
            "schedule-run",
            "schedule-delete",
        ]
        assert "schedule-resume" in {
            verb for _, verb in page.form_with(("verb", "schedule-delete"), ("name", "paused")).buttons
        }
        preview = writer.send(page.form_with(("verb", "schedule-pause"), ("name", "often")), ("verb", "schedule-pause"))
        writer.send(preview.confirmation)
        assert schedules.find("often").paused

    def test_values_of_the_form_are_those_of_a_definition(self) -> None:
        usual = Definition("-", "-", ())
        choices = {argument.name: argument.choices for argument in actions.PUT if argument.choices}
        assert choices == {"missed": get_args(Missed), "overlap": get_args(Overlap), "dst": get_args(Dst)}
        assert [found[0] for found in choices.values()] == [usual.missed, usual.overlap, usual.dst]
        assert set(pages.REASONS) == set(REASONS)


MANY = 10_000
MAX_SECONDS = 0.1
PAGE_BYTES = 400_000
"""Bytes that Redis sends for a page of 50 schedules with their events."""


def store_many(store: ScheduleStore, count: int) -> None:
    """Store schedules that are sent one after the other, each with another rule."""
    now = store.now()
    for first in range(0, count, 500):
        changes = []
        for number in range(first, min(first + 500, count)):
            rules = [{"cron": f"{number % 60} {number // 60 % 24} * * *"}]
            made = Definition(f"many-{number:05}", "shop.many", rules, timezone="Europe/Berlin", args=("x" * 100,))
            due = now + 60_000 + number
            changes.append(Change(made.name, b"", State("0123abcd", due, now), made.text(), due))
        assert all(store.change(changes))


@pytest.fixture(scope="module")
def crowded() -> Iterator[redis.Redis]:
    with RedisServer() as server, server.client() as client:
        store_many(ScheduleStore(DelayQueue("scheduled", client)), MANY)
        yield client


class TestMany:
    @pytest.mark.parametrize(
        "path", ["/schedules", "/schedules?after=9960", one("many-00007"), "/schedules?sort=runs", "/schedules?name=9"]
    )
    def test_a_page_is_quick_and_reads_little(self, path: str, crowded: redis.Redis) -> None:
        browser = Browser(dashboard(crowded, secret_key=KEY, allow_write=True))
        page = browser.get(path)
        assert len(page.source) < 400_000
        before = crowded.info("stats")["total_net_output_bytes"]
        browser.get(path)
        is_search = "sort" in path or "name=9" in path
        assert crowded.info("stats")["total_net_output_bytes"] - before < PAGE_BYTES * (5 if is_search else 1)
        limit = MAX_SECONDS * (3 if is_search else 1)
        assert least_seconds(lambda: browser.raw(path), limit, crowded) <= limit
