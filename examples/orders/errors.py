"""Errors that end a run early.

::

    DemoError
    ├── UnusableError     the run could not begin
    ├── FailedError       a process or Redis failed
    └── StoppedError      a signal asked it to stop
"""

from __future__ import annotations


class DemoError(Exception):
    """The run ended early."""


class UnusableError(DemoError):
    """The run cannot begin; the message says what to do."""

    code = 2


class FailedError(DemoError):
    """The run cannot go on."""


class StoppedError(DemoError):
    """A signal asked the run to stop; *code* is the exit code that shells give for it."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted")
        self.code = 128 + number
