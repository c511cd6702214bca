"""Write the images of docs/images: `python -m tests.web.browser.screenshots`, or `make screenshots`."""

from __future__ import annotations

import io
import math
import random
import threading
import time
from datetime import datetime, timedelta, timezone

import redis
from PIL import Image
from playwright.sync_api import sync_playwright
from werkzeug.serving import make_server

from redis_queue import DelayQueue, RedisQueue
from redis_queue.delay.lateness import DispatcherRow, Dispatches
from redis_queue.delay.model import Push
from redis_queue.histogram import Histogram
from redis_queue.operate.audit import Action, Audit
from redis_queue.web import dashboard
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.web.chromium import EXECUTABLE

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 120_000
TASKS = ("shop.remind", "shop.cancel_order", "mail.digest", "billing.charge", "search.reindex")
PAGES = {
    "overview": "/",
    "forecast": "/forecast?span=day",
    "scheduled": "/scheduled?task=shop.remind&body=1&limit=20",
    "dead": "/dead?limit=20",
    "entry": "/entry?queue=celery&id=order-1042&body=1",
    "queue": "/queue?kind=queue&name=orders",
    "doctor": "/doctor",
}


def call(chance: random.Random, number: int) -> dict[str, object]:
    """Return a task that a shop might delay."""
    task = chance.choices(TASKS, (50, 25, 12, 8, 5))[0]
    options = {"queue": task.partition(".")[0]}
    return {"task": task, "args": [number], "kwargs": {"customer": 7000 + number % 900}, "options": options}


def fill(client: redis.Redis) -> None:
    """Fill Redis with the data of one day of a shop."""
    chance = random.Random(7)
    delayed = DelayQueue("celery", client)
    delays = [abs(chance.gauss(6, 4)) * 3600 + 60 * math.floor(chance.random() * 3) for _ in range(6000)]
    delayed.push_many(Push(call(chance, 1000 + n), delay=wait, id=f"order-{1000 + n}") for n, wait in enumerate(delays))
    kwargs = {"customer": 7042, "token": "4f1c"}
    options = {"queue": "shop", "priority": 5}
    payload = {"task": "shop.remind", "args": [1042], "kwargs": kwargs, "options": options}
    delayed.push(payload, id="order-1042", delay=5400, headers={"trace": "00-4bf92f35-01"})
    note(client, chance)
    orders = RedisQueue("orders", client)
    orders.put_many({"order": number} for number in range(400))
    orders.get_many(12)
    for number, reason in enumerate(["Timeout: no answer from payments within 30 s", "KeyError: 'address'"] * 6):
        orders.nack_many(orders.get_many(1 + number % 2), dead=True, reason=reason)
    RedisQueue("exports", client).put_many(range(25))
    RedisQueue("exports", client).pause()
    audit = Audit(client, "redis_queue")
    audit.add(Action(datetime.now(timezone.utc) - timedelta(minutes=9), "ann", "cancel", "celery", 14, ""))


def note(client: redis.Redis, chance: random.Random) -> None:
    """Log the dispatches of the last hour, minute by minute."""
    now = round(time.time() * 1000)
    for minute in range(60):
        past = DelayQueue("celery", client, clock=lambda minute=minute: now - (59 - minute) * 60_000)
        late = [
            chance.expovariate(1 / 4) + (40 if minute in (22, 23) else 0)
            for _ in range(chance.randint(90, 150) + (400 if minute % 15 == 0 else 0))
        ]
        past.dispatch_log.note(Dispatches(len(late), 0, Histogram.of(late)), worst=max(late) / 1000)
    for name, leads in (("worker-1@shop", True), ("worker-2@shop", False)):
        row = DispatcherRow(name, datetime.now(timezone.utc), leads, "0.1.0", 9000 if leads else 0, 0, "")
        DelayQueue("celery", client).dispatch_log.note(Dispatches(), dispatcher=row)


def compressed(png: bytes) -> bytes:
    """Return the image in 64 colours, with a third of the bytes and no visible difference."""
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    """Write all images; the overview in both colour schemes."""
    IMAGES.mkdir(exist_ok=True)
    with RedisServer(aof="everysec") as server, server.client() as client, sync_playwright() as playwright:
        fill(client)
        web = make_server("127.0.0.1", 0, dashboard(client, allow_write=True, label="staging"), threaded=True)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox", "--disable-lcd-text"])
        for name, path in [*PAGES.items(), ("overview-dark", "/")]:
            scheme = "dark" if name.endswith("dark") else "light"
            page = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme=scheme)
            page.goto(f"http://127.0.0.1:{web.server_port}{path}")
            image = IMAGES / f"{name}.png"
            image.write_bytes(compressed(page.screenshot()))
            assert image.stat().st_size < MOST_BYTES, image
            page.close()
        browser.close()
        web.shutdown()


if __name__ == "__main__":
    main()
