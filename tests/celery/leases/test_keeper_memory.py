"""A keeper takes little memory: each worker has one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.celery.leasing import Leasing, keeper_of
from tests.support.celery.leasing_names import WAIT
from tests.support.ports import HOST
from tests.support.servers import RedisServer

pytestmark = pytest.mark.timeout(180)

MEGABYTE = 1024 * 1024

MAX_BYTES = 35 * MEGABYTE
"""Maximum number of resident memory (VmRSS) of a keeper, with the pages that it shares with other processes."""


@pytest.fixture(autouse=True)
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keepers find compiled modules, as after an installation, but not OpenTelemetry, which redis-py imports.

    To compile takes 17 MB, OpenTelemetry 3 MB.
    """
    (tmp_path / "opentelemetry.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    subprocess.run([sys.executable, "-c", "import redis_queue.keeper.loop"], check=True)


@contextmanager
def leasing_on(kind: str) -> Iterator[Leasing]:
    """Start a Redis and yield a Leasing whose broker uses this kind of connection."""
    with RedisServer(tcp=kind == "tcp", tls=kind == "tls") as store, store.client() as client:
        if kind == "tcp":
            client.acl_setuser("shop", enabled=True, passwords=["+p:w"], commands=["+@all"], keys=["*"], channels=["*"])
            url = f"redis://shop:p%3Aw@localhost:{store.port}/0"
        elif kind == "tls":
            url = f"rediss://{HOST}:{store.port}/0?ssl_ca_certs={store.directory}/ca.crt"
        else:
            url = f"redis+socket://{store.socket}"
        yield Leasing(store, client, url)


@pytest.mark.parametrize("kind", ["unix", "tcp", "tls"])
def test_keeper_takes_little_memory(kind: str) -> None:
    with leasing_on(kind) as leasing, leasing.worker("one").ready() as one:
        leasing.send(WAIT)
        leasing.wait_for_leases(1)
        ((tag, since),) = leasing.held().items()
        # All is loaded once it has renewed.
        leasing.wait_for_renewal(tag, since, 1)
        used = keeper_of(one).memory_info().rss
        leasing.end_task("one")
        leasing.wait_until_settled()
    assert used <= MAX_BYTES
