"""The table of contents: existing pages in the order for readers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

GROUPS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "start": (
        "Start",
        (
            "tutorial",
            "delayed-tasks",
            "task-leases",
            "fetch",
            "schedules",
            "lock",
            "asyncio",
            "guarantees",
            "cookbook",
            "faq",
        ),
    ),
    "how-to": (
        "How to",
        (
            "how-to/django",
            "how-to/django-tasks",
            "how-to/flask",
            "how-to/fastapi",
            "how-to/data-queue",
            "how-to/roll-out",
            "how-to/production",
            "how-to/deploy",
            "how-to/rabbitmq",
            "how-to/sentinel",
            "how-to/cluster",
            "how-to/tune",
            "how-to/failures",
            "how-to/dead-letters",
            "how-to/migrate-from-eta",
            "how-to/migrate-from-beat",
            "how-to/migrate-from-longterm-scheduler",
            "how-to/migrate-from-rq",
            "how-to/migrate-from-huey",
            "how-to/migrate-from-dramatiq",
            "how-to/migrate-from-potatoq",
            "how-to/uninstall",
        ),
    ),
    "operate": (
        "Operate",
        ("cli", "dashboard", "incidents", "troubleshooting", "doctor", "metrics", "tracing", "security", "testing"),
    ),
    "understand": (
        "Understand",
        (
            "design",
            "states",
            "sizing",
            "scaling",
            "comparison",
            "figures",
            "articles",
            "stability",
            "defects",
            "glossary",
        ),
    ),
    "reference": (
        "Reference",
        ("reference/settings", "reference/cli", "reference/api", "reference/errors", "reference/keys", "reference/lua"),
    ),
}


def contents() -> str:
    """Return the tables of contents; pages without a group are in the last one."""
    named = {page for _, pages in GROUPS.values() for page in pages}
    there = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.rglob("*.md"))
    groups = [(caption, [page for page in pages if page in there]) for caption, pages in GROUPS.values()]
    others = [page for page in there if page not in named and page != "index"]
    return "\n".join(_toctree(caption, pages) for caption, pages in [*groups, ("More", others)] if pages)


def _toctree(caption: str, pages: list[str]) -> str:
    lines = "\n".join(pages)
    return f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


MAKERS: Final = {"contents": contents}
