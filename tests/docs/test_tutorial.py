"""The blocks of the tutorial and of a Django project run in an empty directory, with a separate Redis and workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, blocks
from tests.docs.reader import Reader
from tests.support.parts import require
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.servers import RedisServer

FRAMEWORK = "django.tasks" if find_spec("django.tasks") else "django_tasks"

pytestmark = pytest.mark.timeout(180)

PAGE = blocks(DOCS / "tutorial.md")

DJANGO_TASKS = blocks(DOCS / "how-to/django-tasks.md")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with an empty directory and a Redis."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with RedisServer(tcp=True) as server:
        reader = Reader(
            tmp_path,
            # Django sets TZ in its process according to its settings.
            {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT), "TZ": "UTC"},
            {"redis://localhost:6379/0": server.url, "8055": str(free_port()), "django.tasks": FRAMEWORK},
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


def test_the_project_with_the_tasks_of_django_works(reader: Reader) -> None:
    for block in DJANGO_TASKS:
        reader.do(block)
