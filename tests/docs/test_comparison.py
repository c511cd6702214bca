"""Claims about others in docs/comparison.md have a source and a version; docs/figures.md has what was measured."""

from __future__ import annotations

import json
import re

import pytest

from docs.generated import MARK, figures
from tests.docs.blocks import DOCS
from tests.support.paths import ROOT

PAGE = (DOCS / "comparison.md").read_text("utf-8")
SOURCED = re.compile(r"\[[^]]*\]\(https://[^)]+\)")
# A month is the version of a service.
VERSION = re.compile(r"\d+\.\d+|\b20\d\d\b")
OTHERS = (
    "Celery alone", "Celery on RabbitMQ", "celery-redis-plus", "potatoq", "relier", "RedBeat", "django-celery-beat",
    "Flower", "celery-singleton", "RabbitMQ's delayed message plugin", "Amazon SQS", "BullMQ", "Oban", "Sidekiq",
    "Hatchet", "Temporal",
)  # fmt: skip


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def about_others(title: str) -> list[str]:
    """Return the rows, or items, of a section that are about others, without the head of a table."""
    text = section(title)
    rows = re.findall(r"^\| (?!\*\*redis_queue|\|).*", text, re.MULTILINE)
    return rows or re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)


@pytest.mark.parametrize("title", ["What becomes of a task", "What controls tasks", "Choose them when"])
def test_each_row_about_others_has_its_source_and_its_version(title: str) -> None:
    found = about_others(title)
    assert len(found) > 10
    for row in found:
        # The first link after the name is the source; the version is its text, or stands beside it.
        assert SOURCED.search(row), row
        assert VERSION.search(row), row


@pytest.mark.parametrize("title", ["Delayed tasks in detail", "Control room"])
def test_each_column_about_others_has_its_source_and_its_version(title: str) -> None:
    (row,) = re.findall(r"^\| version \| (.*) \|$", section(title), re.MULTILINE)
    for cell in row.split(" | "):
        assert cell == "0.1.0" or (SOURCED.search(cell) and VERSION.search(cell)), cell


def test_each_of_them_is_chosen_for_a_reason() -> None:
    names = [re.match(r"- \*\*(.+?)\*\*", item)[1] for item in about_others("Choose them when")]  # type: ignore[index]
    assert [name for name in OTHERS if not any(found.startswith(name) for found in names)] == []


@pytest.mark.parametrize("title", ["What becomes of a task", "What controls tasks"])
def test_our_own_row_links_pages(title: str) -> None:
    (row,) = re.findall(r"^\| \*\*redis_queue\*\* .*", section(title), re.MULTILINE)
    assert len(re.findall(r"\]\([\w/-]+\.md", row)) >= 3


def test_the_figures_are_those_that_were_measured_and_each_has_its_command() -> None:
    measured = json.loads(figures.FILE.read_text("utf-8"))
    parts = dict(MARK.findall((DOCS / "figures.md").read_text("utf-8")))
    targets = set(re.findall(r"^(bench-\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for name, benchmark in figures.BENCHMARKS.items():
        command = re.match(r"make (bench-\w+)", benchmark.command)
        assert benchmark.command in parts[f"figures-{name}"]
        if name in measured:
            assert command is None or command[1] in targets
            for value in re.findall(r'": (-?\d[\d.]*)', json.dumps(measured[name])):
                assert f"{json.loads(value):,}" in parts[f"figures-{name}"], (name, value)


def test_only_the_page_of_figures_has_measured_rates() -> None:
    for text in (PAGE, (ROOT / "README.md").read_text("utf-8")):
        assert re.findall(r"make bench-[\w-]+|\d[ .,\d]* k/s", text) == []
