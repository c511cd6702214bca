"""The table of keys: the docstring of the module that builds them."""

from __future__ import annotations

import inspect
from typing import Final

from redis_queue import keys


def page() -> str:
    """Return the docstring, which is reStructuredText."""
    return f"```{{eval-rst}}\n{inspect.cleandoc(keys.__doc__ or '')}\n```\n"


MAKERS: Final = {"keys": page}
