"""The fenced code blocks of the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

DOCS = ROOT / "docs"

BLOCK = re.compile(r"(?:^<!-- ([\w ]+?)(?:: (.+?))? -->\n)?^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced code block; *mark* and *detail* come from the comment before it: ``<!-- mark: detail -->``."""

    language: str
    text: str
    line: int
    mark: str = ""
    detail: str = ""

    @property
    def file(self) -> str | None:
        """The file name in the first line, if there is one."""
        found = re.match(r"# ([\w/]+\.py)\n", self.text)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            found[4],
            _dedented(found[5], len(found[3])),
            text.count("\n", 0, found.start(4)) + 1,
            found[1] or "",
            found[2] or "",
        )
        for found in BLOCK.finditer(text)
    ]


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def matches(expected: str, found: str) -> bool:
    """Return whether *found* has the lines of *expected* in order; … matches anything, runs of blanks are one blank."""
    at = 0
    lines = [" ".join(line.split()) for line in found.splitlines()]
    for wanted in expected.splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in " ".join(wanted.split()).split("…"))
        at = next((number + 1 for number in range(at, len(lines)) if re.fullmatch(pattern, lines[number])), -1)
        if at < 0:
            return False
    return True


def _dedented(text: str, width: int) -> str:
    return "".join(line[width:] if line[:width].isspace() else line for line in text.splitlines(keepends=True))
