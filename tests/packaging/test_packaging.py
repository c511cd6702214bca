"""The examples in the README run."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import redis
from mypy import api

from redis_queue.store.settings import QueueOverrides, Settings
from redis_queue.web.settings import WebOverrides, WebSettings
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

README = (ROOT / "README.md").read_text()


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readme_is_short_and_has_two_examples() -> None:
    assert len(examples()) == 2
    assert README.count("\n") <= 120


def test_the_queue_example_of_the_readme_runs(redis_url: str, client: redis.Redis) -> None:
    code = examples()[1].replace("redis://localhost:6379/0", redis_url)
    code = code.replace("Consumer(", "stop_soon = Consumer(").replace(").run()", ")")
    code += (
        "import threading\n"
        "thread = threading.Thread(target=stop_soon.run)\nthread.start()\n"
        "while queue.stats().acked < 1: pass\n"
        "stop_soon.stop(); thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)

    assert done.returncode == 0, done.stderr
    assert "{'order': 42} 1" in done.stdout


def test_the_celery_example_of_the_readme_delays_tasks(redis_server: RedisServer, client: redis.Redis) -> None:
    code = examples()[0].replace("redis://localhost:6379/0", f"redis+socket://{redis_server.socket}")
    code += "print([(entry.id, entry.task, entry.args) for entry in durable.list()])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[('order-42', 'shop.cancel_order', '(42,)')]"]


# The files in the wheel and in the source distribution.

PACKAGE = ROOT / "redis_queue"


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def sources() -> set[str]:
    """Return the files of the package that belong into the wheel."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".pyo"))
    return {str(path.relative_to(ROOT)) for path in files if not path.is_relative_to(PACKAGE / "chaos")}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    found = {name for name in names(wheel) if ".dist-info/" not in name}
    assert found == sources()
    for name in ("py.typed", "lua/queue/get.lua", "web/templates/base.html", "web/static/style.css"):
        assert f"redis_queue/{name}" in found
    assert {name.split("/")[0] for name in found} == {"redis_queue"}


def test_the_wheel_declares_its_entry_points(wheel: Path) -> None:
    (file,) = (name for name in names(wheel) if name.endswith("entry_points.txt"))
    found = configparser.ConfigParser()
    found.read_string(zipfile.ZipFile(wheel).read(file).decode())
    assert {section: dict(found[section]) for section in found.sections()} == {
        "console_scripts": {"redis-queue": "redis_queue.cli:main"},
        "celery.commands": {"redis-queue": "redis_queue.cli.celery:group"},
        "celery.beat_schedulers": {"redis_queue": "redis_queue.celery.schedules.beat:RedisQueueScheduler"},
        "pytest11": {"redis_queue": "redis_queue.testing.plugin"},
    }


def test_the_wheel_has_the_licence_of_each_library(wheel: Path) -> None:
    (folder,) = {name.split("/")[0] for name in names(wheel) if ".dist-info/" in name}
    vendored = PACKAGE / "web" / "static" / "vendor"
    libraries = {path.name.split(".")[0].removesuffix("-ext") for path in vendored.glob("*.min.*")}
    licences = [ROOT / "LICENSE", *(vendored / f"{library}.LICENSE" for library in sorted(libraries))]
    with zipfile.ZipFile(wheel) as opened:
        for licence in licences:
            stored = opened.read(f"{folder}/licenses/{licence.relative_to(ROOT)}")
            assert stored == licence.read_bytes()
        assert "\nLicense-Expression: MIT AND 0BSD\n" in opened.read(f"{folder}/METADATA").decode()
    assert len(licences) == 4


def test_the_source_distribution_gives_the_same_wheel(distributions: Path, wheel: Path, tmp_path: Path) -> None:
    (source,) = distributions.glob("*.tar.gz")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=55)
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel.name
    assert names(again) == names(wheel)


# A type checker finds wrong settings and filters in keyword arguments.

CALLS = """
from redis_queue import DelayQueue, RedisQueue
from redis_queue.celery import DurableTasks
from redis_queue.web import dashboard

RedisQueue("orders", "redis://", max_deliveries=5, lease=30)
RedisQueue("orders", "redis://", max_delivery=5)  # wrong
RedisQueue("orders", "redis://", max_deliveries="5")  # wrong
DelayQueue("later", "redis://", shards=4)
DelayQueue("later", "redis://", shard=4)  # wrong
def look(delayed: DurableTasks) -> None:
    delayed.list(task="shop.remind", limit=5)[0]
    delayed.list(tasks="shop.remind")  # wrong
    delayed.scan(task="shop.remind")[0]  # wrong
    delayed.cancel_matching(quue="mail")  # wrong
dashboard("redis://", allow_write=True)
dashboard("redis://", allow_writes=True)  # wrong
"""


def test_wrong_keywords_are_type_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "calls.py"
    page.write_text(CALLS)
    # The configuration of the project, and with it its cache, is used.
    monkeypatch.chdir(ROOT)
    out, err, _ = api.run(["--no-error-summary", str(page)])
    lines = [int(line.split(":")[1]) for line in out.splitlines() if ": error: " in line]
    wrong = [number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith("# wrong")]
    assert (lines, err) == (wrong, ""), out


@pytest.mark.parametrize(("keywords", "settings"), [(QueueOverrides, Settings), (WebOverrides, WebSettings)])
def test_the_typed_keywords_match_the_settings(keywords: Any, settings: Any) -> None:
    assert get_type_hints(keywords) == get_type_hints(settings)
