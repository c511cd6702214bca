"""Edit the scripts that this process calls: its copies, not the files."""

from __future__ import annotations

import re

from redis_queue.store import script_files


def edit_include(name: str, pattern: str, replacement: str) -> None:
    """Replace *pattern* in the include *name*. Raises LookupError if it does not stand there once."""
    code = script_files._code
    if sum(len(re.findall(pattern, line)) for line in code(name)) != 1:
        raise LookupError(f"lua/includes/{name}.lua: expected {pattern!r} once")

    def edited(include: str) -> list[str]:
        lines = code(include)
        return [re.sub(pattern, replacement, line) for line in lines] if include == name else lines

    setattr(script_files, "_code", edited)  # noqa: B010 - a function
    script_files.load.cache_clear()
