"""Lua scripts, split into header and body, for tests of their contracts."""

from __future__ import annotations

import re
from pathlib import Path

from redis_queue.store.script_files import all_scripts, load
from tests.support.paths import ROOT

FOLDER = ROOT / "redis_queue" / "lua"

CALL = re.compile(r"redis\.p?call\(\s*('[A-Z]+'|listed and 'LRANGE' or 'ZRANGE')\s*(?:,\s*(?:unpack\()?([\w.]+))?")


def names() -> list[str]:
    """Return the names of all scripts, such as ``delay/push``."""
    return [script.name for script in all_scripts()]


def includes() -> list[Path]:
    return sorted((FOLDER / "includes").iterdir())


class Text:
    """A script with its includes: its header, and the rest without comments."""

    def __init__(self, name: str) -> None:
        script = load(name)
        self.name = name
        self.file = (FOLDER / f"{name}.lua").read_text("utf-8")
        self.source = script.source
        self.header = self.file[: self.file.index("\n\n")].splitlines()
        lines = self.source.splitlines()
        self.prologue = next(line for line in lines if not line.startswith("--"))
        self.rest = "\n".join(line for line in lines[len(self.header) :] if not line.lstrip().startswith("--"))
        self.keys = script.keys
        self.kinds = script.kinds

    def included(self) -> list[str]:
        return [name for line in re.findall(r"-- include (.+)", self.file) for name in line.split(", ")]
