"""The delaying app in processes that record every module that is imported outside the main thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from tests.support.celery.delaying_app import app, delayed
from tests.support.celery.delaying_names import IMPORTED

__all__ = ["app", "delayed"]


class Watch:
    """A meta path finder that records each first import and finds nothing itself."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        del path, target
        if threading.current_thread() is not threading.main_thread():
            sys.stderr.write(f"{IMPORTED}: {name}\n")


sys.meta_path.insert(0, Watch())
