"""The wheel, built once for all processes of a test run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.packaging.environments import Environments, build, once
from tests.support.paths import ROOT


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run; with pytest-xdist, of all its workers."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "wheel-tests"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def distributions(shared: Path) -> Path:
    """A folder with the wheel, as a user would get it, and the source distribution."""
    return once(shared / "dist", lambda folder: build(folder, ROOT, "--wheel", "--sdist"))


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    """The wheel."""
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def environments(shared: Path, wheel: Path) -> Environments:
    """The environments with the wheel."""
    return Environments(shared, wheel)
