"""The dashboard on a phone and on a desk: cards, targets, colours, and parts that appear when they are needed."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue
from playwright.sync_api import Page, expect

from redis_queue import DelayQueue, RedisQueue
from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.store.keys import Keys, MonitorKeys
from tests.support.wait import must
from tests.support.web.browser import SCREENS
from tests.support.web.chromium import NewTab
from tests.support.web.contents import fill_schedules

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}

FIRST = "main tbody tr, main .tiles, main figure"

SMALL = """
(least) => [...document.querySelectorAll("a, button, input, select, summary")].filter((element) => {
  if (!element.checkVisibility({ visibilityProperty: true })) return false;
  // A label with its box is one target; the skip link is out of sight; links in sentences have the height of the line.
  const target = element.closest("label.tick, label.box") || element;
  if (element.matches(".skip, p.facts a, p.problem a, main > p a, td.empty a, li a, dd a, .heat a")) return false;
  return target.getBoundingClientRect().height < least - 0.5;
}).map((element) => `${element.outerHTML.slice(0, 120)}: ${element.getBoundingClientRect().height}`)
"""
"""Targets that are lower than *least* pixels."""

UNLABELLED = """
() => [...document.querySelectorAll("table.cards tbody td")].filter(
  (cell) => !cell.dataset.label && !cell.matches("[colspan], .choose, .wide, :empty, :has(> .badge), :has(> svg)")
    && cell.textContent.trim() !== "" && cell.checkVisibility()
).map((cell) => cell.outerHTML.slice(0, 150))
"""


BROKEN = """
[...document.querySelectorAll("main .badge, main time, main .duration, main .count")].filter(
  (element) => element.getClientRects().length > 1 || element.offsetHeight > 30
).map((element) => element.outerHTML.slice(0, 120))
"""
"""Badges, times and numbers in more than one line."""


# The forecast is a heat map.
LISTS = [path for path in SCREENS if path != "/forecast"]

SINGLE = (
    "/task?id=task-1",
    "/search?q=shop",
    "/entry?id=task-1",
    "/flow?name=queue:bulk",
    "/flow/key?name=queue:bulk&key=ann",
)
"""Pages of one thing, and of the search."""


@pytest.fixture(autouse=True)
def schedules(filled: redis.Redis) -> None:
    """Some schedules."""
    fill_schedules(filled)


@pytest.mark.parametrize("path", LISTS)
class TestPhone:
    def test_the_first_row_is_in_sight(self, path: str, new_tab: NewTab, filled: redis.Redis) -> None:
        # Without the queue that cannot be read, which some pages name first.
        filled.delete(Keys("redis_queue", "queue", "broken").dead)
        # On a busy machine, the page of incidents first says that it looks for them.
        assert new_tab(**PHONE).open(path).wait_for_selector(FIRST).bounding_box()["y"] < 400

    def test_rows_are_cards_whose_values_have_names(self, path: str, new_tab: NewTab) -> None:
        page = new_tab(**PHONE).open(path)
        assert page.evaluate(UNLABELLED) == []
        for table in page.locator("table.cards tbody tr").all():
            assert table.evaluate("row => getComputedStyle(row).display") == "flex"

    def test_fingers_can_hit_every_target(self, path: str, new_tab: NewTab) -> None:
        page = new_tab(**PHONE).open(path)
        assert page.evaluate(f"({SMALL})(44)") == []


@pytest.mark.parametrize("path", [*LISTS, *SINGLE])
def test_pointers_can_hit_every_target(path: str, new_tab: NewTab) -> None:
    assert new_tab().open(path).evaluate(f"({SMALL})(32)") == []


@pytest.mark.parametrize("path", SINGLE)
def test_a_single_thing_fits_a_phone(path: str, new_tab: NewTab) -> None:
    page = new_tab(**PHONE).open(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(f"({SMALL})(44)") == []


def test_on_a_phone_the_navigation_shows_the_current_page(new_tab: NewTab) -> None:
    page = new_tab(**PHONE).open("/audit")
    for navigation, name in (("Screens", "History"), ("In this group", "Audit")):
        box = must(page.get_by_role("navigation", name=navigation).get_by_role("link", name=name).bounding_box())
        assert 0 <= box["x"] <= 390 - box["width"]


def test_problems_and_ten_queues_are_above_the_fold(new_tab: NewTab, filled: redis.Redis, app: Celery) -> None:
    app.conf.task_queues = [Queue(f"tenant-{number:02}") for number in range(20)]
    page = new_tab(viewport={"width": 1280, "height": 800}).open("/")
    expect(page.locator("main .health")).to_be_in_viewport(ratio=1)
    rows = page.get_by_role("region", name="Celery's queues").locator("tbody tr")
    expect(rows).to_have_count(10)
    expect(rows.last).to_be_in_viewport(ratio=1)
    assert len({box["y"] for tile in page.locator(".tiles > div").all() if (box := tile.bounding_box())}) == 1


@pytest.mark.parametrize(("width", "most"), [(1280, 80), (760, 200), (390, 300)], ids=["desk", "tablet", "phone"])
def test_long_texts_are_cut(width: int, most: int, new_tab: NewTab, filled: redis.Redis) -> None:
    """No badge, time or duration breaks, and 3,000 characters make no row of 3,000 pixels."""
    at, text = datetime.now(timezone.utc) - timedelta(seconds=3675), "x" * 3000
    worker = f"worker-{'a' * 120}@host"
    tasks = [
        RunningTask(text[:36], f"shop.{text[:180]}", text[:200], worker, at, f"('{text}',)", "{'a': 1}", lease="lost")
    ]
    Reports(filled, "redis_queue").write(WorkerRow(worker, at, at), tasks)
    RedisQueue(text[:200], filled).put("x")
    call = {"task": f"shop.{text[:180]}", "args": [text], "kwargs": {}, "options": {}}
    DelayQueue("scheduled", filled).push(call, id=text[:200], delay=1)
    options = PHONE if width == 390 else {"viewport": {"width": width, "height": 800}}
    for path in ("/running", "/tasks?body=1", "/queues", "/scheduled?body=1", "/"):
        page = new_tab(**options).open(path)
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
        heights = page.evaluate("[...document.querySelectorAll('main tbody tr')].map((row) => row.offsetHeight)")
        assert max(heights) < most, path
        assert page.evaluate(BROKEN) == [], path
    cut = page.locator(".cut[title]").first
    assert str(cut.get_attribute("title")) == cut.text_content()


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
class TestActions:
    def test_appear_once_a_row_is_ticked(self, scripts: bool, new_tab: NewTab) -> None:
        page = new_tab(java_script_enabled=scripts).open("/scheduled")
        bar = page.get_by_role("group", name="Actions for ticked rows")
        expect(bar).to_be_hidden()
        page.get_by_role("checkbox", name="Choose task-1", exact=True).check()
        expect(bar).to_be_in_viewport()
        page.get_by_role("checkbox", name="Choose task-1", exact=True).uncheck()
        expect(bar).to_be_hidden()
        page.get_by_label("All matches").check()
        expect(bar).to_be_visible()

    def test_filters_are_folded_and_say_what_is_set(self, scripts: bool, new_tab: NewTab) -> None:
        page = new_tab(java_script_enabled=scripts).open("/scheduled?to=slow&due_before=9h")
        expect(page.get_by_label("Due before")).to_be_hidden()
        summary = page.locator(".filters > summary")
        expect(summary).to_contain_text("Celery queue: slow")
        expect(summary).to_contain_text("Due before: 9h")
        summary.click()
        expect(page.get_by_label("Due before")).to_have_value("9h")


def test_all_rows_of_a_page_can_be_ticked_and_are_counted(new_tab: NewTab) -> None:
    page = new_tab().open("/scheduled?limit=5")
    every = page.get_by_role("checkbox", name="Choose all of this page")
    every.check()
    expect(page.locator(".bulk .chosen")).to_have_text("5 ticked")
    page.get_by_role("checkbox", name="Choose overdue").uncheck()
    expect(page.locator(".bulk .chosen")).to_have_text("4 ticked")
    assert every.evaluate("box => box.indeterminate")


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


LIGHT, DARK = "rgb(246, 247, 249)", "rgb(15, 18, 22)"


class TestColours:
    def test_are_those_of_the_system_until_the_user_chooses(self, new_tab: NewTab) -> None:
        assert background(new_tab(color_scheme="light").open("/")) == LIGHT
        page = new_tab(color_scheme="dark").open("/")
        button = page.get_by_role("button", name=re.compile("^Colours"))
        assert background(page) == DARK
        for name, colour in (("light", LIGHT), ("dark", DARK), ("auto", DARK)):
            button.click()
            expect(button).to_have_text(f"Colours: {name}")
            assert background(page) == colour

    def test_the_choice_is_remembered(self, new_tab: NewTab) -> None:
        page = new_tab(color_scheme="dark").open("/")
        page.get_by_role("button", name=re.compile("^Colours")).click()
        page.get_by_role("link", name="Queues").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
        assert background(page) == LIGHT

    def test_charts_are_drawn_again(self, new_tab: NewTab) -> None:
        page = new_tab(color_scheme="dark").open("/")
        canvas = page.locator("#plot-runs canvas")
        before = canvas.evaluate("canvas => canvas.toDataURL()")
        page.get_by_role("button", name=re.compile("^Colours")).click()
        assert canvas.evaluate("canvas => canvas.toDataURL()") != before


def test_paper_has_no_controls(new_tab: NewTab) -> None:
    page = new_tab().open("/scheduled")
    page.emulate_media(media="print")
    expect(page.get_by_role("banner")).to_be_hidden()
    expect(page.locator("form.search")).to_be_hidden()
    expect(page.get_by_role("table").first).to_be_visible()


# Charts in a real browser: drawn, with values under the pointer, updated in place.


def tick(page: Page) -> None:
    """Let the page update itself, whose clock the test has stopped."""
    with page.expect_response(lambda response: response.request.resource_type == "xhr"):
        page.clock.fast_forward(5100)


def test_charts_are_drawn_with_totals(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    for name in ("runs", "duration", "waiting", "lateness", "sent-1", "late-1"):
        expect(page.locator(f"#plot-{name} canvas")).to_be_visible()
    legend = page.locator("#chart-runs .legend")
    expect(legend).to_have_text(re.compile(r"succeeded 7\s+failed 1\s+retried 2\s+revoked 0"))
    expect(page.locator("#chart-runs .at")).to_have_text("sum")
    expect(page.locator("#chart-duration .at")).to_have_text("whole span")


def test_the_pointer_shows_the_values_of_its_place(new_tab: NewTab) -> None:
    page = new_tab(timezone_id="Asia/Tokyo").open("/?span=15m")
    plot = page.locator("#plot-runs .u-over")
    box = must(plot.bounding_box())
    plot.hover(position={"x": box["width"] / 2, "y": 20})
    expect(page.locator("#chart-runs .legend")).to_have_text(re.compile(r"succeeded 0\s+failed 0"))
    shown = page.locator("#chart-runs .at")
    expect(shown).to_have_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"))
    tokyo = page.evaluate("new Date().toLocaleString('sv', {dateStyle: 'short'})")
    expect(shown).to_contain_text(str(tokyo))
    page.mouse.move(5, 5)
    expect(page.locator("#chart-runs .legend")).to_have_text(re.compile(r"succeeded 7\s+failed 1"))
    expect(shown).to_have_text("sum")


PIXELS = """canvas => {
  const probe = document.createElement("i");
  probe.className = "tone-late";
  document.querySelector("#plot-runs").append(probe);
  const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) found += data[i] === r && data[i + 1] === g && data[i + 2] === b;
  return found;
}"""
"""How many pixels of a canvas have the colour of marks."""


def test_a_release_is_marked_with_its_name(new_tab: NewTab, filled: redis.Redis) -> None:
    filled.delete(MonitorKeys("redis_queue").releases)
    page = new_tab().open("/?span=15m")
    canvas = page.locator("#plot-duration canvas")
    assert canvas.evaluate(PIXELS) == 0
    now = datetime.now(timezone.utc)
    ago = round(now.timestamp() * 1000) - 300_000
    for at, release in ((ago, "2.0"), (ago, "<b>" * 9)):
        Reports(filled, "redis_queue", lambda at=at: at).write(WorkerRow("w", now, now, release=release))  # type: ignore[misc]
    page = new_tab().open("/?span=15m")
    expect(page.get_by_text("Releases in this time")).to_be_visible()
    plot = page.locator("#plot-runs .u-over")
    box = must(plot.bounding_box())
    # The minute of the mark: the bars at both ends have half a minute more.
    plot.hover(position={"x": box["width"] * 9.5 / 15, "y": 60})
    expect(page.locator("#chart-runs .at")).to_have_text(re.compile(r"· (2\.0 · )?<b><b>"))
    assert page.locator("#plot-duration canvas").evaluate(PIXELS) > 20


def test_an_update_keeps_the_canvas_and_adds_the_runs(new_tab: NewTab, filled: redis.Redis) -> None:
    tab = new_tab()
    tab.page.clock.install()
    page = tab.open("/")
    page.evaluate("document.querySelector('#plot-runs').mark = true")
    times = Histogram.of([30])
    Reports(filled, "redis_queue").write(tallies={Series("shop.remind", "celery"): Tally(5, 5, 0, 0, times)})
    tick(page)
    expect(page.locator("#chart-runs .legend")).to_have_text(re.compile(r"succeeded 7\s+failed 6"))
    assert page.evaluate("document.querySelector('#plot-runs').mark")
    expect(page.locator("#plot-runs canvas")).to_have_count(1)


def test_an_open_table_stays_open_and_shows_the_zone(new_tab: NewTab) -> None:
    tab = new_tab(timezone_id="Asia/Tokyo")
    tab.page.clock.install()
    page = tab.open("/?span=15m")
    page.locator("#chart-runs summary").click()
    page.evaluate("document.activeElement.blur()")
    tick(page)
    rows = page.locator("#chart-runs tbody tr")
    expect(rows).to_have_count(15)
    expect(rows.first).to_be_visible()
    at = datetime.fromisoformat(str(rows.first.locator("time").get_attribute("datetime"))).astimezone(timezone.utc)
    expect(rows.first.locator("time")).to_contain_text(f"{(at.hour + 9) % 24:02}:{at.minute:02}")


def test_a_chart_fits_a_window_that_changes(new_tab: NewTab) -> None:
    page = new_tab().open("/queue?kind=delay&name=scheduled")
    for width in (1200, 700, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(
            "() => { const plot = document.querySelector('#plot-sent-1');"
            " return plot.querySelector('.uplot').offsetWidth === plot.clientWidth; }"
        )
