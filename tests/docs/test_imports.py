"""Test modules do not import each other: they share helpers through `tests/support` or a module that is not a test."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

TEST_MODULE_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:"
    r"(?:[\w.]*\.)?test_\w+\b"  # import tests.queue.test_queue, from tests.queue.test_queue import …
    r"|[\w.]+[ \t]+import[ \t]+(?:\([^)]*|[^\n(]*)\btest_\w+"  # from tests.queue import test_queue
    r")",
    re.MULTILINE,
)


def test_no_module_imports_a_test_module() -> None:
    files = (ROOT / "tests").rglob("*.py")
    assert {
        str(file.relative_to(ROOT)): found[0]
        for file in files
        if (found := TEST_MODULE_IMPORT.search(file.read_text("utf-8")))
    } == {}


@pytest.mark.parametrize(
    "line",
    [
        "import tests.queue.test_queue",
        "from tests.queue.test_queue import put",
        "    from tests.queue.test_queue import put",
        "from tests.queue import test_queue",
        "from tests.queue import (\n    helpers,\n    test_queue,\n)",
        "from .test_queue import put",
        "from . import test_queue",
    ],
)
def test_each_form_of_the_import_is_found(line: str) -> None:
    assert TEST_MODULE_IMPORT.search(f"import re\n{line}\n")


@pytest.mark.parametrize("line", ["from tests.support.wait import wait_until", "from redis_queue import testing"])
def test_other_imports_are_allowed(line: str) -> None:
    assert not TEST_MODULE_IMPORT.search(f"import re\n{line}\n")
