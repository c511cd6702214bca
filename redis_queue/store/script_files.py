"""Read the Lua scripts of the folder ``lua/``, one operation per file.

The header of a script is its contract: lines ``KEYS[n] name`` and ``ARGV[n] name`` give names and order, a last line
``ARGV[...]`` says that more arguments may follow. A line ``-- include NAME`` stands for the code of
``lua/includes/NAME.lua``, which several scripts share; an include has no includes.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files
from itertools import dropwhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# Found when this module is loaded: what `files` itself imports must not be half loaded when a worker forks.
_LUA: Final = files("redis_queue").joinpath("lua")

_INCLUDES: Final = "includes"

_READS: Final = (
    "ACL CONFIG EXISTS GET GETRANGE HEXISTS HGET HGETALL HKEYS HLEN HMGET HRANDFIELD HSCAN HSTRLEN INFO LINDEX LLEN "
    "LPOS LRANGE PING PTTL SCAN TIME TYPE ZCARD ZCOUNT ZMSCORE ZRANGE ZRANGEBYSCORE ZRANK ZREVRANGE ZSCAN ZSCORE"
)
READS: Final = frozenset(_READS.split())
"""Commands that change nothing (of ACL and CONFIG, redis_queue sends only those): a lost reply leaves no doubt."""

_CALLED = re.compile(r"redis\.p?call\(\s*(?:'([A-Z]+)')?")

_NAMED = re.compile(r"^-- (KEYS|ARGV)\[(\d+|\.\.\.)\] +(\w+)", re.MULTILINE)

_INCLUDE = re.compile(r"( *)-- include (\w+)")


class Script:
    """One script: its source, as sent to Redis with all includes, and the names in its header."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = _source(name)
        self.sha = sha_of(self.source)
        found = _NAMED.findall(self.source)
        self.keys = tuple(label for kind, _, label in found if kind == "KEYS")
        self.arguments = tuple(label for kind, slot, label in found if kind == "ARGV" and slot != "...")
        # A computed command name may be any command.
        self.writes = not READS.issuperset(_CALLED.findall(self.source))
        self.takes_more = any(slot == "..." for _, slot, _ in found)


def sha_of(source: str) -> str:
    """Return the name by which EVALSHA knows *source*."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


@functools.cache
def load(name: str) -> Script:
    """Return the script ``folder/operation``. Raises LookupError for an unknown include, with file and line."""
    return Script(name)


def all_scripts() -> list[Script]:
    """Return every script, by name."""
    folders = [folder for folder in _LUA.iterdir() if folder.is_dir() and folder.name != _INCLUDES]
    return [load(name) for name in sorted(name for folder in folders for name in _names(folder))]


def _names(folder: Traversable) -> list[str]:
    found = (entry.name for entry in folder.iterdir())
    return [f"{folder.name}/{name.removesuffix('.lua')}" for name in found if name.endswith(".lua")]


def _source(name: str) -> str:
    lines = _read(name).splitlines()
    parts = [part for number, line in enumerate(lines, 1) for part in _expand(line, f"lua/{name}.lua:{number}")]
    return "\n".join([*parts, ""])


def _expand(line: str, place: str) -> list[str]:
    found = _INCLUDE.fullmatch(line)
    if found is None:
        return [line]
    indent, name = found.groups()
    if f"{_INCLUDES}/{name}" not in _names(_LUA.joinpath(_INCLUDES)):
        raise LookupError(f"{place}: unknown include {name!r}")
    return [f"{indent}{inner}" for inner in _code(name)]


@functools.cache
def _code(include: str) -> list[str]:
    """Return the lines of an include after its header."""
    return list(dropwhile(lambda line: line.startswith("--"), _read(f"{_INCLUDES}/{include}").splitlines()))


def _read(name: str) -> str:
    return _LUA.joinpath(*f"{name}.lua".split("/")).read_text("utf-8")
