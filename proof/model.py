"""A model of Redis in LuaJIT, ``redis.lua``, which runs the scripts of redis_queue as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from lupa.luajit21 import LuaRuntime, lua_type

FOLDER: Final = Path(__file__).parent

Reply: TypeAlias = "int | bytes | list[Reply] | ModelError | None"


class ModelError(Exception):
    """An error that the server replies; its text is that of Redis, up to the first details."""


def lua() -> Any:
    """Return a new LuaJIT in which texts are bytes."""
    return LuaRuntime(encoding=None, unpack_returned_tuples=True)


class Model:
    """A server. *now_us* is its clock, in microseconds since the epoch."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        runtime = lua()
        self._now_us = now_us
        self._server = runtime.execute((FOLDER / "redis.lua").read_bytes())()
        self._keep = runtime.eval(
            b"function(keys) local copy = {} for k, v in next, keys do copy[k] = v end return copy end"
        )
        self._table = runtime.table_from
        self._scripts: dict[bytes, Any] = {}

    def call(self, *command: bytes) -> Reply:
        """Return the reply to a command, also EVAL, EVALSHA and SCRIPT LOAD; an error is returned, not raised."""
        self._server[b"now"] = self._now_us()
        name = command[0].upper()
        if name == b"SCRIPT" and command[1].upper() == b"LOAD":
            return self._load(command[2])
        if name not in (b"EVAL", b"EVALSHA"):
            return reply_of(self._server[b"command"](*command))
        sha = self._load(command[1]) if name == b"EVAL" else command[1].lower()
        if sha not in self._scripts:
            return ModelError("NOSCRIPT No matching script. Please use EVAL.")
        keys = 3 + int(command[2])
        arguments = self._table(command[3:keys]), self._table(command[keys:])
        return reply_of(self._server[b"script"](self._scripts[sha], *arguments))

    def listen(self, told: Callable[[bytes, bytes], int], listeners: Callable[[bytes], int]) -> None:
        """Call *told* for each published message, and *listeners* for a channel: both return how many listen."""
        self._server[b"told"], self._server[b"listeners"] = told, listeners

    @property
    def wrote(self) -> bool:
        """Whether the last call wrote."""
        return bool(self._server[b"wrote"])

    def fill(self, full: bool) -> None:
        """Use up the memory, or free it: commands that may need some are refused as by ``noeviction``."""
        self._server[b"full"] = full

    def save(self) -> object:
        """Return the keys as they are now, for :meth:`load`; what did not change between two is kept once."""
        self._server[b"run"] += 1
        return self._keep(self._server[b"keys"])

    def load(self, saved: object) -> None:
        """Return to the keys of :meth:`save`."""
        self._server[b"run"] += 1
        self._server[b"keys"] = self._keep(saved)

    def _load(self, source: bytes) -> bytes:
        sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        if sha not in self._scripts:
            self._scripts[sha] = self._server[b"compile"](source, b"=" + sha)
        return sha


def reply_of(value: Any) -> Reply:
    """Return a reply of Lua as Python has it."""
    if lua_type(value) != "table":
        return None if value is False or value is None else int(value) if isinstance(value, float) else value
    if (error := value[b"err"]) is not None:
        return ModelError(error.decode(errors="replace"))
    return value[b"ok"] or [reply_of(value[index]) for index in range(1, len(value) + 1)]
