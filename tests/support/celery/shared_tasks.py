"""Shared tasks, which modules of other tests have defined for each app of the process."""

from __future__ import annotations

import pytest
from celery import _state

BUILT_IN = "celery.app.builtins"


def without_shared_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give new apps of this test only Celery's own tasks."""
    finalizers = {function for function in _state._on_app_finalizers if function.__module__ == BUILT_IN}
    monkeypatch.setattr(_state, "_on_app_finalizers", finalizers)
