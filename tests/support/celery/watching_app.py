"""The delaying app, in processes that write down every module that a thread other than the first one imports."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from tests.support.celery.delaying_app import app, delayed
from tests.support.celery.delaying_names import IMPORTED

__all__ = ["app", "delayed"]


class Watch:
    """Asked first by every import of a module that is not loaded yet; finds nothing itself."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Record *name*."""
        del path, target
        if threading.current_thread() is not threading.main_thread():
            sys.stderr.write(f"{IMPORTED}: {name}\n")


sys.meta_path.insert(0, Watch())
