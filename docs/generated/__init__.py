"""What the site takes from the code: ``<!-- generated: NAME -->`` in a page becomes what the module NAME makes of it.

A comment, so that GitHub, which shows the pages as they are, shows nothing in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from docs.generated import api, commands, contracts, errors, keys, metrics, pages, settings

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MARK: Final = re.compile(r"<!-- generated: ([\w-]+) -->")

MAKERS: Final[Mapping[str, Callable[[], str]]] = {
    **pages.MAKERS,
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
    return MARK.sub(lambda found: MAKERS[found[1]](), text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Let Sphinx read every page through :func:`fill`."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}


def _read(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = fill(source[0])
