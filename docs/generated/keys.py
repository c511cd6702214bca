"""Reference of keys: the docstring of the module that builds them."""

from __future__ import annotations

import inspect
from typing import Final

from docs.generated.tables import markdown
from redis_queue.store import keys


def page() -> str:
    """Return the docstring."""
    return markdown(inspect.cleandoc(keys.__doc__ or ""))


MAKERS: Final = {"keys": page}
