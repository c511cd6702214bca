"""Names used by `tests.support.celery.tracing_app`, a module that only workers can import."""

from __future__ import annotations

from typing import Final

FAILING: Final = "tests.failing"
AGAIN: Final = "tests.again"
