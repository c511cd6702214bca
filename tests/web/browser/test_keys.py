"""Keys: pages, search, rows; they can be turned off and never take a letter from a field."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from redis_queue.web.app import NAVIGATION
from tests.support.web.chromium import NewTab


def test_a_list_of_keys(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_be_visible()
    for name in ("Overview", "Dead letters", "Search", "Next row"):
        expect(dialog.get_by_text(name, exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Keys").click()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()


def test_every_page_of_the_navigation_has_its_own_key(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    keys = [link.get_attribute("data-key") for link in page.locator("header a[data-key]").all()]
    assert len(set(keys)) == len(keys) == sum(len(screens) for _, screens in NAVIGATION)


def test_go_to_a_page(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


@pytest.mark.parametrize(
    ("path", "field", "title"), [("/scheduled", "Task contains", "Scheduled"), ("/audit", "Search all", "Audit")]
)
def test_search_in_the_page_or_else_of_everything(path: str, field: str, title: str, new_tab: NewTab) -> None:
    page = new_tab().open(path)
    page.keyboard.press("/")
    page.keyboard.type("gd?x/")
    expect(page.get_by_label(field, exact=True)).to_have_value("gd?x/")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("heading", level=1)).to_contain_text(title)


def test_move_between_rows_tick_one_and_open_it(new_tab: NewTab) -> None:
    page = new_tab().open("/scheduled?limit=5")
    page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_text("overdue")
    page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_text("data")
    page.keyboard.press("x")
    expect(page.get_by_role("checkbox", name="Choose data")).to_be_checked()
    page.keyboard.press("x")
    page.keyboard.press("k")
    expect(page.locator(":focus")).to_have_text("overdue")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("overdue")


def test_the_last_row_is_the_end(new_tab: NewTab) -> None:
    page = new_tab().open("/scheduled?limit=2")
    for _ in range(4):
        page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_text("data")


def test_the_next_page(new_tab: NewTab) -> None:
    page = new_tab().open("/scheduled?limit=2")
    page.keyboard.press("n")
    page.wait_for_url("**after=**")


def test_pause_and_colours(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Resume updates")).to_be_visible()
    page.keyboard.press("t")
    expect(page.get_by_role("button", name="Colours: light")).to_be_visible()


def test_keys_of_the_browser_stay_its_own(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    for key in ("Control+t", "Alt+p", "Control+Shift+x"):
        page.keyboard.press(key)
    expect(page.get_by_role("button", name="Pause updates")).to_be_visible()
    expect(page.get_by_role("button", name="Colours: auto")).to_be_visible()


def test_keys_can_be_turned_off(new_tab: NewTab) -> None:
    page = new_tab().open("/")
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Use keys").uncheck()
    page.get_by_role("button", name="Close").click()
    for _ in range(2):
        page.keyboard.press("p")
        assert page.get_by_role("button", name="Pause updates").is_visible()
        # The choice is remembered.
        page.reload()
