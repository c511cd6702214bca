"""The example on FastAPI, with a real server and a real worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

from tests.support.celery.processes import CeleryProcess
from tests.support.paths import ROOT
from tests.support.ports import HOST, free_port
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


def ask(url: str, method: str = "GET", body: Any = None) -> Any:
    """Return the answer to a request; its status if it is an error, None if nobody listens."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(asked) as reply:  # noqa: S310
            return json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError:
        return None


def test_reminders_are_stored_listed_cancelled_and_awaited() -> None:
    with RedisServer(tcp=True) as server:
        environment = {"REDIS_URL": server.url}
        arguments = ("-A", "examples.reminders:celery_app", "worker", "--pool", "threads", "--loglevel", "INFO")
        worker = CeleryProcess(*arguments, environment=environment)
        port = free_port()
        command = [sys.executable, "-m", "uvicorn", "examples.reminders:api", "--port", str(port)]
        with worker.ready(), subprocess.Popen(command, cwd=ROOT, env={"PATH": "", **environment}) as web:
            try:
                follow(f"http://{HOST}:{port}")
            finally:
                web.terminate()
            # uvicorn ends by the signal, once the lifespan has ended.
            assert web.wait(20) in (0, -signal.SIGTERM)


def follow(site: str) -> None:
    """Use the application."""
    wait_until(lambda: ask(f"{site}/reminders") == [], description="the server")
    later = ask(f"{site}/reminders", "POST", {"to": "ann", "text": "hello", "seconds": 60})["id"]
    assert [row["id"] for row in ask(f"{site}/reminders")] == [later]
    assert ask(f"{site}/reminders/{later}") == 404
    assert ask(f"{site}/reminders/{later}", "DELETE") == {"cancelled": True}
    assert ask(f"{site}/reminders/{later}", "DELETE") == {"cancelled": False}
    soon = ask(f"{site}/reminders", "POST", {"to": "bob", "text": "hi", "seconds": 0.2})["id"]
    wait_until(lambda: ask(f"{site}/reminders/{soon}") == {"sent": "bob: hi"}, description="the reminder")
    ask(f"{site}/seen/page", "POST")
    wait_until(lambda: ask(f"{site}/seen") == {"page": 1}, description="the consumer")
