"""Names used by `tests.support.celery.delaying_app`, a module that only workers can import."""

from __future__ import annotations

from typing import Final

NOTE: Final = "tests.note"
STUBBORN: Final = "tests.stubborn"
RAN: Final = "tests:ran"
IMPORTED: Final = "imported by a thread"
