"""The workload of a Celery app with unique tasks: producers that are killed while they send, and workers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from celery import Celery

from chaos.flows import EXPIRES, Flows
from chaos.holds import now_ms
from chaos.kill_points import edit_include
from chaos.tasks import PREFIX, WORKER
from chaos.unique_plan import KINDS, PACED, QUEUE, UNIQUES, UniquePlan
from chaos.unique_runs import CALL, UniqueLog, note_takings
from chaos.workload import PRODUCER, Post, Step
from redis_queue import DuplicateTaskError
from redis_queue.admission import owners
from redis_queue.store.keys import FlowKeys
from redis_queue.validation.history import Event, History, Kind, read

HOLD_MS: Final = 1000
"""Time that a producer has to send a message, 10 s by default: a stopped one exceeds it, and keys of dead ones are soon
free. Workers keep the default for their retries."""

NOTED_MS: Final = 2 * 3_600_000
"""Marks of messages that were dropped, and that RabbitMQ may deliver again, are forgotten sooner."""

PAUSE: Final = 0.05
"""Seconds between two numbers of a producer."""

PROBE: Final = "chaos.probe"


class Uniques(Flows):
    """Calls of unique tasks with few keys; some tasks retry, fail, are revoked or expire."""

    stops_producers = True
    crew = (PRODUCER, PRODUCER, PRODUCER, WORKER, WORKER)
    queue = QUEUE
    kinds = "".join(KINDS)
    pause = PAUSE
    plan = UniquePlan
    log = UniqueLog

    def __init__(self, broker: str, store: str, name: str = "") -> None:
        super().__init__(broker, store, name)
        self._keys = FlowKeys(PREFIX)
        self._most_marks = 0
        self._label = ""

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether all sent tasks have ended, and no key is owned."""
        if not self._progress.is_done(histories):
            return False
        # A process that dies while it sends leaves at most one mark, and so does a revoke.
        self._most_marks = sum(
            event.op == "die" or event.kind == "refused" or (event.op, event.kind) == ("cancel", "invoke")
            for event in read(*histories)
        )
        self._forget()
        return super().is_done(histories)

    def wrong(self) -> Iterator[str]:
        """Yield also owned keys, and marks of messages that cannot be those of dead senders."""
        yield from super().wrong()
        for owner in self._delayed.unique.list():
            yield f"{owner.key!r} of {owner.task} is owned by {owner.task_id}: {owner.state} until {owner.until}"
        for name in (self._keys.owners, self._keys.owner_ids, self._keys.owner_ends, self._keys.owned):
            if self._client.exists(name):
                yield f"{name!r} is not empty"
        marks = self._client.zcount(self._keys.replaced, now_ms() + NOTED_MS, "+inf")
        if marks > self._most_marks:
            yield f"{marks} replaced messages were not dropped, more than senders died and tasks were revoked"

    def _forget(self) -> None:
        """Remove what has ended from the owners, as a call does."""
        field = owners.field_of(PROBE, "")
        self._delayed.unique.acquire(field, owners.new_token(), task_id=PROBE, ttl_ms=HOLD_MS)
        self._delayed.unique.release(PROBE)

    def _settings(self) -> Mapping[str, Any]:
        return {"redis_queue_unique": {PACED: UNIQUES[PACED]}}

    def _options(self) -> Mapping[str, Mapping[str, Any]]:
        # One task is unique by the setting.
        return {name: {} if name == PACED else {"unique": unique} for name, unique in UNIQUES.items()}

    def _produce(self, history: History, post: Post) -> Step:
        edit_include("unique_owner", r"(?<=local HOLD, AGAIN = )\d+", str(HOLD_MS))
        return super()._produce(history, post)

    def _work(self, role: str, history: History, post: Post) -> Step:
        note_takings()
        return super()._work(role, history, post)

    def _die(self, history: History) -> None:
        history.write(Event("die", "ok", CALL + self._label, at=now_ms()))

    def _send(self, app: Celery, history: History, label: str, dice: random.Random, post: Post) -> None:  # noqa: ARG002
        self._label, plan = label, UniquePlan.of(label)
        options: dict[str, Any] = {"countdown": plan.delay} if plan.delay else {}
        if plan.fate == "expire" and not plan.delay:
            # It may run or not, like one whose cancel was interrupted.
            history.write(Event("cancel", "invoke", label))
            options["expires"] = EXPIRES
        begins = now_ms()
        # A call that replaces this one may bring its time forward.
        due = 0 if plan.unique.on_conflict == "replace" else begins + int(plan.delay * 1000)
        history.write(Event("put", "invoke", label, due=due), Event("call", "invoke", CALL + label, at=begins))
        kind: Kind = "refused"
        id_ = ""
        try:
            id_ = app.send_task(plan.task, kwargs={"label": label, "key": plan.key}, task_id=label, **options).id
            kind = "ok"
        except DuplicateTaskError as error:
            id_ = error.task_id
        finally:
            puts = [Event("put", "ok", label, due=due)] if (kind, id_) == ("ok", label) else []
            history.write(*puts, Event("call", kind, f"{CALL}{label}:{id_}", at=now_ms()))
        if kind == "ok" and plan.fate == "revoke":
            history.write(Event("cancel", "invoke", id_))
            app.control.revoke(id_)
