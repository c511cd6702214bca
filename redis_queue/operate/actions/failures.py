"""Actions on failures."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

from redis_queue.basics.times import from_ms, to_ms
from redis_queue.celery.message.body import fresh, with_arguments
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import Attempt, call_name, new_call
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidNameError, InvalidValueError
from redis_queue.monitor.model import Failure
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result
from redis_queue.operate.actions.entries import RATE
from redis_queue.operate.actions.rows import INVALID_ROW, Rows
from redis_queue.operate.audit import MAX_SUBJECTS, Subject
from redis_queue.operate.items import FailureList
from redis_queue.operate.listing import Selection
from redis_queue.store.chunks import Pace, chunks, gap_ms
from redis_queue.store.codec import read_document
from redis_queue.store.ids import is_id, sibling_id

PLACE: Final = "failures"
"""What the audit log names in place of a queue."""

BATCH: Final = 50
"""Failures that are retried at once: each message may have 64 KiB."""

NO_MESSAGE: Final = "its message was too large to be kept, or could not be read"
NOT_MINE: Final = "it is gone, has failed again, or is being retried"

_ROW: Final = re.compile(r"(\d{1,15}):([^:]{1,3000})", re.ASCII)

WAITS: Final = "No dispatcher runs: the tasks wait until a worker or redis-queue dispatch does."

MAX_ARGUMENTS: Final = 10_000
"""Maximum characters of other arguments."""


def reference(failure: Failure) -> str:
    """Return a reference to this failure for a form; a later failure of the same task has another one."""
    return f"{to_ms(failure.failed_at)}:{quote(failure.id, safe='', errors='surrogateescape')}"


class FailureRows(Rows[Failure]):
    """Failures that are kept."""

    name, noun, plural, at = "failures", "failure", "failures", "failed"
    gone = "gone, or failed again"

    def find(self, access: Access, choice: Choice) -> Selection[Failure]:
        """Return the failures with the ids of *choice*, or those that match."""
        if choice.ids is not None:
            return Selection(access.monitor.failures.full(choice.ids))
        listing = FailureList(access, choice.conditions)
        return listing.gather(choice.most, lambda failure: failure if is_id(failure.id) else None)

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
        return reference(item)

    def subjects(self, choice: Choice, items: Sequence[Failure]) -> list[Subject]:  # noqa: ARG002
        return _subjects(items)

    def queues(self, choice: Choice, items: Sequence[Failure], subjects: Sequence[Subject]) -> Sequence[str]:  # noqa: ARG002
        """Return what stands in place of a queue."""
        return [PLACE]


class RetryRows(FailureRows):
    """Failures to retry."""

    def find(self, access: Access, choice: Choice) -> Selection[Failure]:
        """Return the failures; in a dry run, those with a message."""
        found = super().find(access, choice)
        return replace(found, items=[item for item in found.items if item.size]) if choice.exact else found

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return the plan, with the given arguments, and a warning if no process sends what is retried."""
        delay_queue_of(access)
        plan = replace(super().plan(action, access, choice), facts=action.given(choice))
        return plan if not plan.count or is_dispatched(access) else replace(plan, warnings=[WAITS])


def retry(access: Access, found: Sequence[Failure], choice: Choice) -> Iterator[Result]:
    """Send failed tasks again, under the same ids, with their retries counted from zero.

    Their messages wait in the DelayQueue, and a dispatcher sends them: with --rate one after the other, and the command
    does not wait.

    Example: redis-queue failures retry --exception Timeout --rate 5
    """
    # A message is stored before its failure is removed, and a second call for it at the same time, or while it waits,
    # has no effect. If this process dies in between, the failure stays, and can be retried again after a minute.
    args, kwargs = given_json(choice, "args"), given_json(choice, "kwargs")
    pace = Pace(gap_ms(choice.arguments.get("rate")))
    queue, store = delay_queue_of(access), access.monitor.failures
    for chunk in chunks(found, BATCH):
        token, now = new_call(), access.inspector.now()
        claimed = store.claim(chunk, token)
        mine = {failure.id: failure.failed_at for failure in claimed}
        skipped = [(failure, NOT_MINE) for failure in chunk if failure.id not in mine]
        ready: list[tuple[Failure, Envelope]] = []
        for failure in store.full(mine):
            try:
                ready.append((failure, _message(failure, args, kwargs, now)))
            except InvalidValueError as error:
                skipped.append((failure, str(error)))
        store.give_back([failure for failure, _ in skipped if failure.id in mine], token)
        after = pace.delay()
        pushes = [_push(failure, message, after + pace.gap * n) for n, (failure, message) in enumerate(ready)]
        _store(queue, ready, pushes)
        pace.add(len(ready))
        sent = [failure for failure, _ in ready]
        store.delete(sent, token)
        reasons = Counter(reason for _, reason in skipped)
        yield Result(len(sent), tried=len(sent) + len(skipped), skipped=reasons, subjects=_subjects(sent))


