"""Finding: the result of a check; and how checks are run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from redis_queue.errors import SchemaError, StoreError, StoreUnavailableError, WrongTypeError

Severity = Literal["error", "warning", "ok"]

COVERAGE: Final = "coverage"
"""Name of the check that reports skipped parts."""

ORDER: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "ok": 2}
"""Sort order: errors first."""

PERMIT: Final = "let this user run the command, or run doctor as another user"

CHECK_BROKER: Final = "check broker_url, or repeat when the broker is up"

MAX_FINDINGS: Final = 10
"""Maximum number of findings of a check that may have many."""

Target = TypeVar("Target")


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the check *check*, with advice; *repairable* if :func:`repair` can mend it."""

    check: str
    severity: Severity
    found: str
    advice: str = ""
    repairable: bool = False

    @property
    def silent(self) -> bool:
        """Whether all is well. Reports of skipped parts are never silent."""
        return self.severity == "ok" and self.check != COVERAGE


Check = Callable[[Target], Iterable[Finding]]


def error(found: str, advice: str, *, repairable: bool = False) -> Finding:
    """Return an error; :func:`run` adds the name of the check."""
    return Finding("", "error", found, advice, repairable)


def warning(found: str, advice: str) -> Finding:
    """Return a warning; :func:`run` adds the name of the check."""
    return Finding("", "warning", found, advice)


def first(items: Sequence[Target], finding: Callable[[Target], Finding], others: str, advice: str) -> Iterator[Finding]:
    """Yield the *finding* of each of the first *items*, and how many *others* are left out."""
    yield from map(finding, items[:MAX_FINDINGS])
    if len(items) > MAX_FINDINGS:
        yield warning(f"{len(items) - MAX_FINDINGS:,} more {others}", advice)


class CommandMissingError(StoreError):
    """The server does not have this command, as with some providers. Reported once, not by each check."""


def run(name: str, check: Check[Target], targets: Iterable[Target]) -> Iterator[Finding]:
    """Yield the findings of *check* on all *targets*; one "ok" finding if there are none.

    A missing permission is a finding as well. Raises StoreUnavailableError.
    """
    silent = True
    for target in targets:
        try:
            for finding in _guarded(check, target):
                silent = False
                yield replace(finding, check=name)
        except CommandMissingError:
            # Nobody knows whether all is well.
            silent = False
    if silent:
        yield Finding(name, "ok", (check.__doc__ or name).split("\n")[0].rstrip("."))


def run_all(checks: Mapping[str, Check[Target]], targets: Collection[Target]) -> Iterator[Finding]:
    """Yield the findings of each of *checks*, by name, on all *targets*; as :func:`run`."""
    for name, check in checks.items():
        yield from run(name, check, targets)


def _guarded(check: Check[Target], target: Target) -> Iterator[Finding]:
    try:
        yield from check(target)
    except (StoreUnavailableError, CommandMissingError):
        raise
    except (WrongTypeError, SchemaError):
        # The checks of types and of the schema report these.
        return
    except StoreError as failure:
        yield warning(f"could not be checked: {failure}", PERMIT)
