"""Read the Lua scripts of the folder ``lua/``, one operation per file.

The header of a script is its contract. Its lines ``KEYS name, …`` and ``ARGV name KIND …`` give the names and order of
keys and arguments, as locals of the code. A line ``-- include NAME, …`` stands for the code of
``lua/includes/NAME.lua``, which several scripts share; an include has no includes.

Two more lines stand for commands, which depend on the types of the keys:

- ``-- check KEY, …`` reads each key, so that the script ends before its first write if one has another type.
- ``-- first_write KEY`` is a write that needs no memory and changes nothing. A full Redis refuses a command that may
  need memory, but never stops a script that has written. All scripts that only free memory or move, or whose keys have
  a limited size, begin so: a full Redis can be drained.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Final

from redis_queue.store.keys import TYPES

if TYPE_CHECKING:
    from importlib.abc import Traversable

# Found when this module is loaded: what `files` itself imports must not be half loaded when a worker forks.
_LUA: Final = files("redis_queue").joinpath("lua")

_INCLUDES: Final = "includes"

_READS: Final = (
    "ACL CONFIG EXISTS GET GETRANGE HEXISTS HGET HGETALL HKEYS HLEN HMGET HRANDFIELD HSCAN HSTRLEN INFO LINDEX LLEN "
    "LPOS LRANGE PING PTTL SCAN TIME TYPE ZCARD ZCOUNT ZMSCORE ZRANGE ZRANGEBYSCORE ZRANK ZREVRANGE ZSCAN ZSCORE"
)
READS: Final = frozenset(_READS.split())
"""Commands that change nothing (of ACL and CONFIG, redis_queue sends only those): a lost reply leaves no doubt."""

_CALLED = re.compile(r"redis\.p?call\(([^,)]+)")

_PARTS: Final = {"PUBSUB": "pubsub|numsub"}
"""Commands of which scripts use one part, which has a permission of its own."""

KINDS: Final = {
    "TIME": "tonumber(ARGV[{}])",
    "MS": "tonumber(ARGV[{}])",
    "COUNT": "tonumber(ARGV[{}])",
    "NUMBER": "tonumber(ARGV[{}])",
    "FLAG": "ARGV[{}] == '1'",
    "TEXT": "ARGV[{}]",
    "LIST": "{{unpack(ARGV, {})}}",
    "TAIL": "ARGV, {}",
}
"""Kinds of arguments, and the code that reads one.

TIME is in ms since the epoch, MS a duration. LIST and TAIL are all arguments from here on: LIST is a table of them,
TAIL is ARGV itself, and FIRST the number of the first: Lua does not unpack more than 8,000.
"""

_KEYS = re.compile(r"-- KEYS (.+?),?")

_ARGUMENT = re.compile(r"-- ARGV (\w+) +([A-Z]+)\b.*")

_DIRECTIVE = re.compile(r"( *)-- (include|check|first_write) (\w+(?:, \w+)*)")

_CHECKS: Final = {"HASH": "HLEN", "LIST": "LLEN", "STRING": "STRLEN", "ZSET": "ZCARD"}

_FIRST_WRITES: Final = {"HASH": "'HDEL', {}, ''", "LIST": "'LTRIM', {}, 0, -1", "ZSET": "'ZREM', {}, ''"}


class Script:
    """One script: the names and kinds in its header, its source, as sent to Redis with all includes, and its commands.

    *commands* are named as in ACL rules.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        lines = _read(name).splitlines()
        header = list(takewhile(lambda line: line.startswith("--"), lines))
        key_lines = {number: found[1] for number, line in enumerate(header) if (found := _KEYS.fullmatch(line))}
        self.keys = tuple(", ".join(key_lines.values()).split(", "))
        self.kinds = {found[1]: found[2] for line in header if (found := _ARGUMENT.fullmatch(line))}
        self.arguments = tuple(argument for argument, kind in self.kinds.items() if kind not in ("LIST", "TAIL"))
        self.takes_more = len(self.arguments) < len(self.kinds)
        # In place of a line of the header: the lines in errors of Redis are those of the file, up to the first include.
        lines[min(key_lines)] = self._prologue()
        parts = [part for number, line in enumerate(lines, 1) for part in _expand(line, f"lua/{name}.lua:{number}")]
        self.source = "\n".join([*parts, ""])
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        called = set(re.findall("'([A-Z]+)'", " ".join(_CALLED.findall(self.source))))
        self.commands = frozenset(_PARTS.get(command, command.lower()) for command in called)
        self.writes = not called <= READS

    def _prologue(self) -> str:
        kinds = self.kinds.items()
        names = [*self.keys, *(f"{argument}, FIRST" if kind == "TAIL" else argument for argument, kind in kinds)]
        values = [f"KEYS[{number}]" for number in range(1, len(self.keys) + 1)]
        values += [KINDS[kind].format(number) for number, (_, kind) in enumerate(kinds, 1)]
        return f"local {', '.join(names)} = {', '.join(values)}"


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


def _expand(line: str, place: str) -> list[str]:
    found = _DIRECTIVE.fullmatch(line)
    if found is None:
        return [line]
    indent, directive, names = found[1], found[2], found[3].split(", ")
    if directive == "check":
        calls = (f"redis.call('{_CHECKS[TYPES[name]]}', {name})" for name in names)
        return [indent + " ".join(calls)]
    if directive == "first_write":
        return [f"{indent}redis.call({_FIRST_WRITES[TYPES[name]].format(name)})" for name in names]
    for name in names:
        if f"{_INCLUDES}/{name}" not in _names(_LUA.joinpath(_INCLUDES)):
            raise LookupError(f"{place}: unknown include {name!r}")
    return [f"{indent}{inner}" for name in names for code in _code(name) for inner in _expand(code, place)]


@functools.cache
def _code(include: str) -> list[str]:
    lines = _read(f"{_INCLUDES}/{include}").splitlines()
    return list(dropwhile(lambda line: line.startswith("--") and not _DIRECTIVE.fullmatch(line), lines))


def _read(name: str) -> str:
    return _LUA.joinpath(*f"{name}.lua".split("/")).read_text("utf-8")
