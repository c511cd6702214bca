"""The overview: health, numbers with links, curves, and what workers reported."""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue import RedisQueue
from redis_queue.basics.histogram import Histogram
from redis_queue.basics.times import from_ms
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.doctor.finding import Finding
from redis_queue.errors import StoreUnavailableError
from redis_queue.monitor.model import Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.inspector import Inspector
from redis_queue.store.keys import MonitorKeys
from redis_queue.web import context as health
from redis_queue.web import dashboard
from redis_queue.web.context import CHECK_EVERY, EXTENSION, MAX_CHECKED, Context, Seen, Watch
from tests.support.clock import Clock
from tests.support.wait import must, wait_until
from tests.support.web.browser import Browser, Page
from tests.support.web.contents import KEY
from tests.support.web.shop import fill_shop

KEYS = MonitorKeys("redis_queue")


def charts(page: Page) -> dict[str, dict[str, Any]]:
    """Return the data of each chart by its id."""
    return {found["id"]: json.loads(found["data-chart"]) for _, found in page.tags if "data-chart" in found}


def values(chart: dict[str, Any]) -> dict[str, list[float | None]]:
    return {series["name"]: series["values"] for series in chart["series"]}


class TestNumbers:
    def test_are_those_of_reports_and_queues(self, reader: Browser) -> None:
        text = reader.get().text
        for fact in ("Running 2", "Workers 1", "Failed, 10 min 1 10 % of 10", "Failures kept 2", "Ready 3"):
            assert fact in text, fact

    def test_an_abandoned_queue_is_not_the_oldest(self, reader: Browser, client: redis.Redis) -> None:
        assert "1 unread" in reader.get().text
        long_ago = Clock(round(time.time() * 1000) - 3 * 86_400_000)
        RedisQueue("abandoned", client, clock=long_ago).put("x")
        text = reader.get().text
        assert "2 unread" in text
        assert "Oldest 3 d" not in text
        assert RedisQueue("abandoned", client).get(timeout=1) is not None
        assert "1 unread" in reader.get().text

    def test_nor_is_a_paused_queue(self, app: Celery, client: redis.Redis) -> None:
        sent = round(time.time() * 1000) - 7_200_000
        client.lpush("celery", json.dumps({"headers": {"redis_queue_sent": sent}, "body": ""}))
        now = from_ms(sent)
        Reports(client, "redis_queue").write(WorkerRow("one@host", now, now, queues=("celery",)))
        browser = Browser(dashboard(app, secret_key=KEY))
        assert "Oldest 2 h" in browser.get().text
        StoredTasks.of(app).flow.pause("queue:celery")
        text = browser.get().text
        assert "1 unread" in text
        assert "Oldest 2 h" not in text

    def test_each_leads_to_what_it_counts(self, reader: Browser) -> None:
        source = reader.get().source
        tiles = source[source.index('class="tiles"') : source.index("</dl>")]
        for target in ("/queues", "/running", "/workers", "/failures", "/failures?since=10m", "/scheduled", "/dead"):
            assert f'href="{target}"' in tiles
        assert tiles.count("<dt>") == tiles.count("<a ")

    def test_without_an_app(self, filled: redis.Redis) -> None:
        text = Browser(dashboard(filled, secret_key=KEY)).get().text
        assert "Running 2" in text
        assert "Workers 1" in text

    def test_reports_that_cannot_be_read_hide_no_queue(self, reader: Browser, filled: redis.Redis) -> None:
        for key in (KEYS.series, KEYS.current, KEYS.workers):
            before = filled.dump(key)
            filled.delete(key)
            filled.set(key, "x")
            text = reader.get().text
            assert "orders" in text
            assert "cannot be read" in text
            filled.delete(key)
            if before is not None:
                filled.restore(key, 0, before)


