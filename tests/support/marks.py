"""Marks of single cases of a test."""

from __future__ import annotations

from typing import Any

import pytest


def thorough(*cases: Any) -> list[Any]:
    """Return *cases* of a parameter that only `make test-release` runs: others nearly repeat them."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough) for case in cases]
