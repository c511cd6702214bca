"""Charts in a real browser: drawn, with values under the pointer, updated in place."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import redis
from playwright.sync_api import Page, expect

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import Series, Tally
from redis_queue.monitor.report import Reports
from tests.support.web.chromium import NewTab


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


def test_the_pointer_shows_the_values_of_its_place(new_tab: NewTab) -> None:
    page = new_tab(timezone_id="Asia/Tokyo").open("/?span=15m")
    plot = page.locator("#plot-runs .u-over")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] / 2, "y": 20})
    expect(page.locator("#chart-runs .legend")).to_have_text(re.compile(r"succeeded 0\s+failed 0"))
    shown = page.locator("#chart-runs .at")
    expect(shown).to_have_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"))
    tokyo = page.evaluate("new Date().toLocaleString('sv', {dateStyle: 'short'})")
    expect(shown).to_contain_text(str(tokyo))
    page.mouse.move(5, 5)
    expect(page.locator("#chart-runs .legend")).to_have_text(re.compile(r"succeeded 7\s+failed 1"))


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