class TestCurves:
    @pytest.mark.parametrize(
        ("span", "points"), [("15m", 15), ("1h", 60), ("6h", 72), ("2d", 48), ("30d", 120), ("90d", 90)]
    )
    def test_each_span_has_its_runs(self, span: str, points: int, reader: Browser) -> None:
        found = charts(reader.get(f"/?span={span}"))
        runs = values(found["plot-runs"])
        assert {len(counts) for counts in runs.values()} == {points}
        sums = {name: sum(count or 0 for count in counts) for name, counts in runs.items()}
        assert sums == {"succeeded": 7, "failed": 1, "retried": 2, "revoked": 0}
        for name in ("duration", "waiting", "lateness"):
            known = {quantile: found_values[-1] for quantile, found_values in values(found[f"plot-{name}"]).items()}
            assert known["p50"] is not None
            assert known["p99"] is not None
            assert known["p50"] < 0.1
            assert known["p99"] > 2

    @pytest.mark.parametrize(
        ("query", "succeeded", "of"),
        [
            ("", 12, "all tasks"),
            ("?task=remind", 7, "shop.remind in celery"),
            ("?queue=celery", 12, "2 tasks found"),
            ("?task=nothing", 0, "0 tasks found"),
            ("?one=shop.other&of=celery", 5, "shop.other in celery"),
        ],
    )
    def test_those_of_the_history_are_of_the_tasks_that_match(
        self, query: str, succeeded: int, of: str, reader: Browser, filled: redis.Redis
    ) -> None:
        Reports(filled, "redis_queue").write(tallies={Series("shop.other", "celery"): Tally(5)})
        page = reader.get(f"/history{query}")
        assert sum(count or 0 for count in values(charts(page)["plot-runs"])["succeeded"]) == succeeded
        assert f"Curves of {of}." in page.text

    @pytest.mark.parametrize("path", ["/", "/history", "/history?span=2d"])
    def test_changes_of_the_release_are_marked(self, path: str, reader: Browser, filled: redis.Redis) -> None:
        now = datetime.now(timezone.utc)
        Reports(filled, "redis_queue").write(WorkerRow("w", now, now, release="2.0<b>"))
        page = reader.get(path)
        for name in ("runs", "duration", "waiting", "lateness"):
            marks = charts(page)[f"plot-{name}"]["marks"]
            assert [release for _, release in marks] == ["2.0<b>", "release"]
            assert all(abs(at - now.timestamp()) < 60 for at, _ in marks)
        assert "Releases in this time: 2.0<b>" in page.text
        assert "release=2.0%3Cb%3E" in page.link("release=2.0")

    def test_the_legend_has_the_quantiles_of_the_whole_span(self, reader: Browser) -> None:
        source = reader.get("/history?span=15m").source
        figure = source[source.index('id="chart-duration"') :]
        legend = figure[: figure.index("</ul>")]
        assert "whole span" in legend
        assert re.findall(r"(p\d\d) <b>(.*?)</b>", legend) == [("p50", "20 ms"), ("p95", "3 s"), ("p99", "3 s")]

    def test_a_release_is_compared_with_the_time_before_it(self, client: redis.Redis, app: Celery) -> None:
        now = datetime.now(timezone.utc)
        past = round(time.time() * 1000) - 600_000
        before = {Series("shop.pay", "slow"): Tally(1000, 1, duration=Histogram.of([100] * 1000))}
        Reports(client, "redis_queue", lambda: past).write(WorkerRow("w", now, now, release="1.0"), tallies=before)
        after = {
            Series("shop.pay", "slow"): Tally(200, 50, duration=Histogram.of([400] * 200)),
            Series("shop.a", "slow"): Tally(300),
        }
        Reports(client, "redis_queue", lambda: past + 60_000).write(
            WorkerRow("w", now, now, release="2.0"), tallies=after
        )
        reader = Browser(dashboard(app, secret_key=KEY))
        page = reader.get(reader.get("/history").link("release=2.0"))
        row = "shop.pay slow 1,000 → 200 0.1 % → 25.0 % 100 ms → 400 ms 100 ms → 400 ms fails more often"
        assert row in page.text
        assert re.search(r"shop\.a slow 0 → 300 . → 0\.0 % . → . . → . new", page.text)
        assert page.text.index("shop.pay slow") < page.text.index("shop.a slow")
        assert "no data from before" not in page.text
        assert "There is no data from before this release." in reader.get("/history?release=1.0").text
        assert "shop.pay slow" not in reader.get("/history?release=2.0&task=shop.a").text
        refused = reader.open("/history?release=9%3Cb%3E")
        assert refused.status == 400
        assert "release='9<b>'" in refused.text

    def test_an_unknown_span_is_refused(self, reader: Browser) -> None:
        page = reader.open("/?span=1y")
        assert page.status == 400
        assert "span='1y': must be one of 15m, 1h, 6h, 2d, 30d, 90d" in page.text

    def test_the_table_has_the_values_of_the_chart(self, reader: Browser) -> None:
        source = reader.get("/?span=15m").source
        figure = source[source.index('id="chart-runs"') :]
        assert figure[: figure.index("</figure>")].count('<th scope="row">') == 15

    def test_without_a_run_the_page_says_how_runs_get_here(self, app: Celery, client: redis.Redis) -> None:
        client.flushall()
        page = Browser(dashboard(app, secret_key=KEY)).get()
        assert charts(page) == {}
        assert "No task ran in this time." in page.text

    def test_queues_have_curves(self, reader: Browser) -> None:
        labels = [found["aria-label"] for tag, found in reader.get().tags if tag == "svg"]
        assert sorted(labels) == ["Dispatched per minute in the last hour", "Executed per minute in the last hour"]

    def test_the_page_of_a_delay_queue_has_its_dispatches(self, reader: Browser) -> None:
        found = charts(reader.get("/queue?kind=delay&name=scheduled"))
        assert sum(count or 0 for count in values(found["plot-sent-1"])["sent"]) == 9
        assert charts(reader.get("/queue?kind=queue&name=orders")) == {}


