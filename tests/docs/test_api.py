"""Public names and signatures change on purpose only, and not in a release that promises to keep them."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import griffe

from docs.generated.api import SNAPSHOT, SOURCES, snapshot
from tests.support.paths import ROOT, copy_parts


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=50
    ).stdout.strip()


def breaking(folder: Path, tag: str) -> list[str]:
    """Return what a user of the public names of *tag* finds broken in the checkout *folder*."""
    options: dict[str, Any] = {"resolve_aliases": True, "resolve_external": False}
    old = griffe.load_git("redis_queue", ref=tag, repo=folder, **options)
    # A path from here would be that of this checkout.
    new = griffe.load("redis_queue", search_paths=[folder], try_relative_path=False, **options)
    public: set[str] = set()
    for module, chosen in SOURCES.values():
        found = old[module.partition(".")[2]] if "." in module else old
        for name in chosen or found.exports or ():
            thing = found[str(name)]
            bases = thing.mro() if thing.is_class else []
            public |= {each.canonical_path for each in (thing, *bases)}
    return [
        f"{broken.obj.canonical_path}: {broken.kind.value}"
        for broken in griffe.find_breaking_changes(old, new)
        if any(f"{broken.obj.canonical_path}.".startswith(f"{path}.") for path in public)
        and "._" not in broken.obj.canonical_path
    ]


def test_public_names_are_those_of_the_snapshot() -> None:
    assert snapshot().splitlines() == SNAPSHOT.read_text("utf-8").splitlines(), "if it is on purpose: make api"


def test_a_patch_release_breaks_no_caller() -> None:
    """Before 1.0, a minor release may: docs/stability.md."""
    tags = git(ROOT, "tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname").splitlines()
    kept = version("celery-redis-queue").split(".")[:2]
    same = [tag for tag in tags if tag.removeprefix("v").split(".")[:2] == kept]
    assert [problem for tag in same[:1] for problem in breaking(ROOT, tag)] == []


def test_changes_that_break_callers_are_found(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "released")
    folder = tmp_path / "released"
    copy_parts(["redis_queue"], folder)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "release")
    git(folder, "tag", "v0.1.0")
    assert breaking(folder, "v0.1.0") == []

    queue = folder / "redis_queue" / "queue" / "queue.py"
    text = queue.read_text("utf-8")
    queue.write_text(text.replace("def pause(self)", "def pause_all(self)"), "utf-8")
    base = folder / "redis_queue" / "store" / "base_queue.py"
    base.write_text(base.read_text("utf-8").replace("limit: int = MANY", "most: int = MANY", 1), "utf-8")
    found = breaking(folder, "v0.1.0")
    assert any(each.startswith("redis_queue.queue.queue.RedisQueue.pause: ") for each in found), found
    assert any(each.startswith("redis_queue.store.base_queue.BaseQueue.") for each in found), found
