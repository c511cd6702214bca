"""The production checklist: its commands of Redis say what the page says, and its findings are those of the doctor."""

from __future__ import annotations

import re

from tests.docs.blocks import DOCS
from tests.support.servers import RedisServer

PAGE = (DOCS / "how-to" / "production.md").read_text("utf-8")
AS_ON_THE_PAGE = ("--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables."""
    return [re.split(r"\s*\|\s*", line)[1:-1] for line in text.splitlines() if line.startswith("| ")]


def test_the_checks_are_those_of_the_doctor() -> None:
    known = {name for row in rows((DOCS / "doctor.md").read_text("utf-8")) for name in re.split(", | \\(", row[0])}
    parts = [rows(part) for part in PAGE.split("\n## ") if "[doctor]" in part]
    named = {name for part in parts for row in part[1:] for name in row[-1].split(", ") if name}
    assert len(named) > 15
    assert named <= known, named - known


def test_a_redis_as_on_the_page_says_what_the_page_says() -> None:
    checked = [row for row in rows(PAGE) if len(row) > 2 and row[1].startswith("`redis-cli ")]
    assert len(checked) > 8
    with RedisServer(*AS_ON_THE_PAGE) as server, server.client(decode_responses=True) as client:
        for row in checked:
            answer = client.execute_command(*row[1].strip("`").split()[1:])
            pairs = answer.items() if isinstance(answer, dict) else [(answer, "")]
            said = "\n".join(f"{name}:{value} {value}" for name, value in pairs)
            if row[2].startswith("`"):
                assert row[2].strip("`") in said, row
