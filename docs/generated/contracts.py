"""The contracts of the Lua scripts: their headers."""

from __future__ import annotations

from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(str(files("redis_queue"))) / "lua"


def names() -> list[str]:
    """Return the scripts, such as ``delay/push``."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.lua"))


def header(name: str) -> list[str]:
    """Return the lines of the header of a script, without the dashes."""
    lines = takewhile(lambda line: line.startswith("--"), (FOLDER / f"{name}.lua").read_text("utf-8").splitlines())
    return [line.removeprefix("--").removeprefix(" ") for line in lines]


def page() -> str:
    """Return a section for each script."""
    return "\n".join(_section(name) for name in names())


def _section(name: str) -> str:
    contract = "\n".join(header(name))
    return f"## {name}\n\n```text\n{contract}\n```\n"


MAKERS: Final = {"contracts": page}
