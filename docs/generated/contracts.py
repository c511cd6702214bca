"""The contracts of the Lua scripts and of their includes: the headers of the files."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(str(files("redis_queue"))) / "lua"

HEADER: Final = re.compile(r"--(?! (?:include|check|first_write) )")


def names() -> list[str]:
    """Return the scripts and includes, such as ``delay/push``, includes last."""
    found = (f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.lua"))
    return sorted(found, key=lambda name: (name.startswith("includes/"), name))


def header(name: str) -> list[str]:
    """Return the header lines of a script without the dashes."""
    lines = takewhile(HEADER.match, (FOLDER / f"{name}.lua").read_text("utf-8").splitlines())
    return [line.removeprefix("--").removeprefix(" ") for line in lines]


def page() -> str:
    """Return a section for each file."""
    return "\n".join(_section(name) for name in names())


def _section(name: str) -> str:
    contract = "\n".join(header(name))
    return f"## {name}\n\n```text\n{contract}\n```\n"


MAKERS: Final = {"contracts": page}
