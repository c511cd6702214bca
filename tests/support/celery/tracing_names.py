"""Names in `tests.support.celery.tracing_app`, which can only be imported inside a worker."""

from __future__ import annotations

from typing import Final

FAILING: Final = "tests.failing"
AGAIN: Final = "tests.again"
