"""What people who operate a shop do most, from the overview to the end; most of it within five clicks."""

from __future__ import annotations

import json
import re

import pytest
import redis
from celery import Celery
from playwright.sync_api import Browser, Page, expect

from redis_queue import DelayQueue, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.operate.audit import Audit
from redis_queue.operate.incidents import queues
from redis_queue.web import dashboard
from tests.support.celery.observed_names import GATE
from tests.support.celery.observing import Observed
from tests.support.servers import RedisServer
from tests.support.wait import wait_until
from tests.support.web.chromium import NewTab, go_to, serving
from tests.support.web.shop import RELEASE, fill_shop


@pytest.fixture
def filled(client: redis.Redis, app: Celery) -> redis.Redis:
    fill_shop(client, app)
    return client


COUNT = "addEventListener('pointerdown', () => sessionStorage.clicks = 1 + Number(sessionStorage.clicks || 0), true)"

CLICKS = 5


@pytest.fixture
def page(new_tab: NewTab) -> Page:
    tab = new_tab()
    tab.page.add_init_script(COUNT)
    return tab.open("/")


def assert_quick(page: Page) -> None:
    """Check that it took few clicks from the overview to here."""
    assert int(page.evaluate("sessionStorage.clicks || 0")) <= CLICKS


def screen(page: Page, name: str) -> None:
    go_to(page, name)
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)


def search(page: Page, label: str, text: str) -> None:
    field = page.get_by_label(label, exact=True)
    if not field.is_visible():
        page.locator(".filters > summary").click()
    field.fill(text)
    page.get_by_role("button", name="Search", exact=True).click()
    expect(field).to_have_value(text)


