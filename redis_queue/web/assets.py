"""Static files: addresses that change with the content, and the settings of libraries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flask import url_for

FOLDER: Final = Path(__file__).with_name("static")

MAX_AGE: Final = 365 * 86400
"""Seconds for which browsers keep a static file; a changed file has another address."""

DIGITS: Final = 12

HTMX: Final = json.dumps(
    {
        # The content security policy forbids eval and inline styles.
        "allowEval": False,
        "includeIndicatorStyles": False,
        "allowScriptTags": False,
        "selfRequestsOnly": True,
        "historyEnabled": False,
        "scrollIntoViewOnBoost": False,
        "defaultSettleDelay": 0,
        "timeout": 10_000,
    }
)
"""Settings of htmx, read from a ``<meta>`` element."""


def addresses(folder: Path = FOLDER) -> Callable[[str], str]:
    """Return a function that takes the name of a file in *folder* and returns its address for a page."""
    digests = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]
        for path in folder.rglob("*")
        if path.is_file()
    }
    return lambda name: url_for("static", filename=name, v=digests[name])
