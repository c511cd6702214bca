"""The reference documents all public names, and the table of contents lists every page."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from docs.generated import MAKERS, MARK, SITE, stale
from docs.generated import pages as contents
from docs.generated.api import SOURCES
from redis_queue import Settings, errors
from redis_queue.celery import CelerySettings
from redis_queue.cli import group
from redis_queue.store import keys
from redis_queue.web import WebSettings
from tests.docs.blocks import DOCS, pages
from tests.support.cli.commands import leaves
from tests.support.paths import ROOT

# It has no public API, only the command.
WITHOUT_API = {"validation"}


def page(name: str) -> str:
    return (DOCS / "reference" / f"{name}.md").read_text("utf-8")


def rows(text: str) -> dict[str, str]:
    """Return the first two cells of all table rows, the first without its quotes."""
    found = re.findall(r"^\| (?:&nbsp;)*`([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    return dict(found)


def test_generated_sections_and_their_marks_match() -> None:
    texts = [path.read_text("utf-8") for path in pages()]
    assert sorted(found[1] for text in texts for found in MARK.finditer(text)) == sorted(MAKERS)
    assert [name for text in texts for name in SITE.findall(text)] == [*contents.MAKERS]


def test_the_pages_are_up_to_date() -> None:
    assert [*stale()] == [], "make reference"


def test_an_outdated_page_is_found(tmp_path: Path) -> None:
    good = page("settings")
    told = tmp_path / "settings.md"
    told.write_text(good.replace("| `redis_queue_shards` | `1` |", "| `redis_queue_shards` | `2` |"), "utf-8")
    assert stale(tmp_path) == {told: good}


@pytest.mark.parametrize("path", sorted((DOCS / "reference").glob("*.md")), ids=lambda path: path.stem)
def test_the_reference_is_complete_on_github(path: Path) -> None:
    text = path.read_text("utf-8")
    for found in MARK.finditer(text):
        assert len(found[2]) > 100, found[1]
    # Markup that only Sphinx understands.
    assert not re.search(r"```\{|:\w+:`", text)


def test_every_page_is_in_the_contents_once() -> None:
    listed = re.findall(r"^[\w/-]+$", contents.contents(), re.MULTILINE)
    there = [str(path.relative_to(DOCS).with_suffix("")) for path in pages()]
    assert sorted([*listed, "index"]) == sorted(there)


@pytest.mark.parametrize(
    ("settings", "namespace"), [(CelerySettings, "redis_queue_"), (Settings, ""), (WebSettings, "")]
)
def test_every_setting_has_a_default_and_a_meaning(settings: type[Any], namespace: str) -> None:
    found = rows(page("settings"))
    for each in dataclasses.fields(settings):
        default, _, meaning = found[namespace + each.name].partition(" | ")
        assert default.startswith("`"), each.name
        assert len(meaning) > 10, each.name


def test_the_guides_name_every_setting_of_an_app() -> None:
    guides = (DOCS / "delayed-tasks.md").read_text("utf-8") + (DOCS / "task-leases.md").read_text("utf-8")
    for each in dataclasses.fields(CelerySettings):
        assert f"`redis_queue_{each.name}`" in guides, each.name


def test_every_command_and_option_is_documented() -> None:
    text = page("cli")
    sections = dict(re.findall(r"^## redis-queue ([\w -]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(leaves(group))
    for path, section in sections.items():
        command: Any = group
        for name in path.split():
            command = command.commands[name]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert re.search(rf"{re.escape(option)}\b", section), (path, option)
    assert "## redis-queue scheduled cancel" in text


def test_every_public_name_is_in_the_api_or_the_errors() -> None:
    told = rows(page("errors"))
    sections = dict(re.findall(r"^## ([\w.]+)\n(.*?)(?=^## |\Z)", page("api"), re.MULTILINE | re.DOTALL))
    for place, _ in SOURCES.values():
        for name in getattr(importlib.import_module(place), "__all__", ()):
            assert f"### {name}\n" in sections[place] or name in told, f"{place}.{name}"


def test_every_package_with_public_names_is_in_the_api() -> None:
    told = {module for module, _ in SOURCES.values()}
    for path in sorted((ROOT / "redis_queue").glob("*/__init__.py")):
        if "__all__" in path.read_text("utf-8") and path.parent.name not in WITHOUT_API:
            assert f"redis_queue.{path.parent.name}" in told, f"add {path.parent.name} to docs/generated/api.py"


def test_every_error_is_documented() -> None:
    told = rows(page("errors"))
    tree = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__:
            assert (value.__doc__ or "").strip() in told[name]
            assert name in tree


def test_every_key_is_documented() -> None:
    text = page("keys")
    for owner in keys.KEY_GROUPS:
        for key in owner.declarations().values():
            assert re.search(rf"^\| .*`{key.part}\b", text, re.MULTILINE), key.part


def test_every_script_is_documented() -> None:
    text = page("lua")
    scripts = sorted((ROOT / "redis_queue" / "lua").rglob("*.lua"))
    assert len(scripts) > 30
    for path in scripts:
        first = path.read_text("utf-8").splitlines()[0].removeprefix("-- ")
        assert f"## {path.parent.name}/{path.stem}\n\n```text\n{first}\n" in text


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", head)).lower().replace(" ", "-") for head in heads}


def test_links_between_pages_work() -> None:
    others = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")]
    for path in [*pages(), *others]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text("utf-8")):
            page = (path.parent / target) if target else path
            assert page.exists(), f"{path.name}: {target}"
            assert not anchor or anchor in anchors(page), f"{path.name}: {target}#{anchor}"
