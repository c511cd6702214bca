"""Names in `tests.support.celery.leasing_app`, which can only be imported inside a worker."""

from __future__ import annotations

from typing import Final

WAIT: Final = "tests.wait"
HOLD: Final = "tests.hold_interpreter"
DIE: Final = "tests.die"
DIE_TWICE: Final = "tests.die_twice"

STARTED: Final = "tests:started"
ENDED: Final = "tests:ended"
HEALED: Final = "tests:healed"


def told(worker: str) -> str:
    """Return the list that lets the tasks of *worker* end, one for each element."""
    return f"tests:told:{worker}"
