"""The tree in docs/design.md matches the package, and the files that CONTRIBUTING.md names exist."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT

NOT_LISTED = {"__pycache__", "management", "migrations", "static", "templates"}


def documented() -> list[str]:
    """Return the paths of the tree, in order."""
    tree = re.search(r"```text\n(.*?)```", (ROOT / "docs" / "design.md").read_text("utf-8"), re.DOTALL)
    assert tree is not None
    found: list[str] = []
    above: list[str] = []
    for line in tree[1].splitlines():
        indent, name = re.fullmatch(r"( *)(\S+)(?: +\S.*)?", line).groups()  # type: ignore[union-attr]
        above[len(indent) // 2 :] = [name]
        found.append("".join(above))
    return found


def test_the_tree_lists_each_folder_and_each_top_level_module() -> None:
    folders = [
        path
        for top in ("redis_queue", "chaos", "proof")
        for path in [ROOT / top, *(ROOT / top).rglob("*")]
        if path.is_dir() and not NOT_LISTED.intersection(path.relative_to(ROOT).parts)
    ]
    listed_folders = {f"{folder.relative_to(ROOT)}/" for folder in folders}
    modules = {f"redis_queue/{path.name}" for path in (ROOT / "redis_queue").glob("*.py") if path.name != "__main__.py"}
    assert sorted(documented()) == sorted(listed_folders | modules)


def test_the_map_of_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+(?:\.py|\.lua|/))`", text))
    assert len(named) > 30
    assert {name for name in named if not any((top / name).exists() for top in (ROOT, ROOT / "redis_queue"))} == set()


# Test modules do not import each other: they share helpers through `tests/support` or a module that is not a test.

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
