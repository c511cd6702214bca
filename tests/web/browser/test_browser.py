"""The dashboard in a real browser: with and without scripts, by keyboard, on a phone, in dark mode."""

from __future__ import annotations

import re
import threading
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
import redis
from axe_playwright_python.sync_playwright import Axe
from celery import Celery
from flask import request
from playwright.sync_api import Page, Route, expect

from redis_queue import DelayQueue, RedisQueue
from redis_queue.store.keys import FlowKeys
from redis_queue.web import dashboard
from tests.support.wait import must, wait_until
from tests.support.web.chromium import NewTab, Tab, go_to, serving
from tests.support.web.contents import TASK

WIDE = "<script>zq1()</script>" + "W" * 150
PAGES = (
    *("/", "/forecast", "/scheduled?body=1", "/queues", "/dead?body=1", "/workers", "/doctor", "/audit"),
    *("/queue?kind=queue&name=orders", "/queue?kind=delay&name=scheduled", "/entry?queue=scheduled&id=task-1&body=1"),
    *("/celery-queue?name=celery", "/failures", "/failure?id=failed&body=1", "/tasks?body=1", "/running", "/history"),
    *("/history?release=release", "/task?id=failed&body=1", f"/task?id={TASK}", "/search", "/search?q=e"),
)


def fits(page: Page) -> bool:
    """Return whether the page needs no horizontal scrolling."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def accessibility_problems(page: Page) -> list[str]:
    """Return the serious accessibility problems that axe finds."""
    found = Axe().run(page).response["violations"]
    serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
    return [f"{item['id']}: {node['html']}" for item in serious for node in item["nodes"]]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_accessible(path: str, new_tab: NewTab, filled: redis.Redis) -> None:
    queue = RedisQueue("orders", filled)
    queue.put("x", dedupe_key=WIDE)
    DelayQueue("scheduled", filled).push({"task": WIDE, "args": [WIDE], "kwargs": {}, "options": {}}, id=WIDE, delay=60)
    tab = new_tab()
    for width in (1280, 390):
        tab.page.set_viewport_size({"width": width, "height": 800})
        for scheme in ("light", "dark"):
            tab.page.emulate_media(color_scheme=scheme)
            tab.open(path)
            assert accessibility_problems(tab.page) == [], (width, scheme)
            assert fits(tab.page), width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_parts_that_open_are_accessible(width: int, scheme: str, new_tab: NewTab) -> None:
    page = new_tab(viewport={"width": width, "height": 800}, color_scheme=scheme).open("/scheduled?limit=3")
    page.get_by_text("Filters").click()
    page.get_by_label("All matches").check()
    assert accessibility_problems(page) == []
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert accessibility_problems(page) == []
    page.goto(page.url.rpartition("/")[0] + "/")
    for table in page.locator("figure summary").all():
        table.click()
    assert accessibility_problems(page) == []


SEEN = "document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== 'none'"


class TestKeyboard:
    def test_the_first_link_skips_the_navigation(self, new_tab: NewTab) -> None:
        page = new_tab().open("/scheduled")
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to the content")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('main').contains(document.activeElement)")

    def test_every_control_can_be_focused_and_shows_the_focus(self, new_tab: NewTab) -> None:
        page = new_tab().open("/scheduled?limit=2")
        count = page.locator("a:visible, button:visible, input:visible, select:visible, [tabindex='0']:visible").count()
        seen = set()
        for _ in range(count + 5):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
            assert page.evaluate(SEEN)
        # The skip link is visible only with focus; in the end the body has the focus.
        assert len(seen) >= count


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
class TestActions:
    def choose(self, page: Page, *ids: str) -> None:
        for id_ in ids:
            page.get_by_role("checkbox", name=f"Choose {id_}", exact=True).press("Space")

    def test_cancel(self, scripts: bool, new_tab: NewTab, filled: redis.Redis) -> None:
        page = new_tab(java_script_enabled=scripts).open("/scheduled")
        self.choose(page, "task-1", "task-2")
        page.get_by_role("button", name="Cancel…").press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 2 entries?")
        page.get_by_role("button", name="Cancel 2").press("Enter")
        expect(page.get_by_role("status")).to_have_text("2 cancelled.")
        assert DelayQueue("scheduled", filled).get("task-1") is None

    def test_change_nothing(self, scripts: bool, new_tab: NewTab, filled: redis.Redis) -> None:
        page = new_tab(java_script_enabled=scripts).open("/scheduled")
        self.choose(page, "task-1")
        page.get_by_role("button", name="Cancel…").click()
        page.get_by_role("link", name="Change nothing").click()
        assert page.url.endswith("/scheduled?queue=scheduled")
        assert DelayQueue("scheduled", filled).get("task-1") is not None

    def test_search_then_reschedule_all_that_match(self, scripts: bool, new_tab: NewTab, filled: redis.Redis) -> None:
        page = new_tab(java_script_enabled=scripts).open("/scheduled")
        page.get_by_label("Task contains", exact=True).fill("shop.cancel")
        page.get_by_label("Task contains", exact=True).press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_label("All matches").check()
        page.get_by_label("To", exact=True).fill("5h")
        page.get_by_role("button", name="Reschedule…").click()
        page.get_by_role("button", name="Reschedule 1").click()
        expect(page.get_by_role("status")).to_have_text("1 rescheduled.")

    def test_enter_in_the_field_of_a_time_reschedules(self, scripts: bool, new_tab: NewTab) -> None:
        page = new_tab(java_script_enabled=scripts).open("/scheduled")
        self.choose(page, "task-1")
        for path in ("", "/entry?queue=scheduled&id=task-1"):
            if path:
                page.goto(page.url.partition("/actions/")[0] + path)
            page.get_by_label("To", exact=True).fill("2h")
            page.get_by_label("To", exact=True).press("Enter")
            expect(page.get_by_role("heading", level=1)).to_have_text("Reschedule 1 waiting entry, due in 2 h?")

    def test_run_now_from_the_entry(self, scripts: bool, new_tab: NewTab, filled: redis.Redis) -> None:
        page = new_tab(java_script_enabled=scripts).open("/scheduled?due_after=90m")
        page.get_by_role("link", name=TASK).click()
        expect(page.get_by_text("secret")).to_have_count(0)
        page.get_by_role("link", name="Show arguments and headers").click()
        expect(page.get_by_text("'secret'")).to_be_visible()
        page.get_by_role("button", name="Run now…").click()
        page.get_by_role("button", name="Run now 1").click()
        expect(page.get_by_role("status")).to_have_text("1 made due.")

    def test_redrive(self, scripts: bool, new_tab: NewTab, filled: redis.Redis) -> None:
        page = new_tab(java_script_enabled=scripts).open("/")
        go_to(page, "Dead letters")
        page.get_by_text("Filters").click()
        page.get_by_label("Queue").select_option("orders")
        page.get_by_role("button", name="Search").click()
        self.choose(page, "dead")
        page.get_by_role("button", name="Redrive…").click()
        page.get_by_role("button", name="Redrive 1").click()
        expect(page.get_by_role("status")).to_have_text("1 redriven.")
        assert RedisQueue("orders", filled).stats().dead == 0

    def test_pause_and_resume(self, scripts: bool, new_tab: NewTab, filled: redis.Redis) -> None:
        page = new_tab(java_script_enabled=scripts).open("/queues")
        page.get_by_role("link", name="orders").click()
        filled.zadd("{redis_queue:queue:orders}:in_flight", {"held": 1})
        for button, told in (
            ("Pause", "orders paused."),
            ("Resume", "orders resumed."),
            ("Put back", "1 returned, 0 dead."),
        ):
            page.get_by_role("button", name=re.compile(f"^{button}.*…$")).press("Enter")
            page.get_by_role("button", name=re.compile(f"^{button}[ 0-9]*$")).press("Enter")
            expect(page.get_by_role("status")).to_have_text(told)
        go_to(page, "Audit")
        expect(page.locator("tbody tr")).to_have_count(4)

    def test_ask_the_workers(self, scripts: bool, new_tab: NewTab) -> None:
        page = new_tab(java_script_enabled=scripts).open("/workers")
        page.get_by_role("button", name="Ask the workers").click()
        expect(page.get_by_text("No worker answered within a second.")).to_be_visible()

    def test_go_from_the_forecast_to_the_entries(self, scripts: bool, new_tab: NewTab) -> None:
        page = new_tab(java_script_enabled=scripts).open("/forecast")
        page.get_by_label("Span").select_option("week")
        page.get_by_role("button", name="Show").click()
        cell = page.locator("td a").first
        count = cell.text_content()
        cell.click()
        noun = "waiting entry" if count == "1" else "waiting entries"
        expect(page.get_by_text(f"{count} {noun}.")).to_be_visible()


def test_the_search_suggests_names(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    box = page.get_by_label("Search all")
    box.focus()
    expect(page.locator("#names-q option[value='shop.remind']")).to_have_count(1)
    box.press_sequentially("ord")
    expect(page.locator("#names-q option")).to_have_count(1)
    expect(page.locator("#names-q option")).to_have_attribute("value", "orders")


def test_typing_while_suggestions_are_fetched_is_no_error(new_tab: NewTab, app: Celery) -> None:
    made, slow = dashboard(app), threading.Event()

    @made.before_request
    def hold() -> None:
        if request.full_path == "/search/suggest?q=":
            slow.wait(30)

    tab = new_tab()
    with serving(made) as address:
        tab.page.clock.install()
        tab.page.goto(address)
        box = tab.page.get_by_label("Search all")
        with tab.page.expect_request("**/search/suggest*"):
            box.focus()
        box.press_sequentially("ord")
        tab.page.clock.fast_forward(200)
        assert tab.page.evaluate("document.activeElement.value") == "ord"
        slow.set()
        expect(tab.page.locator("#names-q option")).to_have_count(1)


def fetched_urls(page: Page) -> list[str]:
    """Return a list of all URLs that the page fetches from now on."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.resource_type == "xhr" else None)
    return asked


