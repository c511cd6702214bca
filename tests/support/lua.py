"""Lua scripts, split into header, argument bindings and body, for tests of their contracts."""

from __future__ import annotations

import re
from pathlib import Path

from redis_queue.store.script_files import all_scripts, load
from tests.support.paths import ROOT

FOLDER = ROOT / "redis_queue" / "lua"

SLOT = re.compile(r"^-- (KEYS|ARGV)\[(\d+|\.\.\.)\] +(\w+) *(.*)$")
CALL = re.compile(r"redis\.p?call\(\s*('[A-Z]+'|listed and 'LRANGE' or 'ZRANGE')\s*(?:,\s*(?:unpack\()?([\w.]+))?")


def names() -> list[str]:
    """Return the names of all scripts, such as ``delay/push``."""
    return [script.name for script in all_scripts()]


def includes() -> list[Path]:
    """Return the files that several scripts include."""
    return sorted((FOLDER / "includes").iterdir())


class Text:
    """A script with its includes: header, statements that bind its arguments, and the rest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.file = (FOLDER / f"{name}.lua").read_text("utf-8")
        self.source = load(name).source
        lines = self.source.splitlines()
        end = next(number for number, line in enumerate(lines) if not line.startswith("--"))
        self.header = lines[:end]
        stop = lines.index("", end)
        self.bindings = lines[end:stop]
        self.rest = "\n".join(line for line in lines[stop:] if not line.lstrip().startswith("--"))
        found = [match.groups() for line in self.header if (match := SLOT.match(line))]
        self.keys = [(slot, label, rest) for kind, slot, label, rest in found if kind == "KEYS"]
        self.arguments = [(slot, label) for kind, slot, label, _ in found if kind == "ARGV"]
        self.order = [kind for kind, *_ in found]

    def bound(self) -> dict[str, str]:
        """Return the variable of each KEYS[n] and ARGV[n], from the first statements without constants."""
        found: dict[str, str] = {}
        for line in self.bindings:
            if line.startswith("-- "):
                continue
            if rest := re.fullmatch(r"local (\w+), FIRST = ARGV, (\d+)", line):
                found[f"ARGV, {rest[2]}"] = rest[1]
                continue
            match = re.fullmatch(r"local ([\w, ]+) = (.+)", line)
            assert match, f"not a binding: {line}"
            labels = match[1].split(", ")
            values = re.split(r", (?![^{(]*[)}])", match[2])
            assert len(labels) == len(values), line
            for label, value in zip(labels, values, strict=True):
                if label.isupper():
                    assert value.isdigit(), f"a constant is a number: {line}"
                    continue
                slot = re.fullmatch(
                    r"(?:tonumber\()?((?:KEYS|ARGV)\[\d+\])(?:\)| == '1')?|\{unpack\((ARGV, \d+)\)\}", value
                )
                assert slot, f"neither a slot nor a constant: {value}"
                found[slot[1] or slot[2]] = label
        return found
