"""What pages take from the code: what stands between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``.

``python -m docs.generated`` writes it into the pages, so that they are whole on GitHub, too; with ``--check`` it names
those that are not as the code is. ``<!-- site: NAME -->`` is filled in by Sphinx alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docs.generated import api, commands, contracts, errors, keys, metrics, pages, settings

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER: Final = Path(__file__).parent.parent

MARK: Final = re.compile(r"<!-- generated: ([\w-]+) -->\n(.*?)<!-- end: \1 -->", re.DOTALL)

SITE: Final = re.compile(r"<!-- site: ([\w-]+) -->")

MAKERS: Final[Mapping[str, Callable[[], str]]] = {
    **settings.MAKERS,
    **commands.MAKERS,
    **api.MAKERS,
    **errors.MAKERS,
    **metrics.MAKERS,
    **keys.MAKERS,
    **contracts.MAKERS,
}


def fill(text: str) -> str:
    """Return *text* with what its marks name; raises KeyError for a name that nothing makes."""
    return MARK.sub(
        lambda found: f"<!-- generated: {found[1]} -->\n\n{MAKERS[found[1]]()}\n<!-- end: {found[1]} -->", text
    )


def stale(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the pages under *folder* that are not as the code is, and what they should be."""
    found = {path: path.read_text("utf-8") for path in sorted(folder.rglob("*.md"))}
    return {path: fill(text) for path, text in found.items() if fill(text) != text}


def setup(app: Sphinx) -> dict[str, Any]:
    """Let Sphinx fill in what is of the site alone."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}


def _read(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = SITE.sub(lambda found: pages.MAKERS[found[1]](), source[0])