class TestRefresh:
    """The clock of the tab is stopped and moved by the test."""

    def tick(self, page: Page) -> None:
        with page.expect_response(lambda response: response.request.resource_type == "xhr"):
            page.clock.fast_forward(5100)

    def open(self, new_tab: NewTab, path: str) -> Page:
        tab = new_tab()
        tab.page.clock.install()
        return tab.open(path)

    def die(self, client: redis.Redis, reason: str) -> None:
        queue = RedisQueue("failing", client)
        queue.put(reason, dedupe_key=reason)
        message = must(queue.get(block=False))
        queue.nack(message, dead=True, reason=reason)

    def test_a_new_dead_letter_appears(self, new_tab: NewTab, filled: redis.Redis) -> None:
        page = self.open(new_tab, "/dead")
        self.die(filled, "brand new")
        expect(page.get_by_text("brand new")).to_have_count(0)
        self.tick(page)
        expect(page.get_by_role("cell", name="brand new", exact=True)).to_be_visible()

    def test_no_update_while_a_box_is_checked(self, new_tab: NewTab, filled: redis.Redis) -> None:
        page = self.open(new_tab, "/dead")
        asked = fetched_urls(page)
        box = page.get_by_role("checkbox", name="Choose dead").first
        box.check()
        box.blur()
        self.die(filled, "brand new")
        page.clock.fast_forward(20_000)
        assert page.evaluate("1") == 1
        assert (asked, box.is_checked()) == ([], True)
        box.uncheck()
        box.blur()
        self.tick(page)
        expect(page.get_by_role("cell", name="brand new", exact=True)).to_be_visible()

    def test_no_update_while_a_field_has_the_focus(self, new_tab: NewTab, filled: redis.Redis) -> None:
        page = self.open(new_tab, "/dead")
        asked = fetched_urls(page)
        page.get_by_text("Filters").click()
        page.get_by_label("Reason contains").fill("half a wor")
        page.clock.fast_forward(20_000)
        assert page.evaluate("document.activeElement.value") == "half a wor"
        assert asked == []

    def test_no_update_while_a_field_has_content(self, new_tab: NewTab, filled: redis.Redis) -> None:
        page = self.open(new_tab, "/scheduled")
        asked = fetched_urls(page)
        page.get_by_text("Filters").click()
        field = page.get_by_label("Due before")
        for act, undo in (
            (lambda: field.fill("2h"), lambda: field.fill("")),
            (
                lambda: page.get_by_label("Show arguments").check(),
                lambda: page.get_by_label("Show arguments").uncheck(),
            ),
        ):
            act()
            page.evaluate("document.activeElement.blur()")
            page.clock.fast_forward(20_000)
            assert page.evaluate("1") == 1
            assert asked == []
            undo()
        page.evaluate("document.activeElement.blur()")
        self.tick(page)

    def test_updates_can_be_paused_for_all_pages(self, new_tab: NewTab, filled: redis.Redis) -> None:
        page = self.open(new_tab, "/dead")
        page.get_by_role("button", name="Pause updates").press("Enter")
        page.get_by_role("link", name="Overview").click()
        asked = fetched_urls(page)
        page.clock.fast_forward(20_000)
        assert page.evaluate("1") == 1
        assert asked == []
        page.get_by_role("button", name="Resume updates").press("Enter")
        self.tick(page)

    def test_focus_and_place_are_kept(self, new_tab: NewTab, filled: redis.Redis) -> None:
        page = self.open(new_tab, "/scheduled")
        page.get_by_role("link", name="task-40", exact=True).focus()
        place = page.evaluate("scrollY")
        assert place > 0
        DelayQueue("scheduled", filled).push(
            {"task": "shop.new", "args": [], "kwargs": {}, "options": {}}, id="brand-new"
        )
        self.tick(page)
        expect(page.get_by_role("link", name="brand-new")).to_be_attached()
        expect(page.locator(":focus")).to_have_text("task-40")
        assert abs(page.evaluate("scrollY") - place) < 60

    def test_the_page_of_a_redirect_is_not_shown(self, new_tab: NewTab) -> None:
        page = self.open(new_tab, "/dead")
        page.route("**/dead", lambda route: route.fulfill(status=302, headers={"Location": "/audit"}))
        with page.expect_response("**/audit"):
            page.clock.fast_forward(5100)
        expect(page.get_by_text("not updated since")).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")

    def test_hidden_tabs_are_not_updated(self, new_tab: NewTab) -> None:
        page = self.open(new_tab, "/dead")
        asked = fetched_urls(page)
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        page.clock.fast_forward(20_000)
        assert page.evaluate("1") == 1
        assert asked == []
        page.evaluate("delete document.hidden")
        self.tick(page)

    def test_no_update_while_the_keys_are_listed(self, new_tab: NewTab) -> None:
        page = self.open(new_tab, "/dead")
        asked = fetched_urls(page)
        page.keyboard.press("?")
        page.clock.fast_forward(20_000)
        assert page.evaluate("1") == 1
        assert asked == []

    def test_the_result_of_an_action_stays_visible(self, new_tab: NewTab, filled: redis.Redis) -> None:
        page = self.open(new_tab, "/queue?kind=queue&name=orders")
        page.get_by_role("button", name="Pause…", exact=True).click()
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.get_by_role("status")).to_have_text("orders paused.")
        self.tick(page)
        expect(page.get_by_role("status")).to_have_text("orders paused.")

    def forget_status(self, tab: Tab, count: int) -> None:
        """Remove the *count* complaints about status 503."""
        wait_until(lambda: tab.page.evaluate("1") and len(tab.complaints) == count, description="the status in the log")
        assert all("503" in complaint for complaint in tab.complaints)
        tab.complaints.clear()

    def test_an_outage_ends_without_scripts_too(self, new_tab: NewTab, filled: redis.Redis) -> None:
        filled.set("redis_queue:registry", "no hash")
        tab = new_tab(java_script_enabled=False)
        page = tab.open("/dead")
        expect(page.locator("noscript meta[http-equiv=refresh]")).to_have_attribute("content", "10")
        self.forget_status(tab, 1)

    def test_a_page_that_stays_the_same_is_not_sent_again(self, new_tab: NewTab, filled: redis.Redis) -> None:
        """But its numbers count as updated; a new one is sent, also into title and icon."""
        tab = new_tab()
        tab.page.clock.install()
        page = tab.open("/flows")
        seen: list[int] = []
        page.on(
            "response", lambda answer: seen.append(answer.status) if answer.request.resource_type == "xhr" else None
        )
        for _ in range(3):
            self.tick(page)
        filled.hset(FlowKeys("redis_queue").config.decode(), "shop.new", "1 - - - - - - f")
        self.tick(page)
        expect(page.get_by_role("rowheader", name="shop.new")).to_be_visible()
        assert seen == [200, 304, 304, 200]
        expect(page.get_by_text("not updated since")).to_have_count(0)

    def test_incidents_are_counted_in_title_and_icon(self, new_tab: NewTab, app: Celery) -> None:
        made, count = dashboard(app), [0]
        made.context_processor(lambda: {"incident_count": count[0]})
        tab = new_tab()
        with serving(made) as address:
            tab.page.clock.install()
            tab.page.goto(address)
            for number, title, icon in ((0, "Overview", "icon"), (2, "(2) Overview", "alert"), (0, "Overview", "icon")):
                count[0] = number
                self.tick(tab.page)
                expect(tab.page).to_have_title(f"{title} · redis_queue")
                expect(tab.page.locator("link[rel=icon]")).to_have_attribute("href", re.compile(rf"/{icon}\.svg"))

    def test_an_outage_keeps_the_page_and_is_shown(self, new_tab: NewTab, filled: redis.Redis) -> None:
        tab = new_tab()
        tab.page.clock.install()
        page = tab.open("/dead")
        rows, title = filled.hgetall("redis_queue:registry"), "Dead letters · redis_queue"
        filled.set("redis_queue:registry", "no hash")
        self.tick(page)
        expect(page.get_by_text("not updated since")).to_be_visible()
        expect(page.get_by_role("cell", name="Timeout", exact=True)).to_be_visible()
        expect(page.locator("main form.rows")).to_have_css("opacity", "0.45")
        # The browser and htmx log it.
        self.forget_status(tab, 2)
        page.reload()
        assert title not in page.title()
        filled.delete("redis_queue:registry")
        filled.hset("redis_queue:registry", mapping=rows)
        self.tick(page)
        # Dead letters are an incident, whose number is in the title.
        expect(page).to_have_title(re.compile(title))
        expect(page.get_by_text("not updated since")).to_have_count(0)
        expect(page.locator("main form.rows")).to_have_css("opacity", "1")
        self.forget_status(tab, 1)


