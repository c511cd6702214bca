"""Visit all interleavings of the real scripts: ``python -m proof.explore``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

from proof.model import FOLDER, Reply, lua, reply_of
from redis_queue.store.keys import FlowKeys, Key, KeyGroup, Keys, LockKeys, ScheduleKeys
from redis_queue.store.script_files import Script, all_scripts

WIDTH: Final = 50_000
"""Most states of a depth that are kept: one takes about 4 kB."""

Tell = Callable[[int, int], None]
"""Takes a depth and the number of its states."""

MODELS: Final[dict[str, Sequence[KeyGroup]]] = {
    "queue": [Keys("p", "queue", "q")],
    "delay": [Keys("p", "delay", "q", 0)],
    "broker": [],
    "flow": [FlowKeys("p")],
    "unique": [FlowKeys("p"), Keys("p", "delay", "q", 0)],
    "schedules": [Keys("p", "delay", "q", 0), ScheduleKeys(Keys("p", "delay", "q", 0))],
    "locks": [LockKeys("p", "l")],
}
"""Each model, by the name of its file, with its keys."""


@dataclass(frozen=True, slots=True)
class Explored:
    """What one model showed; *wrong* is a broken promise, and *path* the steps to it."""

    states: int
    transitions: int
    depth: int
    finished: bool
    wrong: str | None
    path: list[str]


class Made(NamedTuple):
    """A call: source of a script, or name of a command, keys, arguments with the time, and the reply of the model."""

    source: bytes
    keys: list[bytes]
    arguments: list[bytes]
    reply: Reply


class Explorer:
    """The clients of one model, on a model of Redis."""

    def __init__(self, model: str) -> None:
        runtime = lua()
        server = runtime.execute((FOLDER / "redis.lua").read_bytes())()
        table = runtime.table_from

        def compiled(script: Script) -> Any:
            return table(
                {
                    b"run": server[b"compile"](script.source.encode(), b"=" + script.name.encode()),
                    b"keys": table([name.encode() for name in script.keys]),
                    b"arguments": table([name.encode() for name in script.arguments]),
                    b"source": script.source.encode(),
                }
            )

        scripts = table({script.name.encode(): compiled(script) for script in all_scripts()})
        names = {
            name.encode(): getattr(group, name)
            for group in MODELS[model]
            for name, key in type(group).declarations().items()
            if isinstance(key, Key)
        }
        explore = runtime.execute((FOLDER / "explore" / "explore.lua").read_bytes())
        make, worker = (
            runtime.execute((FOLDER / "explore" / f"{name}.lua").read_bytes()) for name in (model, "worker")
        )
        self._table = table
        self._explorer = explore(server, scripts, table(names), make, worker)

    def explore(self, transitions: int, tell: Tell = lambda _depth, _states: None, width: int = WIDTH) -> Explored:
        """Visit all states, or as many as *transitions* reach."""
        found = self._explorer[b"explore"](transitions, width, tell)
        wrong, path = found or (None, None)
        counts = {name: int(self._explorer[name.encode()]) for name in ("states", "transitions", "depth")}
        steps = [] if path is None else [step.decode() for step in path.values()]
        finished = bool(self._explorer[b"finished"])
        return Explored(**counts, finished=finished, wrong=wrong and wrong.decode(), path=steps)

    def follow(self, path: Sequence[str]) -> str | None:
        """Take the steps *path*, and finish what is left; return what is wrong. Raises LookupError for a wrong step."""
        found: bytes | None = self._explorer[b"follow"](self._table([step.encode() for step in path]))
        wrong = None if found is None else found.decode()
        if wrong and wrong.startswith("no such step"):
            raise LookupError(wrong)
        return wrong

    def shortened(self, path: list[str]) -> list[str]:
        """Return *path* without the steps that its end does not need."""
        for at in reversed(range(len(path))):
            shorter = path[:at] + path[at + 1 :]
            try:
                if self.follow(shorter):
                    return self.shortened(shorter)
            except LookupError:
                continue
        return path

    def start(self) -> list[tuple[bytes, ...]]:
        """Return the commands that write what is there at the start."""
        return [_write(name, held[b"kind"], held[b"data"]) for name, held in self._explorer[b"keys"].items()]

    def wander(self, length: int, choose: Callable[[int], int]) -> tuple[list[Made], list[str]]:
        """Take *length* steps, of n possible ones that with the number that *choose* returns for n, from 1.

        Returns the calls that they made, and the steps.
        """
        made, path = self._explorer[b"wander"](length, choose)
        return [_made(row) for row in made.values()], [step.decode() for step in path.values()]


def _write(name: bytes, kind: bytes, held: Any) -> tuple[bytes, ...]:
    step = -1 if kind == b"zset" else 1
    rows = [held.values()] if kind == b"list" else [pair[::step] for pair in held.items()]
    return {b"list": b"RPUSH", b"zset": b"ZADD"}.get(kind, b"HSET"), name, *chain.from_iterable(rows)


def _made(row: Any) -> Made:
    keys, arguments, reply, script, now = row.values()
    words = list(arguments.values())
    if isinstance(script, bytes):
        return Made(script, [], words, reply_of(reply))
    names = list(script[b"arguments"].values())
    if b"now" in names:
        words[names.index(b"now")] = b"%d" % now
    return Made(script[b"source"], list(keys.values()), words, reply_of(reply))


@cache
def _explorer(model: str) -> Explorer:
    return Explorer(model)


def follow(model: str, *path: str) -> str | None:
    """Return what is wrong at the end of *path* in *model*; None if nothing is."""
    return _explorer(model).follow(path)
