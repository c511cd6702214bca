"""Logins, tokens and hosts of the dashboard, and the security headers of every answer."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.errors import ConfigurationError
from redis_queue.web import WebSettings, guard
from redis_queue.web.guard import SIGNATURE_BYTES
from tests.support.web.browser import SCREENS, Browser, is_own_script, token
from tests.support.web.contents import Open, everything

PAUSE = {"verb": "pause", "confirmed": "1", "operation": "x" * 22}

USERS = {"ann": "correct horse", "ben": "battery staple"}


def paused(client: redis.Redis, name: str = "orders") -> bool:
    return bool(client.hget(f"{{redis_queue:queue:{name}}}:meta", "paused"))


def pause(browser: Browser, **options: Any) -> int:
    """Send a form that pauses a queue; return the status."""
    form = browser.get("/queue?kind=queue&name=orders").form("/actions/queue/preview")
    data = {**dict(form.fields), **PAUSE, **options.pop("data", {})}
    kept = {name: value for name, value in data.items() if value is not None}
    return browser.raw("/actions/queue", method="POST", data=kept, **options).status_code


class TestUsers:
    def test_every_request_needs_a_login(self, open_dashboard: Open) -> None:
        browser = open_dashboard(users=USERS)
        for path in (*SCREENS, "/entry", "/nosuch", "/static/style.css"):
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT"):
                answer = browser.raw(path, method=method)
                assert answer.status_code == 401, (method, path)
                assert answer.headers["WWW-Authenticate"].startswith("Basic ")
                assert b"orders" not in answer.data

    @pytest.mark.parametrize(
        ("login", "status"),
        [
            (("ann", "correct horse"), 200),
            (("ben", "battery staple"), 200),
            (("ann", "battery staple"), 401),
            (("ann", ""), 401),
            (("", ""), 401),
            (("nobody", "correct horse"), 401),
            (("ann", "correct hors\u00e9"), 401),
        ],
    )
    def test_a_name_needs_its_password(self, login: tuple[str, str], status: int, open_dashboard: Open) -> None:
        assert open_dashboard(users=USERS).raw("/", auth=login).status_code == status

    @pytest.mark.parametrize(
        "header", ["Basic", "Basic ????", "Basic /w==", "Bearer x", "Basic YW5u", "\x00", "x" * 9000]
    )
    def test_invalid_headers(self, header: str, open_dashboard: Open) -> None:
        assert open_dashboard(users=USERS).raw("/", headers={"Authorization": header}).status_code == 401

    def test_passwords_are_compared_in_constant_time(
        self, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compared: list[bytes] = []

        class Watched:
            @staticmethod
            def compare_digest(expected: bytes, given: bytes) -> bool:
                compared.append(given)
                return hmac.compare_digest(expected, given)

        monkeypatch.setattr(guard, "hmac", Watched)
        browser = open_dashboard(users=USERS)
        for login in (("ann", "wrong one"), ("nobody", "wrong one")):
            browser.raw("/", auth=login)
        assert compared == [b"wrong one", b"wrong one"]

    def test_wrong_passwords_lock_the_login_for_a_while(
        self, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1000.0]
        monkeypatch.setattr(guard, "monotonic", lambda: now[0])
        browser = open_dashboard(users=USERS)

        def ask(password: str, address: str = "10.0.0.1") -> int:
            options = {"environ_overrides": {"REMOTE_ADDR": address}}
            return browser.raw("/audit", auth=("ann", password), **options).status_code

        assert [ask("wrong one") for _ in range(guard.MAX_FAILED_LOGINS)] == [401] * guard.MAX_FAILED_LOGINS
        assert (ask("wrong one"), ask(USERS["ann"])) == (429, 429)
        assert ask(USERS["ann"], "10.0.0.2") == 200
        now[0] += guard.FAILED_LOGIN_WINDOW + 1
        assert ask(USERS["ann"]) == 200

    def test_an_ipv6_network_counts_as_one_address(self, open_dashboard: Open) -> None:
        browser = open_dashboard(users=USERS)

        def ask(password: str, address: str) -> int:
            options = {"environ_overrides": {"REMOTE_ADDR": address}}
            return browser.raw("/audit", auth=("ann", password), **options).status_code

        for number in range(guard.MAX_FAILED_LOGINS):
            assert ask("wrong one", f"2001:db8:0:1:{number:x}::1") == 401
        assert ask(USERS["ann"], "2001:db8:0:1:ffff::1") == 429
        assert ask(USERS["ann"], "2001:db8:0:2::1") == 200

    def test_the_limit_of_a_name_holds_for_many_addresses(self, open_dashboard: Open) -> None:
        """The limit is per name; known addresses of the user are exempt."""
        browser = open_dashboard(users=USERS)

        def ask(name: str, password: str, address: str) -> int:
            options = {"environ_overrides": {"REMOTE_ADDR": address}}
            return browser.raw("/audit", auth=(name, password), **options).status_code

        assert ask("ann", USERS["ann"], "10.0.0.1") == 200
        codes = [ask("ann", "wrong one", f"10.1.0.{number}") for number in range(guard.MAX_FAILED_LOGINS_PER_NAME + 5)]
        assert codes == [401] * guard.MAX_FAILED_LOGINS_PER_NAME + [429] * 5
        assert ask("ann", USERS["ann"], "10.0.0.1") == 200
        assert ask("ben", USERS["ben"], "10.1.0.1") == 200

    def test_a_user_does_not_lock_out_others_with_the_same_address(self, open_dashboard: Open) -> None:
        browser = open_dashboard(users={**USERS, "zoe": "another long one"})
        for _ in range(guard.MAX_FAILED_LOGINS):
            browser.raw("/audit", auth=("ann", "wrong one"))
        assert browser.raw("/audit", auth=("ann", USERS["ann"])).status_code == 429
        assert browser.raw("/audit", auth=("zoe", "another long one")).status_code == 200
        assert browser.raw("/audit").status_code == 401

    def test_the_memory_for_failures_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guard, "BUCKETS", 3)
        wrong = guard._Failures(3)
        for number in range(20):
            wrong.add((str(number), "x"))
            wrong.add(("10.0.0.1", str(number)))
        assert len(wrong._times) <= 3

    def test_other_names_push_no_name_out_of_the_limit(self) -> None:
        wrong = guard._Failures(2)
        for _ in range(2):
            wrong.add(("10.0.0.1", "ann"))
            for number in range(10_001):
                wrong.add(("10.0.0.1", str(number)))
        assert wrong.is_blocked(("10.0.0.1", "ann"))

    @pytest.mark.parametrize(
        "options",
        [
            {"users": {}},
            {"users": {"ann": "short"}},
            {"users": {"a:b": "long enough"}},
            {"users": {"": "long enough"}},
            {"users": {"a\nb": "long enough"}},
            {"users": USERS, "identify": lambda _: "ann"},
            {"secret_key": "short"},
            {"hosts": []},
            {"hosts": "localhost"},
            {"label": "x" * 41},
        ],
    )
    def test_invalid_settings(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            WebSettings(**options)


class TestCallables:
    def test_an_application_identifies_the_user(self, open_dashboard: Open, filled: redis.Redis) -> None:
        def identify(environment: Mapping[str, object]) -> str | None:
            return environment.get("REMOTE_USER")  # type: ignore[return-value]

        browser = open_dashboard(identify=identify, allow_write=True)
        assert browser.raw("/").status_code == 403

        page = browser.open("/audit", environ_overrides={"REMOTE_USER": "carla"})
        assert (page.status, "carla" in page.text) == (200, True)

    def test_may_write_decides_for_each_request(self, open_dashboard: Open, filled: redis.Redis) -> None:
        browser = open_dashboard(
            users=USERS, allow_write=True, may_write=lambda env: "YW5u" in env["HTTP_AUTHORIZATION"]
        )
        for login, status, mode in (
            (("ben", USERS["ben"]), 403, "read-only"),
            (("ann", USERS["ann"]), 303, "read-write"),
        ):
            page = browser.open("/queue?kind=queue&name=orders", auth=login)
            assert mode in page.text
            token = dict(page.form("/actions/queue/preview").fields)["token"] if status == 303 else "x"
            data = {"kind": "queue", "name": "orders", "token": token, **PAUSE}
            assert browser.raw("/actions/queue", method="POST", auth=login, data=data).status_code == status
        assert paused(filled)

    def test_may_write_needs_allow_write(self, open_dashboard: Open) -> None:
        browser = open_dashboard(may_write=lambda _: True)
        assert "read-only" in browser.get().text
        assert browser.raw("/actions/scheduled", method="POST").status_code == 403


class TestForms:
    def test_with_a_valid_token(self, writer: Browser, filled: redis.Redis) -> None:
        assert pause(writer) == 303
        assert paused(filled)

    def test_tokens_of_two_responses_have_no_bytes_in_common(self, writer: Browser) -> None:
        """All are valid: what a compressed page contains of them differs each time, and within a page not."""
        pages = [writer.get("/queue?kind=queue&name=orders") for _ in range(2)]
        found = [token(page.source).partition(".")[2] for page in pages]
        assert {len(text) for text in found} == {4 * SIGNATURE_BYTES}
        halves = {text[start : start + 2 * SIGNATURE_BYTES] for text in found for start in (0, 2 * SIGNATURE_BYTES)}
        assert len(halves) == 4
        assert [writer.post(page.form("/preview"), ("verb", "pause")).status_code for page in pages] == [200, 200]

    @pytest.mark.parametrize("token", [None, "", "x", "x" * 32, "1.", "1.00", f"9999999999.{'0' * 128}", "\u00e4"])
    def test_without_a_valid_token(self, token: str | None, writer: Browser, filled: redis.Redis) -> None:
        assert pause(writer, data={"token": token}) == 403
        assert not paused(filled)

    def test_with_the_token_of_another_browser(
        self, writer: Browser, open_dashboard: Open, filled: redis.Redis
    ) -> None:
        other = dict(open_dashboard(allow_write=True).get("/scheduled").form("/preview").fields)["token"]
        assert pause(writer, data={"token": other}) == 403
        assert not paused(filled)

    def test_with_the_token_of_another_user(self, open_dashboard: Open, filled: redis.Redis) -> None:
        """With the same browser and cookie, a form is invalid after a login as another user."""
        browser = open_dashboard(users=USERS, allow_write=True)
        fields = dict(browser.open("/scheduled", auth=("ann", USERS["ann"])).form("/preview").fields)
        data = {"token": fields["token"], "queue": "scheduled", "verb": "cancel", "row": "delay:scheduled:task-1"}
        for name, status in (("ben", 403), ("ann", 200)):
            answer = browser.raw("/actions/scheduled/preview", method="POST", auth=(name, USERS[name]), data=data)
            assert answer.status_code == status, name

    def test_with_an_expired_token(self, writer: Browser, filled: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        form = writer.get("/scheduled").form("/preview")
        row = "delay:scheduled:task-1"
        assert writer.post(form, ("verb", "cancel"), row=row).status_code == 200
        later = time.time() + guard.TOKEN_SECONDS + 1
        monkeypatch.setattr(guard.time, "time", lambda: later)
        assert writer.post(form, ("verb", "cancel"), row=row).status_code == 403
        # The expiry is signed.
        token = dict(form.fields)["token"]
        longer = f"{int(later) + 100}.{token.partition('.')[2]}"
        assert writer.post(form, ("verb", "cancel"), row=row, token=longer).status_code == 403

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Origin": "http://localhost"}, 303),
            ({"Origin": "http://LOCALHOST:80"}, 303),
            ({"Origin": "https://localhost"}, 303),
            ({"Referer": "http://localhost/queue?kind=queue&name=orders"}, 303),
            ({"Origin": "http://localhost", "Referer": "http://evil.example/"}, 303),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "http://localhost:8055"}, 403),
            ({"Origin": "http://localhost.evil.example"}, 403),
            ({"Origin": "http://localhost@evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://[::1"}, 403),
            ({"Referer": "http://evil.example/localhost"}, 403),
            ({"Origin": "http://evil.example", "Referer": "http://localhost/"}, 403),
        ],
    )
    def test_origin_and_referer(
        self, headers: dict[str, str], status: int, writer: Browser, filled: redis.Redis
    ) -> None:
        """With a valid token, in browsers that do not send Sec-Fetch-Site."""
        del writer.headers["Sec-Fetch-Site"]
        assert pause(writer, headers=headers) == status
        assert paused(filled) is (status == 303)

    def test_without_a_cookie(self, writer: Browser, open_dashboard: Open, filled: redis.Redis) -> None:
        token = dict(writer.get("/scheduled").form("/preview").fields)["token"]
        data = {"kind": "queue", "name": "orders", "verb": "pause", "token": token}
        assert open_dashboard(allow_write=True).raw("/actions/queue", method="POST", data=data).status_code == 403
        assert not paused(filled)

    @pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "SAME-ORIGIN", ""])
    def test_from_another_site(self, site: str, writer: Browser, filled: redis.Redis) -> None:
        assert pause(writer, headers={"Sec-Fetch-Site": site}) == 403
        assert not paused(filled)

    def test_a_forged_cookie(self, writer: Browser, filled: redis.Redis) -> None:
        data = {"kind": "queue", "name": "orders", "verb": "pause", "token": "x"}
        writer.client.set_cookie("redis_queue_session", "eyJ0b2tlbiI6IngifQ.Z0AAAA.forged")
        assert writer.raw("/actions/queue", method="POST", data=data).status_code == 403
        assert not paused(filled)

    def test_a_read_only_dashboard_refuses_all(self, open_dashboard: Open, filled: redis.Redis) -> None:
        reader, before = open_dashboard(), everything(filled)
        token = next(dict(form.fields)["token"] for form in reader.get("/workers").forms if form.method == "post")
        for path in ("/actions/scheduled/preview", "/actions/scheduled", "/actions/queue", "/actions/queue/preview"):
            data = {"kind": "queue", "name": "orders", "verb": "pause", "token": token}
            assert reader.raw(path, method="POST", data=data).status_code == 403
        assert everything(filled) == before
        for path in SCREENS:
            assert [form.action for form in reader.get(path).forms if form.method == "post" and form.buttons] == []


class TestHosts:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("localhost", 200),
            ("localhost:8055", 200),
            ("queues.example.org", 200),
            ("evil.example", 400),
            ("localhost.evil.example", 400),
            ("localhost@evil.example", 400),
            ("queues.example.org.", 400),
            ("", 400),
            ("a b", 400),
            ("[::1", 400),
            ("localhost:99999999", 400),
            ("<script>alert(1)</script>", 400),
        ],
    )
    def test_only_configured_hosts_are_accepted(self, host: str, status: int, open_dashboard: Open) -> None:
        browser = open_dashboard(hosts=["localhost", "queues.example.org"])
        page = browser.open("/audit", headers={"Host": host})
        assert page.status == status
        assert "<script>alert" not in page.source


class TestHeaders:
    def test_every_answer_has_the_headers(self, open_dashboard: Open) -> None:
        browser = open_dashboard(users=USERS)
        ann = ("ann", USERS["ann"])
        paths = [*SCREENS, "/nosuch", "/entry?id=nosuch", "/queue", "/static/style.css", "/static/nosuch"]
        answers = [browser.raw(path, auth=ann) for path in paths] + [browser.raw("/"), browser.raw("/", method="POST")]
        for answer in answers:
            for name, value in guard.HEADERS.items():
                assert answer.headers.getlist(name) == [value]
        kept = [answer.headers.get("Cache-Control") != "no-store" for answer in answers]
        assert kept == [path == "/static/style.css" for path in paths] + [False, False]

    def test_the_policy_allows_only_own_resources(self) -> None:
        rules = dict(rule.split(" ", 1) for rule in guard.POLICY.split("; "))
        assert (rules["default-src"], rules["script-src"], rules["frame-ancestors"]) == ("'none'", "'self'", "'none'")
        assert set(rules.values()) == {"'none'", "'self'"}

    def test_pages_comply_with_the_policy(self, writer: Browser) -> None:
        for path in (*SCREENS, "/queue?kind=queue&name=orders", "/entry?queue=scheduled&id=task-1&body=1"):
            for tag, attributes in writer.get(path).tags:
                assert "style" not in attributes
                assert not any(name.startswith("on") for name in attributes)
                assert tag not in ("style", "iframe", "object", "embed", "base")
                if tag == "script":
                    assert is_own_script(attributes)

    @pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example", ".", "a" * 300])
    def test_invalid_host_names(self, host: str, open_dashboard: Open) -> None:
        for options in ({}, {"hosts": ["localhost"]}):
            answer = open_dashboard(**options).raw("/audit", headers={"Host": host})
            assert answer.status_code == 400, options
            assert answer.headers["Content-Security-Policy"]

    def test_dashboards_on_other_ports_have_their_own_cookies(self, open_dashboard: Open) -> None:
        names = []
        for port in (8055, 8056):
            browser = open_dashboard(allow_write=True, headers={"Host": f"localhost:{port}"})
            names.append(browser.raw("/scheduled").headers["Set-Cookie"].partition("=")[0])
        assert names == ["redis_queue_session_8055", "redis_queue_session_8056"]

    def test_a_plain_connection(self, writer: Browser) -> None:
        answer = writer.raw("/scheduled")
        parts = {part.strip() for part in answer.headers["Set-Cookie"].split(";")[1:]}
        assert parts == {"HttpOnly", "Path=/", "SameSite=Lax"}

    def test_tls(self, writer: Browser) -> None:
        answer = writer.raw("/scheduled", base_url="https://localhost")
        # The surrounding application must set it, since it serves the rest of the host.
        assert "Strict-Transport-Security" not in answer.headers
        parts = {part.strip() for part in answer.headers["Set-Cookie"].split(";")[1:]}
        assert parts == {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"}

    def test_pages_without_forms_set_no_cookie(self, reader: Browser, app: Celery) -> None:
        assert [path for path in SCREENS if "Set-Cookie" in reader.raw(path).headers] == ["/workers"]