class TestZone:
    """Times are in the zone of the browser, also after an update of the page."""

    @pytest.mark.parametrize("path", ["/scheduled", "/dead", "/forecast", "/"])
    def test_of_the_browser(self, path: str, new_tab: NewTab) -> None:
        page = new_tab(timezone_id="Asia/Tokyo").open(path)
        shown = page.locator("time:not([data-form=age])").first
        at = datetime.fromisoformat(str(shown.get_attribute("datetime"))).astimezone(ZoneInfo("Asia/Tokyo"))

        expect(shown).to_contain_text(at.strftime("%H:%M"))
        expect(shown).to_have_attribute("title", re.compile(r" UTC$"))
        if path != "/":
            expect(page.locator(".zone").first).to_have_text("Asia/Tokyo")

    def test_of_an_age_is_in_its_tooltip(self, new_tab: NewTab) -> None:
        page = new_tab(timezone_id="Asia/Tokyo").open("/")
        shown = page.locator("time[data-form=age]").first
        at = datetime.fromisoformat(str(shown.get_attribute("datetime"))).astimezone(ZoneInfo("Asia/Tokyo"))
        expect(shown).to_have_attribute("title", re.compile(f"{at:%Y-%m-%d %H:%M:%S} · .* UTC$"))
        expect(shown).to_have_text(re.compile(" ago$"))

    def test_after_an_update(self, new_tab: NewTab) -> None:
        page = new_tab(timezone_id="Asia/Tokyo").open("/scheduled")
        page.evaluate("document.querySelector('main').replaceChildren(...document.querySelector('main').childNodes)")
        page.evaluate(
            """() => {
              const time = document.createElement("time");
              time.dateTime = "2030-01-01T00:00:00+00:00";
              document.querySelector("main").append(time);
            }"""
        )

        expect(page.locator("main > time")).to_have_text("2030-01-01 09:00:00")

    @pytest.mark.parametrize(
        ("text", "sent"),
        [("2030-01-01 09:00:00", "2030-01-01T00:00:00.000Z"), ("2030-01-01 09:00:00 UTC", None), ("2h", None)],
    )
    def test_a_time_of_the_page_is_sent_with_its_zone(self, text: str, sent: str | None, new_tab: NewTab) -> None:
        page = new_tab(timezone_id="Asia/Tokyo").open("/scheduled")
        page.get_by_text("Filters", exact=True).click()
        page.get_by_label("Due after").fill(text)
        page.get_by_label("Arguments contain").fill(text)
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.get_by_label("Due after", exact=True)).to_have_value(sent or text)
        expect(page.get_by_label("Arguments contain")).to_have_value(text)

    def test_the_zone_of_the_server_has_precedence(self, new_tab: NewTab) -> None:
        tab = new_tab(timezone_id="Asia/Tokyo")

        def as_given(route: Route) -> None:
            answer = route.fetch()
            route.fulfill(response=answer, body=answer.text().replace("<html", "<html data-timezone='UTC'", 1))

        tab.page.route("**/scheduled", as_given)
        page = tab.open("/scheduled")

        expect(page.locator(".zone").first).to_have_text("UTC")


def test_without_scripts_controls_that_need_them_are_hidden(new_tab: NewTab) -> None:
    page = new_tab(java_script_enabled=False).open("/")
    expect(page.get_by_role("button", name="Pause updates")).to_have_count(0)
    expect(page.get_by_role("button", name="Keys")).to_have_count(0)
    chart = page.get_by_role("figure").filter(has_text="Dispatched from scheduled per minute")
    expect(chart.get_by_role("img")).to_have_count(0)
    chart.get_by_text("Table", exact=True).click()
    expect(chart.get_by_role("row")).to_have_count(61)
