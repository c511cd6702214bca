"""Names used by the delaying and the tracing app, modules that only workers can import."""

from __future__ import annotations

from typing import Final

NOTE: Final = "tests.note"
STUBBORN: Final = "tests.stubborn"
RAN: Final = "tests:ran"
IMPORTED: Final = "imported by a thread"

FAILING: Final = "tests.failing"
AGAIN: Final = "tests.again"