def delete(access: Access, found: Sequence[Failure], _: Choice) -> Iterator[Result]:
    """Delete failed tasks. Those that fail again after the command began stay.

    Example: redis-queue failures delete --task shop.mail --dry-run
    """
    for chunk in chunks(found):
        deleted = access.monitor.failures.delete(chunk)
        yield Result(len(deleted), tried=len(deleted), subjects=_subjects(deleted))


def is_dispatched(access: Access) -> bool:
    """Return whether a process dispatches the DelayQueue of Celery tasks: without one, retried tasks wait."""
    with contextlib.suppress(InvalidValueError):
        return bool(delay_queue_of(access).dispatch_log.dispatchers())
    return False


def delay_queue_of(access: Access) -> DelayQueue:
    """Return the DelayQueue of Celery tasks; raises InvalidValueError if it is unknown, which cannot be for an app."""
    try:
        return access.delay_queue()
    except InvalidNameError as error:
        raise InvalidValueError(
            f"{error}: name the Celery app (redis-queue -A APP …), so that its first delayed task can be stored"
        ) from None


def _subjects(failures: Sequence[Failure]) -> list[Subject]:
    return [Subject(failure.id, failure.queue, failure.task, failure.failed_at) for failure in failures[:MAX_SUBJECTS]]


def _message(failure: Failure, args: Any, kwargs: Any, now: datetime) -> Envelope:
    if failure.body is None:
        raise InvalidValueError(NO_MESSAGE)
    message = with_arguments(fresh(Envelope.unpack(failure.body, ""), now), args, kwargs)
    # The same failure gets the same name: a second retry recognizes the entry of the first one.
    return message.with_call(_call(failure))


def _call(failure: Failure) -> str:
    return call_name("failure", failure.id, to_ms(failure.failed_at))


def _push(failure: Failure, message: Envelope, delay_ms: float) -> Push:
    return Push(message.pack(failure.id), delay=delay_ms / 1000, id=failure.id, mark=_call(failure))


def _store(queue: DelayQueue, ready: Sequence[tuple[Failure, Envelope]], pushes: Sequence[Push]) -> None:
    for (failure, message), push, kept in zip(ready, pushes, queue.marked.keep_many(pushes), strict=True):
        if kept or Attempt(push.mark, first=False).waits_in(queue.look(failure.id)):
            continue
        # Another call of this task waits under its id.
        other = sibling_id(failure.id, push.mark)
        queue.marked.keep_many([replace(push, id=other, payload=message.pack(other))])


def given_json(choice: Choice, name: str) -> Any:
    """Return the value of an argument that is JSON; None if it is not given."""
    text = choice.arguments.get(name)
    return None if text is None else read_document(text)


def json_argument(name: str, noun: Literal["array", "object"], text: str) -> Argument:
    """Return an argument that is JSON; its value is the text."""
    kind = list if noun == "array" else dict

    def read(value: str) -> str:
        short = ascii(value)[:60]
        try:
            found = read_document(value)
        except ValueError as error:
            raise InvalidValueError(f"{name}={short}: must be JSON: {error}") from None
        if not isinstance(found, kind):
            raise InvalidValueError(f"{name}={short}: must be a JSON {noun}")
        return value

    return Argument(name, text, read, f"{name} {{}}".format, metavar="JSON", most=MAX_ARGUMENTS, is_private=True)


ARGS: Final = json_argument("args", "array", "Other arguments for all of them: a JSON array.")
KWARGS: Final = json_argument("kwargs", "object", "Other keyword arguments for all of them: a JSON object.")

ACTIONS: Final = (
    Action(RetryRows(), "retry", "Retry", "retried", retry, (ARGS, KWARGS, RATE)),
    Action(FailureRows(), "delete", "Delete", "deleted", delete, destroys=True),
)
