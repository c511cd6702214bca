"""`redis-queue web`: addresses, logins, signals and errors."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import redis
from click.testing import CliRunner

from redis_queue import RedisQueue
from redis_queue.cli import group
from redis_queue.cli.web import is_loopback
from redis_queue.web import guard
from redis_queue.web.app import HTMX, MAX_AGE, addresses
from tests.support.paths import VENDOR, VENDORED
from tests.support.web.browser import Browser
from tests.support.web.contents import Serve, Served


def ask(served: Served, login: str = "") -> int:
    headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}
    try:
        with urlopen(Request(f"{served.url}/queues", headers=headers), timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


class TestRefusals:
    @pytest.mark.parametrize("bind", ["0.0.0.0", "", "::", "10.1.2.3", "0", "::ffff:0.0.0.0"])  # noqa: S104
    def test_other_addresses_need_users(self, bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("REDIS_QUEUE_WEB_PASSWORD", raising=False)
        done = CliRunner().invoke(group, ["web", "--bind", bind])
        assert done.exit_code == 2
        assert "everyone who can reach this address could use it" in done.output

    @pytest.mark.parametrize(("bind", "is_own"), [("127.0.0.1", True), ("::1", True), ("127.9.9.9", True), ("", False)])
    def test_loopback_addresses(self, bind: str, is_own: bool) -> None:
        assert is_loopback(bind) is is_own

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "contains no users"),
            ("# only a comment\n\n", "contains no users"),
            ("ann\n", "line 1: give name:password"),
            ("ann:short\n", "at least 8"),
            (":long enough\n", "printable name"),
        ],
    )
    def test_invalid_files_of_users(self, text: str, said: str, tmp_path: Path) -> None:
        users = tmp_path / "users"
        users.write_text(text)
        done = CliRunner().invoke(group, ["web", "--auth-file", str(users)], catch_exceptions=True)
        assert done.exit_code != 0
        assert said in f"{done.output} {done.exception}"
        assert "long enough" not in done.output

    def test_a_file_of_users_in_another_encoding(self, tmp_path: Path) -> None:
        users = tmp_path / "users"
        users.write_bytes("ann:schöner als lang\n".encode("latin-1"))
        done = CliRunner().invoke(group, ["web", "--auth-file", str(users)], catch_exceptions=False)
        assert (done.exit_code, "cannot be read: it is not UTF-8" in done.output) == (2, True)

    @pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])  # noqa: S104
    @pytest.mark.parametrize("options", [["--allow-write"], ["--allow", "retry"]])
    def test_actions_with_a_proxy_need_users(
        self, bind: str, options: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("REDIS_QUEUE_WEB_PASSWORD", raising=False)
        done = CliRunner().invoke(group, ["web", "--trust-proxy", *options, "--bind", bind])
        assert done.exit_code == 2
        assert "--auth-file" in done.output

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--allow", "retri"], "'retri' is not one of 'cancel', 'reschedule', 'run-now'"),
            (["--allow", "retry", "--allow-write"], "--allow-write and --allow: give one of them"),
        ],
    )
    def test_invalid_permissions(self, options: list[str], text: str) -> None:
        done = CliRunner().invoke(group, ["web", *options])
        assert (done.exit_code, text in done.output) == (2, True), done.output

    @pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
    def test_a_file_of_users_that_others_can_read_is_warned_of(self, mode: int, is_told: bool, tmp_path: Path) -> None:
        users = tmp_path / "users"
        users.write_text("ann:short\n")
        users.chmod(mode)
        done = CliRunner().invoke(group, ["web", "--auth-file", str(users)], catch_exceptions=True)
        assert ("is not private: chmod 600" in done.output) is is_told

    def test_a_port_in_use(self, serve: Serve, client: redis.Redis, redis_url: str) -> None:
        port = serve(url=redis_url).port
        command = [sys.executable, "-m", "redis_queue", "web", "--port", str(port), "--url", redis_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


class TestServing:
    def test_users_of_a_file_on_every_address(
        self, serve: Serve, client: redis.Redis, redis_url: str, tmp_path: Path
    ) -> None:
        users = tmp_path / "users"
        users.write_text("# who may\nann:correct horse\n")
        served = serve("--bind", "0.0.0.0", "--auth-file", str(users), "--label", "production", url=redis_url)  # noqa: S104
        assert (ask(served), ask(served, "ann:correct horse"), ask(served, "ann:wrong horse")) == (401, 200, 401)
        command = Path(f"/proc/{served.process.pid}/cmdline")
        assert not command.exists() or b"correct" not in command.read_bytes()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 0
        assert "Traceback" not in served.output

    @pytest.mark.parametrize(
        ("options", "shown"),
        [
            ([], ("read-only", [])),
            (["--allow", "retry", "--allow", "pause", "--allow", "retry"], ("only retry, pause allowed", ["pause"])),
            (["--allow-write"], ("changes allowed", ["pause", "putback"])),
        ],
    )
    def test_permissions(
        self, options: list[str], shown: tuple[str, list[str]], serve: Serve, client: redis.Redis, redis_url: str
    ) -> None:
        RedisQueue("orders", client).put("x")
        mode, buttons = shown
        served = serve(*options, url=redis_url)
        assert f"/, {mode}\n" in served.output
        with urlopen(f"{served.url}/queue?kind=queue&name=orders", timeout=10) as answer:  # noqa: S310
            assert re.findall(r'name="verb" value="([^"]+)"', answer.read().decode()) == buttons

    def test_a_password_of_the_environment(self, serve: Serve, client: redis.Redis, redis_url: str) -> None:
        served = serve(url=redis_url, environment={"REDIS_QUEUE_WEB_PASSWORD": "correct horse"})
        assert (ask(served), ask(served, "admin:correct horse")) == (401, 200)
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(10) in (0, 130)
        assert "Traceback" not in served.output

    def test_an_unreachable_redis_is_shown_on_the_page(self, serve: Serve, tmp_path: Path) -> None:
        url = f"unix://:hunter2@{tmp_path}/nobody?db=0"
        served = serve(url=url)
        assert ask(served) == 503
        assert "hunter2" not in served.output
        with pytest.raises(HTTPError) as raised:
            urlopen(f"{served.url}/scheduled", timeout=10)  # noqa: S310
        with raised.value as answer:
            page = answer.read().decode()
        assert "Redis request failed" in page
        assert "hunter2" not in page

    def test_as_a_command_of_a_celery_app(self, serve: Serve, client: redis.Redis, redis_url: str) -> None:
        environment = {
            "BROKER_URL": f"redis+socket{redis_url.removeprefix('unix').partition('?')[0]}",
            "STORE_URL": redis_url,
        }
        served = serve(
            url=redis_url,
            environment={**environment, "QUEUE": "tests", "PYTHONPATH": str(Path.cwd())},
            group=("celery", "-A", "tests.support.celery.delaying_app", "redis-queue"),
        )
        assert ask(served) == 200
        with urlopen(f"{served.url}/workers", timeout=10) as answer:  # noqa: S310
            assert "Ask the workers" in answer.read().decode()


# Static files: libraries are those of the table, and addresses change with the content.


def table() -> dict[str, str]:
    """Return the digest of each file in the table of libraries."""
    return {file: digest for file, _, _, _, digest in VENDORED.findall((VENDOR / "README.md").read_text())}


def test_libraries_are_those_of_the_table() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["README.md"]
    assert found == table()


def test_each_library_has_its_licence() -> None:
    names = {name.split(".")[0].split("-")[0] for name in table()}
    assert {name for name in names if not (VENDOR / f"{name}.LICENSE").is_file()} == set()


def test_libraries_need_no_other_host() -> None:
    for name in table():
        assert "sourceMappingURL" not in (VENDOR / name).read_text()


def test_htmx_may_not_evaluate_text_or_add_styles() -> None:
    settings = json.loads(HTMX)
    assert (settings["allowEval"], settings["includeIndicatorStyles"], settings["allowScriptTags"]) == (False,) * 3
    assert settings["selfRequestsOnly"] is True


def test_pages_have_the_settings_of_htmx(reader: Browser) -> None:
    (content,) = (found["content"] for tag, found in reader.get().tags if found.get("name") == "htmx-config")
    assert content == HTMX


def test_files_are_kept_by_browsers(reader: Browser) -> None:
    found = [attributes.get("src") or attributes.get("href", "") for _, attributes in reader.get().tags]
    static = [address for address in found if address.startswith("/static/")]
    assert {urlsplit(address).path for address in static} > {"/static/style.css", "/static/vendor/htmx.min.js"}
    for address in static:
        answer = reader.raw(address)
        assert (answer.status_code, answer.cache_control.max_age) == (200, MAX_AGE), address


def test_a_changed_file_has_another_address(tmp_path: Path, reader: Browser) -> None:
    file = tmp_path / "style.css"
    found = set()
    for content in ("a", "b", "a"):
        file.write_text(content)
        with reader.client.application.test_request_context():
            found.add(addresses(tmp_path)("style.css"))
    assert len(found) == 2
    assert all(re.fullmatch(r"/static/style\.css\?v=[0-9a-f]{12}", address) for address in found)


# Pages: compressed, and as an update only what has changed.

UPDATE = {"HX-Request": "true"}


@pytest.mark.parametrize(
    ("headers", "is_compressed"),
    [
        ({}, False),
        ({"Accept-Encoding": "gzip, br"}, True),
        ({"Accept-Encoding": "gzip", **UPDATE}, True),
        ({"Accept-Encoding": "gzip;q=0, identity"}, False),
        ({"Accept-Encoding": "br"}, False),
        # The size of a page must not tell another site what it contains.
        ({"Accept-Encoding": "gzip", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Accept-Encoding": "gzip", "Sec-Fetch-Site": "same-site"}, False),
        ({"Accept-Encoding": "gzip", "Sec-Fetch-Site": "none"}, True),
    ],
)
def test_pages_are_compressed(headers: dict[str, str], is_compressed: bool, reader: Browser) -> None:
    answer = reader.raw("/scheduled", headers=headers)
    assert {"Accept-Encoding", "HX-Request", "Cookie"} >= set(answer.vary) >= {"Accept-Encoding", "HX-Request"}
    assert answer.content_length == len(answer.data)
    assert answer.content_encoding == ("gzip" if is_compressed else None)
    page = gzip.decompress(answer.data) if is_compressed else answer.data
    assert b"Waiting entries by due time" in page
    assert reader.raw("/static/style.css", headers=headers).content_encoding is None
    assert reader.raw("/search/suggest?q=nosuch", headers=headers).content_encoding is None


def test_an_update_has_title_and_content_only(reader: Browser) -> None:
    page, update = reader.get("/").source, reader.raw("/", headers=UPDATE).get_data(as_text=True)
    assert re.match(r'<title>(?:\(\d+\) )?Overview · redis_queue</title><main id="main"', update)
    assert update.endswith("</main>")
    assert (page.count("<h1>"), update.count("<h1>")) == (1, 1)
    assert (page.count(", as a table"), update.count(", as a table")) == (6, 0)
    some = reader.raw("/", headers={**UPDATE, "X-Open": "chart-runs chart-late-1 <x>"}).get_data(as_text=True)
    assert some.count(", as a table") == 2
    refused = reader.raw("/?span=1y", headers=UPDATE)
    assert (refused.status_code, b"<main" in refused.data) == (400, True)


def test_nothing_is_sent_if_nothing_has_changed(
    writer: Browser, filled: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the token of its forms is another one; after hours the page gets a new one before its own expires."""
    path = "/celery-queue?name=celery"
    first = writer.raw(path, headers=UPDATE)
    assert b'name="token"' in first.data
    known = {**UPDATE, "If-None-Match": first.headers["ETag"], "Accept-Encoding": "gzip"}
    same = writer.raw(path, headers=known)
    assert (same.status_code, same.data, same.content_encoding) == (304, b"", None)
    assert writer.raw(path, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200
    hours = time.time() + 3600
    with monkeypatch.context() as patch:
        patch.setattr(guard.time, "time", lambda: hours)
        assert writer.raw(path, headers=known).status_code == 200
    filled.lpush("celery", "x")
    assert writer.raw(path, headers=known).status_code == 200
