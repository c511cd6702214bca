"""Reference of keys: a table of the declarations for each owner."""

from __future__ import annotations

import inspect
from typing import Final

from docs.generated.tables import code, markdown, prose, table
from redis_queue.store.keys import GROUPS, Key, KeyGroup, KeyOf

HEAD: Final = ("key", "type", "holds", "removed after")


def page() -> str:
    """Return a section for each owner."""
    return "\n".join(f"{markdown(inspect.cleandoc(owner.__doc__ or ''))}\n{_table(owner)}" for owner in GROUPS)


def _table(owner: type[KeyGroup]) -> str:
    rows: dict[str, list[Key | KeyOf]] = {}
    for key in owner.declarations().values():
        # Keys of a ring hold the same.
        rows.setdefault(key.holds, []).append(key)
    return table(HEAD, (_row(keys) for keys in rows.values()))


def _row(keys: list[Key | KeyOf]) -> list[str]:
    names = ", ".join(code(f"{key.part}:<x>" if isinstance(key, KeyOf) else key.part) for key in keys)
    return [names, keys[0].type, prose(keys[0].holds), keys[0].expires]


MAKERS: Final = {"keys": page}
