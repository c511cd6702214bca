"""Names in `tests.support.celery.delaying_app`, which can only be imported inside a worker."""

from __future__ import annotations

from typing import Final

NOTE: Final = "tests.note"
STUBBORN: Final = "tests.stubborn"
RAN: Final = "tests:ran"
IMPORTED: Final = "imported by a thread"
