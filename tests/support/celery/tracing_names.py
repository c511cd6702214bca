"""What `tests.support.celery.tracing_app` calls its tasks: it can only be imported inside a worker."""

from __future__ import annotations

from typing import Final

FAILING: Final = "tests.failing"
AGAIN: Final = "tests.again"
