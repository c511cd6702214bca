"""Run commands within the test process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from inspect import signature
from typing import Any

from click.testing import CliRunner, Result

NOW = int(datetime(2030, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
DUE = datetime(2030, 1, 1, 2, tzinfo=timezone.utc)

Run = Callable[..., Result]


def runner() -> CliRunner:
    """Return a runner with separate stdout and stderr, the default since click 8.2."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**apart)
