"""Names used by `tests.support.celery.leasing_app`, a module that only workers can import."""

from __future__ import annotations

from typing import Final

WAIT: Final = "tests.wait"
BATCH: Final = "tests.batch"
HOLD: Final = "tests.hold_interpreter"
DIE: Final = "tests.die"
DIE_TWICE: Final = "tests.die_twice"
MEASURE: Final = "tests.measure"

STARTED: Final = "tests:started"
ENDED: Final = "tests:ended"
HEALED: Final = "tests:healed"
MEASURED: Final = "tests:measured"


def finish_key(worker: str) -> str:
    """Return the list whose elements let the tasks of *worker* end, one task for each element."""
    return f"tests:told:{worker}"
