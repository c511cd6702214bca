"""The blocks of docs/tutorial.md run in an empty directory, with a separate Redis and real workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, blocks
from tests.docs.reader import Reader
from tests.support.parts import require
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.servers import RedisServer

pytestmark = pytest.mark.timeout(180)

PAGE = blocks(DOCS / "tutorial.md")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with an empty directory and a Redis."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with RedisServer(tcp=True) as server:
        reader = Reader(
            tmp_path,
            # Django sets TZ in its process according to its settings.
            {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "TZ": "UTC"},
            {"redis://localhost:6379/0": server.url, "8055": str(free_port())},
        )
        try:
            yield reader
        finally:
            reader.end()


def test_the_tutorial_works(reader: Reader) -> None:
    require("curl")
    assert {block.language for block in PAGE} == {"sh", "python", "text"}
    for block in PAGE:
        reader.do(block)
