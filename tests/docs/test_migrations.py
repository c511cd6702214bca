"""The pages for users of other libraries: both programs and the move run in order, with the versions on the page."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, blocks
from tests.docs.reader import Reader
from tests.packaging.environments import once
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.installs, pytest.mark.timeout(600)]

PLACE = ROOT / ".venv-bench"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of the benchmarks, which has the other libraries in pinned versions."""
    made = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        made = made.parent
    once(made / "bench", lambda _: subprocess.run(["make", ".venv-bench/.ready"], cwd=ROOT, check=True, timeout=500))
    return PLACE / "bin"


@pytest.mark.parametrize("name", ["rq", "huey", "dramatiq", "potatoq"])
def test_a_reader_moves(name: str, programs: Path, tmp_path: Path) -> None:
    page = blocks(DOCS / "how-to" / f"migrate-from-{name}.md")
    tried = {block.detail for block in page if block.mark == "with"}
    with RedisServer(tcp=True) as server:
        variables = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TZ": "UTC", "PYTHONPATH": "."}
        reader = Reader(tmp_path, variables, {"redis://localhost:6379/0": server.url})
        try:
            shown = "from importlib.metadata import version as v; print('{0}', v('{0}')); print(v('celery'))"
            versions = reader.run(["python", "-c", shown.format(name)]).splitlines()
            assert {versions[0]} == tried
            assert f"Celery {versions[1]}" in (DOCS / "how-to" / f"migrate-from-{name}.md").read_text("utf-8")
            for block in page:
                reader.do(block)
        finally:
            reader.end()
