"""Names used by `tests.support.celery.periodic_app`, a module that only processes of Celery can import."""

from __future__ import annotations

from typing import Final

APP: Final = "periodic"
TICK: Final = "periodic.tick"
WAIT: Final = "periodic.wait"
FAIL: Final = "periodic.fail"
RAN: Final = "periodic:ran"
GATE: Final = "periodic:gate"
