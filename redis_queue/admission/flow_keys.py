"""Keys of a flow: what runs and waits of each, and what was set for single keys at run time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from redis_queue.admission.rules import NONE, KeyState, read_token
from redis_queue.errors import InvalidValueError
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Scripts, literal, pairs

MAX_SET: Final = 1000
"""Maximum number of keys of one flow that are paused, or have limits of their own."""

MAX_RUNNING: Final = 10_000
"""Maximum number of places that are looked at to find keys without waiting messages."""

MAX_COUNTED: Final = 2**53

SAME: Final = "="
"""Text of a value that was not set: it is that of every key."""

OWN: Final = ("limit", "rate_ms", "burst")
"""Names of what can be set for a key."""

_ARGUMENTS: Final = ("places", "spacing", "burst")


class KeysOfFlows:
    """The keys of the flows with these *keys* in Redis. All methods raise StoreError."""

    def __init__(self, scripts: Scripts, keys: FlowKeys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._set_key = scripts.bind("admission/set_key", keys)

    def change(self, flow: str, key: str, texts: Mapping[str, str], *, paused: str = "", forget: bool = False) -> bool:
        """Pause or resume *key*, or set its own limits: *texts* by the names of :attr:`KeyState.own`.

        Returns whether something has changed. Raises InvalidValueError beyond :data:`MAX_SET` keys.
        """
        given = {argument: texts.get(name, "") for argument, name in zip(_ARGUMENTS, OWN, strict=True)}
        done = self._set_key(flow=flow, key=key, **given, paused=paused, forget=int(forget), most=MAX_SET)
        if done < 0:
            raise InvalidValueError(
                f"key={key!r}: {MAX_SET:,} keys of {flow} are paused or have limits of their own, and there must be "
                "no more: resume or reset some"
            )
        return bool(done)

    def waiting(self, flow: str, first: int, limit: int) -> list[str]:
        """Return up to *limit* keys with waiting messages after the *first* ones, those with the most first."""
        rows = self._scripts.command(
            "ZRANGE", self._named(self._keys.keys, flow), first, first + limit - 1, "REV", "WITHSCORES"
        )
        return [id_text(key) for key, _ in scored(rows)]

    def running(self, flow: str) -> dict[str, int]:
        """Return how many messages of each key run; it looks at :data:`MAX_RUNNING` places of all flows."""
        root = place_of(flow, "")
        found: dict[str, int] = {}
        pages = self._scripts.scan("HSCAN", self._keys.running, match=f"{literal(root)}*", count=CHUNK)
        for page in itertools.islice(pages, MAX_RUNNING // CHUNK):
            found.update((id_text(place).removeprefix(root), whole_number(count)) for place, count in page)
        return found

    def changed(self, flow: str) -> list[str]:
        """Return the keys that are paused, or have limits of their own, in order."""
        pages = self._scripts.scan("HSCAN", self._named(self._keys.rules, flow), count=MAX_SET)
        found = itertools.chain.from_iterable(itertools.islice(pages, 2))
        return sorted({id_text(key) for key, _ in found})[:MAX_SET]

    def changes(self, flows: Sequence[str]) -> list[int]:
        """Return the number of these keys of each of *flows*."""
        reads = self._scripts.each(
            [self._scripts.read_call("HLEN", self._named(self._keys.rules, flow)) for flow in flows]
        )
        return [read() for read in reads]

    def states(self, flow: str, keys: Sequence[str]) -> list[KeyState]:
        """Return the state of each of *keys*; O(keys)."""
        found: list[KeyState] = []
        for chunk in chunks(keys):
            names, places = list(map(id_bytes, chunk)), [id_bytes(place_of(flow, key)) for key in chunk]
            waiting = self._scripts.command("ZMSCORE", self._named(self._keys.keys, flow), *names)
            running = self._scripts.command("HMGET", self._keys.running, *places)
            rules = self._scripts.command("HMGET", self._named(self._keys.rules, flow), *names)
            for key, score, count, rule in zip(chunk, waiting, running, rules, strict=True):
                own, paused = _read_rule(rule)
                waits = next(scored([b"", score]))[1] if score is not None else 0
                found.append(KeyState(key, whole_number(count), waits, paused, own))
        return found

    @staticmethod
    def _named(key: Callable[[str], bytes], flow: str) -> bytes:
        # Other programs may have written a name that is not UTF-8.
        return key("") + id_bytes(flow)


def place_of(flow: str, key: str) -> str:
    """Return the place of *key* in *flow*, as scripts name it."""
    return f"{flow}\0{key}"


def _read_rule(text: bytes | None) -> tuple[dict[str, Any], bool]:
    """Return the limits that a field holds, and whether the key is paused; none of another program."""
    texts = id_text(text).split() if text is not None and len(text) < CHUNK else []
    if len(texts) <= len(OWN):
        return {}, False
    own: dict[str, Any] = {}
    for name, token in zip(OWN, texts, strict=False):
        value = read_token(token)
        if token == NONE or value is not None:
            own[name] = value if value is None or name == "rate_ms" else int(value)
    return own, texts[len(OWN)] == "1"


def scored(reply: Any) -> Iterator[tuple[bytes, int]]:
    """Yield members with their scores as counts."""
    for member, score in pairs(reply):
        yield member, int(min(max(0.0, float(score)), MAX_COUNTED))


def whole_number(text: bytes | None) -> int:
    """Return the count that a field of a hash holds; 0 for none, and for one of another program."""
    found = read_token(id_text(text)) if text else None
    return 0 if found is None else max(0, int(found))
