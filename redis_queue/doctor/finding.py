"""Finding: what one check has to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from redis_queue.errors import SchemaError, StoreError, StoreUnavailableError, WrongTypeError

Severity = Literal["error", "warning", "ok"]

COVERAGE: Final = "coverage"
"""Name of the check that reports what was not examined."""

ORDER: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "ok": 2}
"""The worst first."""

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True)
class Finding:
    """What the check named *check* found, and what to do; *repairable* if :func:`repair` can do it."""

    check: str
    severity: Severity
    found: str
    advice: str = ""
    repairable: bool = False

    @property
    def silent(self) -> bool:
        """Whether the check found nothing. Reports about parts that were not examined are never silent."""
        return self.severity == "ok" and self.check != COVERAGE


Check = Callable[[Subject], Iterable[Finding]]


def error(found: str, advice: str, *, repairable: bool = False) -> Finding:
    """Return an error; whoever runs the check puts its name in."""
    return Finding("", "error", found, advice, repairable)


def warning(found: str, advice: str) -> Finding:
    """Return a warning; whoever runs the check puts its name in."""
    return Finding("", "warning", found, advice)


class WithheldError(StoreError):
    """Whoever runs this Redis keeps the command to himself; that is told once, not by each check."""


def run(name: str, check: Check[Subject], subjects: Iterable[Subject]) -> Iterator[Finding]:
    """Yield what *check* finds on all *subjects*, or that all is well.

    What Redis does not let it see is a finding, too, but for a command that it does not have. Raises
    StoreUnavailableError.
    """
    silent = True
    for subject in subjects:
        try:
            for finding in _guarded(check, subject):
                silent = False
                yield replace(finding, check=name)
        except WithheldError:
            # Neither wrong nor known to be well.
            silent = False
    if silent:
        yield Finding(name, "ok", (check.__doc__ or name).split("\n")[0].rstrip("."))


def _guarded(check: Check[Subject], subject: Subject) -> Iterator[Finding]:
    try:
        yield from check(subject)
    except (StoreUnavailableError, WithheldError):
        raise
    except (WrongTypeError, SchemaError):
        # The checks of types and of the schema tell of these.
        return
    except StoreError as failure:
        yield warning(f"could not be looked at: {failure}", PERMIT)


PERMIT: Final = "let this user run the command, or ask as one that may"
