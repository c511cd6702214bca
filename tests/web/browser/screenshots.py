"""Write the images of docs/images: `python -m tests.web.browser.screenshots`, or `make screenshots`."""

from __future__ import annotations

import io

from celery import Celery
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from redis_queue.web import dashboard
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.web.chromium import EXECUTABLE, serving
from tests.support.web.contents import delayed_of
from tests.support.web.shop import fill_schedules, fill_shop, report_workers

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 120_000
SIZES = {"": (1280, 800), "-phone": (390, 844)}
SCHEMES = {"": "light", "-dark": "dark"}

ONCE = {
    "forecast": "/forecast?span=day",
    "scheduled": "/scheduled?task=shop.remind&body=1&limit=20",
    "dead": "/dead?limit=20",
    "entry": "/entry?queue=scheduled&id=order-1042&body=1",
    "queue": "/queue?kind=queue&name=orders",
    "flow": "/flow?name=queue:mail",
    "celery-queue": "/celery-queue?name=mail",
    "failure": "/failure?id=charge-1",
    "search": "/search?q=bill",
    "doctor": "/doctor",
}
"""Pages on a desk, in light colours."""

ALL_WAYS = {
    "overview": "/",
    "failures": "/failures",
    "history": "/history",
    "running": "/running",
    "task": "/task?id=charge-1040",
    "workers": "/workers",
    "schedules": "/schedules",
    "schedule": "/schedule?name=digest",
}
"""Pages on a desk and on a phone, in light and in dark colours."""


def compressed(png: bytes) -> bytes:
    """Return the image in 64 colours, with a third of the bytes and no visible difference."""
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with (
        RedisServer(aof="everysec") as server,
        server.client() as client,
        sync_playwright() as playwright,
        Celery("shop", broker=server.url.replace("unix://", "redis+socket://"), set_as_current=False) as app,
        serving(dashboard(app, allow_write=True, label="staging")) as address,
    ):
        delayed_of(app, client)
        fill_shop(client, app)
        fill_schedules(app)
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox", "--disable-lcd-text"])
        for name, path in ONCE.items():
            report_workers(client)
            write(browser, address + path, name, SIZES[""], "light")
        for name, path in ALL_WAYS.items():
            for size, pixels in SIZES.items():
                for colours, scheme in SCHEMES.items():
                    report_workers(client)
                    write(browser, address + path, name + size + colours, pixels, scheme)
        browser.close()


def write(browser: Browser, url: str, name: str, size: tuple[int, int], scheme: str) -> None:
    width, height = size
    phone = width < height
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        is_mobile=phone,
        has_touch=phone,
    )
    page = context.new_page()
    page.goto(url, wait_until="networkidle")
    image = IMAGES / f"{name}.png"
    image.write_bytes(compressed(page.screenshot()))
    assert image.stat().st_size < MAX_BYTES, image
    context.close()


if __name__ == "__main__":
    main()
