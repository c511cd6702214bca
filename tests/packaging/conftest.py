"""The wheel, built once per test run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.environments import Environments, build, once
from tests.support.paths import ROOT
from tests.support.servers import RedisServer


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder of this test run, shared by all pytest-xdist workers."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "wheel-tests"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def distributions(shared: Path) -> Path:
    """A folder with the built wheel and the source distribution: REDIS_QUEUE_TEST_DIST, or built for this run."""
    if built := os.environ.get("REDIS_QUEUE_TEST_DIST"):
        return Path(built)
    return once(shared / "dist", lambda folder: build(folder, ROOT, "--wheel", "--sdist"))


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def environments(shared: Path, wheel: Path) -> Environments:
    """Virtual environments in which the wheel is installed."""
    return Environments(shared, wheel)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis for the test, at a port, as a user has one."""
    with RedisServer(tcp=True) as server:
        yield server
