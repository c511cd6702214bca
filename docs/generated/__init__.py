"""Generate parts of pages from the code, between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``.

``python -m docs.generated`` writes them into the pages, so that pages are complete on GitHub, too; with ``--check`` it
lists outdated pages. Sphinx alone fills in ``<!-- site: NAME -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docs.generated import api, commands, contracts, errors, figures, keys, metrics, pages, roles, settings, stubs

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
    **roles.MAKERS,
    **figures.MAKERS,
}


def fill(text: str) -> str:
    """Return *text* with all generated parts. Raises KeyError for an unknown name."""
    return MARK.sub(
        lambda found: f"<!-- generated: {found[1]} -->\n\n{MAKERS[found[1]]()}\n<!-- end: {found[1]} -->", text
    )


def stale(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the outdated pages under *folder*, and their new text."""
    found = {path: path.read_text("utf-8") for path in sorted(folder.rglob("*.md"))}
    outdated = {path: fill(text) for path, text in found.items() if fill(text) != text}
    if folder == FOLDER and (not stubs.STUB.exists() or stubs.STUB.read_text("utf-8") != stubs.text()):
        outdated[stubs.STUB] = stubs.text()
    return outdated


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the parts that exist only on the site with Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}


def _read(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = SITE.sub(lambda found: pages.MAKERS[found[1]](), source[0])
