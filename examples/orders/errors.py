"""Why a run ended early.

::

    DemoError
    ├── UnusableError     it could not begin
    ├── FailedError       something ended that should have gone on
    └── StoppedError      a signal asked it to stop
"""

from __future__ import annotations


class DemoError(Exception):
    """A run ended early."""


class UnusableError(DemoError):
    """A run cannot begin; the message says what to do."""

    code = 2


class FailedError(DemoError):
    """A run cannot go on."""


class StoppedError(DemoError):
    """A signal asked the run to stop; *code* is the exit code that shells give for it."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted")
        self.code = 128 + number
