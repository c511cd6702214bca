"""Django's own tests of task backends, from its source distribution, with RedisQueueBackend."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import django
import pytest

from tests.support.django.own_suite import MISFITS
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

# The tests are downloaded.
pytestmark = [pytest.mark.installs, pytest.mark.timeout(300)]

MODULES = {"test_dummy_backend": 15, "test_immediate_backend": 15, "test_tasks": 39}
"""Modules of tests and how many of them fit, at least."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("django")
    wanted = f"django=={django.__version__}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "django", wanted]
    subprocess.run(command, cwd=place, check=True, timeout=200)
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz") / "tests"


@pytest.mark.parametrize("module", MODULES)
def test_the_tests_of_django_pass(redis_tcp_server: RedisServer, folder: Path, module: str) -> None:
    with redis_tcp_server.client() as client:
        client.flushall()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.django.own_suite", folder, module, redis_tcp_server.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["run"] >= MODULES[module]
    assert found["misfits"] == sorted(name for name in MISFITS if name.startswith(f"{module}."))
