"""The sections of examples/README.md: for each example the extras that it installs and the blocks to run."""

from __future__ import annotations

import re

from tests.docs.blocks import Block, blocks
from tests.support.paths import ROOT

README = ROOT / "examples" / "README.md"
INSTALL = re.compile(r"pip install '?\.(?:\[([\w,]+)\])?'?\n")


def sections() -> dict[str, tuple[str, list[Block]]]:
    """Return the extras and the blocks of each example, by its name."""
    found: dict[str, tuple[str, list[Block]]] = {}
    starts = [(match[1], match.start()) for match in re.finditer(r"^## (\w+)$", README.read_text(), re.MULTILINE)]
    lines = {name: README.read_text().count("\n", 0, start) + 1 for name, start in starts}
    for name, first in lines.items():
        last = min((line for line in lines.values() if line > first), default=10**6)
        own = [block for block in blocks(README) if first < block.line < last]
        (install,) = (INSTALL.fullmatch(block.text) for block in own if block.text.startswith("pip install"))
        assert install, name
        found[name] = (install[1] or "", own)
    return found


SECTIONS = sections()
