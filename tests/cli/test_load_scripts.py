"""``redis-queue load-scripts``, once and repeatedly with a Redis that loses its scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import redis

from redis_queue.store.script_files import all_scripts
from redis_queue.store.scripts import missing_scripts
from tests.support.cli.commands import Run
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


def test_it_loads_missing_scripts(run: Run, client: redis.Redis) -> None:
    client.script_flush()
    script, *_ = all_scripts()
    client.script_load(script.source)

    done = run("load-scripts", "--json")

    assert json.loads(done.stdout) == {"loaded": len(all_scripts()) - 1, "scripts": len(all_scripts())}
    assert missing_scripts(client) == []
    assert run("load-scripts").stdout == f"0 loaded, {len(all_scripts())} scripts\n"


def test_a_user_without_permission_is_refused(run: Run, client: redis.Redis, redis_url: str) -> None:
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "+evalsha")

    done = run("load-scripts", "--url", redis_url.replace("://", "://limited:pw@"))

    client.execute_command("ACL", "DELUSER", "limited")
    assert done.exit_code == 1
    assert "lacks a permission" in done.stderr


def test_with_every_it_loads_lost_scripts_again(server: RedisServer) -> None:
    def loaded() -> bool:
        try:
            with server.client() as client:
                return missing_scripts(client) == []
        except redis.ConnectionError:
            return False

    with subprocess.Popen(
        [sys.executable, "-m", "redis_queue", "load-scripts", "--every", "0.2"],
        cwd=ROOT,
        env={**os.environ, "REDIS_QUEUE_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            wait_until(loaded, description="the scripts to be loaded")
            told = [process.stdout.readline()]
            with server.client() as client:
                client.script_flush()
            wait_until(loaded, description="the scripts to be loaded after SCRIPT FLUSH")
            told.append(process.stdout.readline())
            server.restart()
            wait_until(loaded, description="the scripts to be loaded after a restart")
            told.append(process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()

    assert process.returncode == 0
    assert (told, out) == ([f"{len(all_scripts())} loaded, {len(all_scripts())} scripts\n"] * 3, "")