def test_an_hour_of_updates_is_small(app: Celery, client: redis.Redis) -> None:
    """Of a busy fleet with 20 queues and charts of an hour: at most 8 MB on the wire, headers included."""
    fill_shop(client, app)
    app.conf.task_queues = [Queue(f"tenant-{number}") for number in range(20)]
    browser = Browser(dashboard(app, allow_write=True, secret_key=KEY))
    answer = browser.raw("/", headers={"HX-Request": "true", "Accept-Encoding": "gzip"})
    page = gzip.decompress(answer.data).decode()
    assert page.count('<th scope="row"><a href="/celery-queue?name=') == 10
    assert page.count("data-chart=") == 6
    assert 720 * (len(answer.data) + len(str(answer.headers))) < 8_000_000


ERROR = Finding("keys", "error", "a key has another type", "delete it")
WARNING = Finding("server", "warning", "no persistence", "turn it on")
FINE = Finding("access", "ok", "all commands are allowed")


class TestHealth:
    @pytest.fixture
    def checks(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """A list of results of the doctor, taken one by one; the last one stays."""
        results: list[Any] = [[FINE]]

        def examine(access: Access, *, ask: bool) -> list[Finding]:
            assert not ask
            found = results.pop(0) if len(results) > 1 else results[0]
            if isinstance(found, Exception):
                raise found
            return list(found)

        monkeypatch.setattr(health, "examine", examine)
        return results

    @pytest.fixture
    def state(self, client: redis.Redis) -> Watch[Finding]:
        return Context(Access(Inspector(client)), timezone.utc).health

    def settled(self, state: Watch[Finding]) -> Seen[Finding]:
        return wait_until(state.last, description="the first check")

    def test_the_page_shows_the_worst_and_leads_to_the_doctor(self, filled: redis.Redis, checks: list[Any]) -> None:
        checks[:] = [[WARNING, FINE, ERROR]]
        app = dashboard(filled, secret_key=KEY)
        # Dead letters are an incident, which comes before what the doctor finds.
        app.extensions[EXTENSION].incidents = Watch(list, CHECK_EVERY)
        browser, texts = Browser(app), list[str]()
        wait_until(lambda: texts.append(browser.get().text) or "is checking" not in texts[-1], description="a check")
        assert "a key has another type" in texts[-1]
        assert "1 more" in texts[-1]

    @pytest.mark.parametrize("found", [FINE, WARNING])
    def test_without_a_look_the_page_does_not_say_that_there_are_no_incidents(
        self, found: Finding, filled: redis.Redis, checks: list[Any]
    ) -> None:
        app = dashboard(filled, secret_key=KEY)
        known, browser = app.extensions[EXTENSION], Browser(app)
        known.health = Watch(lambda: [found], CHECK_EVERY)
        self.settled(known.health)
        # Its first look never ends.
        known.incidents = SimpleNamespace(last=lambda: None)
        assert "no incidents" not in browser.get().text.lower()
        assert "looking for incidents" in browser.get().text.lower()
        known.incidents = SimpleNamespace(last=lambda: Seen(0.0, failure="away"))
        assert "no incidents" not in browser.get().text.lower()
        assert "The last look for incidents failed: away" in browser.get().text

    def test_a_result_is_kept_for_a_minute(
        self, state: Watch[Finding], checks: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checks[:] = [[WARNING], [ERROR]]
        for _ in range(3):
            assert self.settled(state).found == [WARNING]
        assert CHECK_EVERY == 60
        monkeypatch.setattr(state, "_next_at", 0.0)
        wait_until(lambda: self.settled(state).found == [ERROR], description="the second check")

    def test_a_result_of_long_ago_is_not_shown(
        self, state: Watch[Finding], checks: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody had a page open for a night, and the next look takes its time."""
        assert self.settled(state).found == [FINE]
        look, goes_on = state._look, threading.Event()
        monkeypatch.setattr(state, "_look", lambda: [look(), goes_on.wait(10)][0])
        checks[:] = [[ERROR]]
        for name in ("_seen_at", "_next_at"):
            monkeypatch.setattr(state, name, getattr(state, name) - 8 * 3600)
        assert state.last() is None
        assert state.last(again=False) is not None
        goes_on.set()
        assert self.settled(state).found == [ERROR]

    @pytest.mark.parametrize("error", [StoreUnavailableError("redis://u:secret@host is away"), TypeError("secret")])
    def test_a_check_that_fails_is_said(self, error: Exception, state: Watch[Finding], checks: list[Any]) -> None:
        checks[:] = [error]
        found = self.settled(state)
        assert found.failure
        assert "secret" not in found.failure

    def test_with_many_queues_only_the_doctor_checks(self, state: Watch[Finding], checks: list[Any]) -> None:
        assert state.last(again=False) is None
        state.note([ERROR])
        assert must(state.last(again=False)).found == [ERROR]
        assert MAX_CHECKED == 200

    def test_the_page_of_the_doctor_refreshes_it(self, filled: redis.Redis, checks: list[Any]) -> None:
        browser = Browser(dashboard(filled, secret_key=KEY))
        checks[:] = [[FINE]]
        browser.get("/doctor")
        assert "The doctor found no errors and no warnings" not in browser.get().text
