"""No pauses between attempts and no time within a call."""

from __future__ import annotations

import pytest

from redis_queue.store import chunks, scripts


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat calls without a pause, and stop the clock within a call."""
    monkeypatch.setattr(scripts, "sleep", lambda _: None)
    monkeypatch.setattr(chunks, "monotonic", lambda: 0.0)
