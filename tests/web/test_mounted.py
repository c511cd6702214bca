"""The dashboard under a path of another application, and with a proxy."""

from __future__ import annotations

import http.client
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from redis_queue.web import dashboard
from tests.support.wait import must
from tests.support.web.browser import Browser, crawl
from tests.support.web.contents import KEY, Serve


def in_flask(pages: Any) -> Any:
    """Return a Flask application with the dashboard at /queues, as in docs/dashboard.md."""
    app = Flask("shop")
    app.add_url_rule("/hello", view_func=lambda: "hello from Flask")
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/queues": pages})  # type: ignore[method-assign]
    return app


@pytest.mark.parametrize("mount", [in_flask])
class TestMounted:
    def test_all_links_and_forms_stay_under_the_path(
        self, mount: Callable[[Any], Any], filled: redis.Redis, app: Celery
    ) -> None:
        browser = Browser(mount(dashboard(app, allow_write=True, secret_key=KEY)), prefix="/queues")
        assert browser.open("/hello").text.startswith("hello from ")
        pages = crawl(browser, 2)
        assert [address for address, page in pages.items() if page.status != 200] == []
        for page in pages.values():
            for _, attributes in page.tags:
                for name in ("href", "src", "action"):
                    value = attributes.get(name, "#")
                    assert value.startswith(("/queues/", "#")), value
        assert browser.raw("/queues/static/style.css").status_code == 200
        answer = browser.raw("/queues")
        assert (answer.status_code, answer.headers["Location"]) == (308, "/queues/")

    def test_actions(self, mount: Callable[[Any], Any], filled: redis.Redis, app: Celery) -> None:
        browser = Browser(mount(dashboard(app, allow_write=True, secret_key=KEY)), prefix="/queues")
        page = browser.get("/queue?kind=queue&name=orders")
        assert "Path=/queues/" in browser.raw("/queues/scheduled").headers.get("Set-Cookie", "Path=/queues/")
        done = browser.send(browser.send(page.form("/actions/queue/preview"), ("verb", "pause")).form("/queue"))
        assert "orders paused." in done.text
        asked = browser.send(browser.get("/dead").form("/preview"), ("verb", "redrive"), matching="1")
        assert "2 redriven." in browser.send(asked.confirmation).text

    def test_the_cookie_is_for_this_path_only(
        self, mount: Callable[[Any], Any], filled: redis.Redis, app: Celery
    ) -> None:
        browser = Browser(mount(dashboard(app, allow_write=True, secret_key=KEY)), prefix="/queues")
        assert "Path=/queues/;" in browser.raw("/queues/scheduled").headers["Set-Cookie"] + ";"


class TestProxy:
    """A separate process with a proxy that terminates TLS and removes a path."""

    FORWARDED: Final = {
        "Host": "127.0.0.1",
        "X-Forwarded-For": "10.9.9.9",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "ops.example.org",
        "X-Forwarded-Prefix": "/queues",
    }

    def ask(self, port: int, path: str, **options: Any) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(options.get("method", "GET"), path, options.get("body"), options.get("headers", {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def test_its_headers_are_used(self, serve: Serve, filled: redis.Redis, redis_url: str) -> None:
        password = {"REDIS_QUEUE_WEB_PASSWORD": "correct horse"}
        options = ("--trust-proxy", "--host", "ops.example.org", "--allow-write")
        served = serve(*options, url=redis_url, environment=password)
        login = {**self.FORWARDED, "Authorization": f"Basic {b64encode(b'admin:correct horse').decode()}"}
        status, headers, page = self.ask(served.port, "/queue?kind=queue&name=orders", headers=login)
        assert status == 200
        assert headers["Strict-Transport-Security"]
        cookie = headers["Set-Cookie"]
        assert "Secure" in cookie
        assert "Path=/queues/" in cookie
        links = re.findall(r'(?:href|src|action)="([^"]+)"', page)
        assert [link for link in links if not link.startswith(("/queues/", "#"))] == []

        token = must(re.search(r'name="token" value="([^"]+)"', page))
        sent = {
            **login,
            "Origin": "https://ops.example.org",
            "Cookie": cookie.split(";")[0],
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = f"kind=queue&name=orders&verb=pause&confirmed=1&operation={'x' * 22}&token={token[1]}"
        status, headers, _ = self.ask(served.port, "/actions/queue", method="POST", headers=sent, body=body)
        assert status == 303
        target = urlsplit(headers["Location"])
        assert (target.netloc, target.path) == ("", "/queues/queue")

        forged = {**login, "X-Forwarded-Host": "evil.example"}
        assert self.ask(served.port, "/queues", headers=forged)[0] == 400

    def test_without_the_option_its_headers_are_ignored(
        self, serve: Serve, filled: redis.Redis, redis_url: str
    ) -> None:
        served = serve("--host", "ops.example.org", url=redis_url)
        status, headers, page = self.ask(served.port, "/", headers=self.FORWARDED)
        assert status == 200
        assert "Strict-Transport-Security" not in headers
        assert "/queues/static" not in page