def confirm(page: Page, button: str, confirmed: str, told: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("button", name=confirmed, exact=True).click()
    expect(page.get_by_role("status")).to_contain_text(told)


def last_action(client: redis.Redis) -> tuple[str, str, int]:
    action = Audit(client, "redis_queue").last()[0]
    return action.verb, action.queue, action.count


def messages(client: redis.Redis, queue: str) -> list[dict[str, object]]:
    return [json.loads(element) for element in client.lrange(queue, 0, -1)]


@pytest.fixture
def impatient_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doctor of the first page report messages that were sent a moment ago, as those of this shop were."""
    monkeypatch.setattr(queues, "WAITS", 0.0)


def test_find_why_a_queue_is_stuck(impatient_doctor: None, page: Page) -> None:
    banner = page.locator(".health")
    text = "Celery queue reports: 38 messages wait, and no worker that reports consumes it"
    expect(banner).to_contain_text(text, timeout=15_000)
    banner.get_by_role("link", name=text).click()
    expect(page.get_by_text("No known worker consumes this queue.")).to_be_visible()
    expect(page.locator(".tiles")).to_have_text(re.compile(r"Ready\s*38"))
    assert_quick(page)


def test_find_an_order_by_an_argument(page: Page) -> None:
    box = page.get_by_label("Search all")
    box.fill("7042")
    box.press("Enter")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="order-1042", exact=True))
    expect(row).to_contain_text("delayed")
    row.get_by_role("link", name="order-1042", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"shop\.remind\s+order-1042"))
    assert_quick(page)


def test_find_the_task_of_an_order(page: Page) -> None:
    box = page.get_by_label("Search all")
    box.fill("order-1042")
    box.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"shop\.remind\s+order-1042"))
    expect(page.get_by_text("delayed", exact=True)).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="due 20")).to_contain_text(re.compile("in 1 h (29|30) min"))
    page.get_by_role("link", name="Show arguments").click()
    expect(page.get_by_text("(1042,) {'customer': 7042, 'token': ***}")).to_be_visible()


def test_follow_a_canvas(page: Page) -> None:
    box = page.get_by_label("Search all")
    box.fill("mail-1040")
    box.press("Enter")
    tree = page.locator(".tree li")
    expect(tree).to_have_count(4)
    expect(tree.first).to_contain_text("billing.invoice")
    tree.filter(has_text="billing.charge").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"billing\.charge\s+charge-1040"))


def test_see_what_a_deploy_broke(page: Page) -> None:
    screen(page, "Incidents")
    row = page.get_by_role("row").filter(has_text=f"since release {RELEASE} began")
    row.get_by_role("link", name=re.compile("^billing.charge failed")).click()
    group = page.get_by_role("row").filter(has_text="GatewayError").filter(has_text=f"new since {RELEASE}")
    group.get_by_role("link").last.click()
    expect(page.get_by_text("the gateway refused field 'iban' (code 4012)").first).to_be_visible()
    expect(page.get_by_text("/srv/shop/billing/tasks.py")).to_be_visible()
    assert_quick(page)


def test_compare_tasks_before_and_after_a_deploy(page: Page) -> None:
    screen(page, "History")
    page.locator(".filters > summary").click()
    page.get_by_label("Compare release").select_option(RELEASE)
    page.get_by_role("button", name="Search", exact=True).click()
    row = page.get_by_role("row").filter(has_text="fails more often")
    expect(row).to_have_count(1)
    expect(row.get_by_role("rowheader")).to_have_text("billing.charge")
    assert_quick(page)


def test_find_the_slowest_p95_and_its_trend(page: Page) -> None:
    screen(page, "History")
    page.get_by_role("columnheader", name="Run time").get_by_role("link").click()
    first = page.get_by_role("region", name="Tasks").get_by_role("rowheader").first
    expect(first).to_have_text("search.reindex")
    first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("search.reindex"))
    expect(page.get_by_role("figure", name="Run time")).to_contain_text(re.compile(r"p95 \d"))
    assert_quick(page)


def test_retry_one_kind_of_failures_at_a_rate(page: Page, filled: redis.Redis) -> None:
    before = DelayQueue("scheduled", filled).count()
    page.locator(".tiles").get_by_role("link", name="77").click()
    group = page.get_by_role("table").first.get_by_role("row").filter(has_text="GatewayError")
    group.get_by_role("link", name="billing.charge").click()
    page.get_by_label("All matches").check()
    page.get_by_label("Per second").fill("20")
    confirm(page, "Retry…", "Retry 64", "64 retried.")
    assert last_action(filled) == ("retry", "failures", 64)
    assert DelayQueue("scheduled", filled).count() == before + 64
    expect(page.get_by_text("No match among")).to_be_visible()
    assert_quick(page)


def test_stop_a_tenant(page: Page, filled: redis.Redis) -> None:
    page.get_by_role("link", name="mail", exact=True).click()
    page.get_by_role("link", name="Flow queue:mail").click()
    page.get_by_role("region", name="Keys").get_by_role("link", name="acme", exact=True).click()
    confirm(page, "Pause…", "Pause", "acme")
    assert last_action(filled)[0] == "flow-pause"
    assert Flows(filled, "redis_queue").key("queue:mail", "acme").paused
    assert_quick(page)


def test_move_the_messages_of_a_tenant(page: Page, filled: redis.Redis) -> None:
    page.get_by_role("link", name="mail", exact=True).click()
    search(page, "Arguments contain", "acme")
    page.get_by_label("All matches").check()
    page.get_by_label("To queue").fill("parked")
    page.get_by_role("button", name="Move…").click()
    button = page.get_by_role("button", name=re.compile(r"^Move \d+$"))
    moved = int(str(button.text_content()).split()[1])
    button.click()
    expect(page.get_by_role("status")).to_contain_text(f"{moved} moved")
    assert len(messages(filled, "parked")) == moved > 100
    left = messages(filled, "mail")
    assert len(left) == 240 - moved
    assert not [found for found in left if "acme" in json.dumps(found["headers"])]


def test_cancel_the_reminders_of_one_order(page: Page, filled: redis.Redis) -> None:
    screen(page, "Scheduled")
    search(page, "Id begins with", "order-1042")
    page.get_by_role("checkbox", name="Choose order-1042").check()
    confirm(page, "Cancel…", "Cancel 1", "1 cancelled.")
    assert DelayQueue("scheduled", filled).get("order-1042") is None


def test_move_what_is_due_in_the_next_hour_to_the_night(page: Page, filled: redis.Redis) -> None:
    screen(page, "Scheduled")
    search(page, "Due before", "10m")
    page.get_by_label("All matches").check()
    page.get_by_label("To", exact=True).fill("12h")
    page.get_by_role("button", name="Reschedule…").click()
    button = page.get_by_role("button", name=re.compile(r"^Reschedule \d+$"))
    count = str(button.text_content()).split()[1]
    button.click()
    expect(page.get_by_role("status")).to_contain_text(f"{count} rescheduled.")
    assert last_action(filled) == ("reschedule", "scheduled", int(count))


def test_redrive_what_died_while_payments_were_away(page: Page, filled: redis.Redis) -> None:
    screen(page, "Dead letters")
    search(page, "Reason contains", "no answer from payments")
    page.get_by_label("All matches").check()
    page.get_by_role("button", name="Redrive…").click()
    button = page.get_by_role("button", name=re.compile(r"^Redrive \d+$"))
    count = int(str(button.text_content()).split()[1])
    dead = RedisQueue("orders", filled).stats().dead
    button.click()
    expect(page.get_by_role("status")).to_contain_text(f"{count} redriven.")
    assert RedisQueue("orders", filled).stats().dead == dead - count > 0


def test_pause_a_queue_for_maintenance(page: Page, filled: redis.Redis) -> None:
    page.get_by_role("link", name="orders", exact=True).first.click()
    confirm(page, "Pause…", "Pause", "orders paused.")
    assert_quick(page)
    assert RedisQueue("orders", filled).get(block=False) is None
    confirm(page, "Resume…", "Resume", "orders resumed.")
    assert RedisQueue("orders", filled).get(block=False) is not None


def test_cancel_all_tasks_of_one_name(page: Page, filled: redis.Redis) -> None:
    screen(page, "Scheduled")
    page.get_by_label("Task contains", exact=True).fill("search.reindex")
    page.get_by_label("Task contains", exact=True).press("Enter")
    page.get_by_label("All matches").check()
    page.get_by_role("button", name="Cancel…", exact=True).click()
    button = page.get_by_role("button", name=re.compile(r"^Cancel \d+$"))
    count = int(str(button.text_content()).split()[1])
    button.click()
    expect(page.get_by_role("status")).to_contain_text(f"{count} cancelled.")
    assert last_action(filled) == ("cancel", "scheduled", count)
    assert count > 50
    assert_quick(page)


def test_follow_a_chain_from_its_last_task(page: Page) -> None:
    box = page.get_by_label("Search all")
    box.fill("ship-1041")
    box.press("Enter")
    expect(page.locator(".problem")).to_contain_text("The chain stopped at step billing.charge")
    page.locator(".problem").get_by_role("link", name="charge-1041").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"billing\.charge\s+charge-1041"))
    assert_quick(page)


def test_slow_down_mails_whose_provider_complains(page: Page, filled: redis.Redis) -> None:
    screen(page, "Flows")
    page.get_by_role("link", name="queue:mail", exact=True).click()
    expect(page.get_by_role("region", name="Keys").get_by_role("rowheader")).to_have_text(["acme", "birch", "cedar"])
    page.get_by_label("Rate", exact=True).fill("60/m")
    confirm(page, "Change the limits…", "Change", "queue:mail: limit 20, rate 1/s")
    confirm(page, "Pause…", "Pause", "queue:mail: paused")
    confirm(page, "Resume…", "Resume", "queue:mail: limit 20")
    confirm(page, "Reset the limits…", "Reset", "queue:mail: limit 40, rate 10/s")
    assert last_action(filled) == ("flow-reset", "queue:mail", 1)


def test_find_the_worker_that_is_stuck(page: Page) -> None:
    page.locator(".tiles").get_by_role("link", name="stuck").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="worker-3@shop"))
    expect(row).to_contain_text("its event loop has not turned for 15 min")
    assert_quick(page)


def test_end_a_task_that_hangs(chromium: Browser, redis_server: RedisServer, client: redis.Redis) -> None:
    client.flushall()
    url = f"redis+socket://{redis_server.socket}"
    observed = Observed(redis_server, client, url, {"result_backend": url})
    with observed.worker(pool="prefork"), serving(dashboard(observed.app, allow_write=True)) as address:
        id_ = observed.send(GATE, "gate")
        wait_until(lambda: observed.workers.find_running(id_), timeout=60, description="the report")
        with chromium.new_context() as context:
            page = context.new_page()
            page.goto(f"{address}/")
            screen(page, "Running")
            page.get_by_role("checkbox", name=f"Choose {id_}").check()
            confirm(page, "Terminate…", "Terminate 1", "1 stopped.")
            assert observed.wait_for(GATE, 1).revoked == 1
            # A report has counts first, and then the runs.
            wait_until(lambda: observed.runs.get(id_), timeout=60, description="the run in a report")
            page.goto(f"{address}/task?id={id_}")
            expect(page.locator(".badge").first).to_have_text("revoked")
            screen(page, "Workers")
            page.locator("summary", has_text="Change").click()
            confirm(page, "Shut down…", "Shut down", "one@test ends after its running tasks.")
            wait_until(lambda: observed.workers.row("one@test") is None, timeout=60, description="its end")
    observed.app.close()
