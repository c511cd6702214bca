"""Actions on failures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote

from redis_queue.basics.times import from_ms, to_ms
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import Failure
from redis_queue.operate import failures
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Done, Plan
from redis_queue.operate.actions.entries import RATE
from redis_queue.operate.actions.rows import INVALID_ROW, Rows, chosen
from redis_queue.operate.audit import Subject
from redis_queue.store.ids import is_id

_ROW: Final = re.compile(r"(\d{1,15}):([^:]{1,3000})", re.ASCII)

WAITS: Final = "No dispatcher runs: the tasks wait until a worker or redis-queue dispatch does."

MOST_ARGUMENTS: Final = 10_000
"""Most characters of other arguments."""


def reference(failure: Failure) -> str:
    """Return a reference to this failure for a form; a later failure of the same task has another one."""
    return f"{to_ms(failure.failed_at)}:{quote(failure.id, safe='', errors='surrogateescape')}"


class FailureRows(Rows[Failure]):
    """Failures that are kept."""

    name, noun, plural, at = "failures", "failure", "failures", "failed"
    gone = "gone, or failed again"

    def find(self, access: Access, choice: Choice) -> tuple[Sequence[Failure], bool]:
        """Return the failures with the ids of *choice*, or those that match."""
        if choice.ids is not None:
            return access.monitor.failures.full(choice.ids), False
        listing = failures.FailureList(access, choice.conditions, choice.scan)
        return chosen(listing, choice.most, lambda failure: failure if is_id(failure.id) else None)

    def read(self, access: Access, choice: Choice) -> list[Failure]:  # noqa: ARG002
        """Return the failures as they were when the references were made."""
        found: dict[str, Failure] = {}
        for row in choice.references:
            parts = _ROW.fullmatch(row)
            id_ = unquote(parts[2]) if parts else ""
            if parts is None or not is_id(id_):
                raise InvalidValueError(INVALID_ROW)
            found[id_] = Failure(id_, "", "", "", from_ms(int(parts[1])))
        return list(found.values())

    def current(self, access: Access, choice: Choice, items: Sequence[Failure]) -> list[Failure]:
        """Return those that are kept and have not failed again."""
        if not choice.references:
            return list(items)
        seen = {failure.id: failure.failed_at for failure in items}
        kept = access.monitor.failures.summaries(seen)
        return [failure for failure in kept if failure.failed_at == seen[failure.id]]

    def reference(self, item: Failure) -> str:
        """Return a reference to this failure."""
        return reference(item)

    def subjects(self, choice: Choice, items: Sequence[Failure]) -> list[Subject]:  # noqa: ARG002
        """Return the first failures."""
        return failures.subjects_of(items)

    def queues(self, choice: Choice, items: Sequence[Failure], subjects: Sequence[Subject]) -> Sequence[str]:  # noqa: ARG002
        """Return what stands in place of a queue."""
        return [failures.PLACE]

    def accepts(self, action: Action, choice: Choice, item: Failure) -> bool:
        """Tell whether *item* counts: in a dry run of a retry, not those without a message."""
        return bool(item.size) or not (choice.exact and action.verb == "retry")

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return the plan, with the arguments of a retry, and a warning if no process sends what is retried."""
        if action.verb != "retry":
            return super().plan(action, access, choice)
        failures.delay_queue_of(access)
        plan = replace(super().plan(action, access, choice), facts=action.given(choice))
        return plan if not plan.count or failures.is_dispatched(access) else replace(plan, warnings=[WAITS])


def retry(access: Access, found: Sequence[Failure], choice: Choice) -> Iterator[Done]:
    """Send failed tasks again, under the same ids, with their retries counted from zero.

    Their messages wait in the DelayQueue, and a dispatcher sends them: with --rate one after the other, and the command
    does not wait.

    Example: redis-queue failures retry --exception Timeout --rate 5
    """
    changes = failures.Changes.read(choice.arguments.get("args"), choice.arguments.get("kwargs"))
    for batch in failures.retry(access, found, changes, rate=choice.arguments.get("rate")):
        skipped = Counter(reason for _, reason in batch.skipped)
        yield Done(len(batch.stored), tried=batch.tried, skipped=skipped, subjects=failures.subjects_of(batch.stored))


def delete(access: Access, found: Sequence[Failure], _: Choice) -> Iterator[Done]:
    """Delete failed tasks. Those that fail again after the command began stay.

    Example: redis-queue failures delete --task shop.mail --dry-run
    """
    for deleted in failures.delete(access, found):
        yield Done(len(deleted), tried=len(deleted), subjects=failures.subjects_of(deleted))


def _args(text: str) -> str:
    failures.Changes.read(text, None)
    return text


def _kwargs(text: str) -> str:
    failures.Changes.read(None, text)
    return text


ARGS: Final = Argument(
    "args",
    "Other arguments for all of them: a JSON array.",
    _args,
    "args {}".format,
    metavar="JSON",
    most=MOST_ARGUMENTS,
)
KWARGS: Final = Argument(
    "kwargs",
    "Other keyword arguments for all of them: a JSON object.",
    _kwargs,
    "kwargs {}".format,
    metavar="JSON",
    most=MOST_ARGUMENTS,
)

_failures = FailureRows()

ACTIONS: Final = (
    Action(_failures, "retry", "Retry", "retried", retry, (ARGS, KWARGS, RATE)),
    Action(_failures, "delete", "Delete", "deleted", delete, destroys=True),
)
