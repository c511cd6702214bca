"""The examples in the README run, and its links exist."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import redis

from tests.support.paths import ROOT
from tests.support.servers import RedisServer

README = (ROOT / "README.md").read_text()


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readme_has_three_examples() -> None:
    assert len(examples()) == 3


@pytest.mark.parametrize("number", [1, 2])
def test_the_queue_examples_of_the_readme_run(number: int, redis_url: str, client: redis.Redis) -> None:
    code = examples()[number].replace("redis://localhost:6379/0", redis_url)
    code = code.replace("Consumer(", "stop_soon = Consumer(").replace(").run()", ")")
    if number == 1:
        code += (
            "import threading\n"
            "thread = threading.Thread(target=stop_soon.run)\nthread.start()\n"
            "while queue.stats().acked < 1: pass\n"
            "stop_soon.stop(); thread.join()\n"
        )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)

    assert done.returncode == 0, done.stderr
    if number == 1:
        assert "{'order': 42} 1" in done.stdout


def test_the_celery_example_of_the_readme_delays_tasks(redis_server: RedisServer, client: redis.Redis) -> None:
    code = examples()[0].replace("redis://localhost:6379/0", f"redis+socket://{redis_server.socket}")
    code += "print([(entry.id, entry.task, entry.args) for entry in durable.list()])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[('order-42', 'shop.cancel_order', '(42,)')]"]


def test_every_file_linked_in_the_readme_exists() -> None:
    for name in re.findall(r"\]\(([^):]+)\)", README):
        assert (ROOT / name).exists(), name
