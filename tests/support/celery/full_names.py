"""Names used by `tests.support.celery.full_app`, a module that only workers can import."""

from __future__ import annotations

from typing import Final

ADD: Final = "tests.add"
AGAIN: Final = "tests.again"
RAN: Final = "tests:ran"
