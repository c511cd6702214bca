"""Run a validation: put, consume and lose messages, kill, put back, check the histories, clean up."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.model import Message
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.store.connection import Client, connect
from redis_queue.store.scripts import Scripts, text
from redis_queue.validation.history import CheckResult, Event, History, check, read

KILL_EVERY: Final = 0.25
QUIET_SECONDS: Final = 30.0
"""A run without an ack for so long has stopped making progress."""

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a run; a figure that it did not measure is None.

    *lost* messages were put and never acked; *doubled* ones were acked twice, or came again after their ack; *unknown*
    ones came without a put; *early* ones before they were due; *out_of_order* ones before a message that was put
    earlier. Of a Celery app, *redelivered* tasks were started again after a kill, the slowest of them
    *redelivered_within_s* after it, and *late* are those that waited for a due time.
    """

    messages: int
    handled: int
    lost: int
    doubled: int
    unknown: int
    early: int
    out_of_order: int | None = None
    lost_on_purpose: int | None = None
    handled_again: int
    late_acks_refused: int | None = None
    kills: int
    put_back: int | None = None
    redelivered: int | None = None
    redelivered_within_s: float | None = None
    late_p50_s: float | None = None
    late_max_s: float | None = None
    left_over: int
    put_per_s: float | None = None
    handled_per_s: float | None = None
    seconds: float

    @classmethod
    def of(cls, verdict: CheckResult, **figures: Any) -> Report:
        """Return the report of a checked history and the other *figures* of the run."""
        found = {
            "handled": verdict.executed - verdict.repeated,
            "lost": verdict.broken("lost"),
            "doubled": verdict.broken("acked twice", "came again after its ack"),
            "unknown": verdict.broken("came from nowhere"),
            "early": verdict.broken("early"),
            "out_of_order": verdict.broken("out of order"),
            "lost_on_purpose": verdict.dropped,
            "handled_again": verdict.repeated,
            "late_acks_refused": verdict.refused,
        }
        return cls(**{**found, **figures})

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.unknown or self.early or self.out_of_order or self.left_over)

    def as_dict(self) -> dict[str, Any]:
        """Return what was measured, with the verdict, ready for JSON."""
        return {"passed": self.passed, **{name: value for name, value in asdict(self).items() if value is not None}}


def new_prefix() -> str:
    """Return a prefix that no key has."""
    return f"redis_queue_validate_{random.randrange(16**8):08x}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a validation; raises InvalidValueError for invalid ones."""

    url: str
    messages: int = 20_000
    lose_every: int = 2
    batch: int = 10
    consumers: int = 2
    kill: bool = False
    lease: float = 1.0
    prefix: str = field(default_factory=new_prefix)

    def __post_init__(self) -> None:
        check_limit(self.messages, 10_000_000, name="messages")
        check_limit(self.batch, CHUNK, name="batch")
        check_limit(self.consumers, 64, name="consumers")
        if self.lose_every:
            check_limit(self.lose_every, self.messages, name="lose_every")
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidValueError(f"prefix={self.prefix!r}: must consist of letters, digits, '_', '-' and '.'")


def validate(plan: Plan, progress: Callable[[int], None] = lambda _: None) -> Report:
    """Run *plan* and return its report; all its keys are deleted at the end, also when interrupted.

    *progress* is called with the number of finished messages. Raises ConfigurationError if any key begins with the
    plan's prefix, and the errors of :func:`redis_queue.connect`.
    """
    client = connect(plan.url)
    queue = _queue(plan, client)
    if key := next(_keys(client, plan.prefix), None):
        raise ConfigurationError(f"prefix {plan.prefix!r} is in use (key {text(key)!r}): must be unused")
    started, scripts = time.perf_counter(), Scripts(client)
    try:
        with tempfile.TemporaryDirectory(prefix="redis-queue-validate-") as folder:
            queue.put_many(range(plan.messages))
            put_at = time.perf_counter()
            run = _Run(plan, queue, Path(folder))
            run.work(progress)
            worked_at, left = time.perf_counter(), queue.stats()
            puts = (Event("put", "ok", str(number), lane=1) for number in range(plan.messages))
            found = check([*puts, *read(*run.histories)], [])
            return Report.of(
                found,
                messages=plan.messages,
                kills=run.kills,
                put_back=left.redelivered,
                left_over=left.ready + left.delayed + left.in_flight + left.dead + left.quarantined,
                put_per_s=round(plan.messages / max(put_at - started, 1e-6), 1),
                handled_per_s=round((found.executed - found.repeated) / max(worked_at - put_at, 1e-6), 1),
                seconds=round(time.perf_counter() - started, 2),
            )
    finally:
        queue.destroy()
        for key in list(_keys(client, plan.prefix)):
            scripts.command("UNLINK", key)


def _queue(plan: Plan, client: Client) -> RedisQueue:
    return RedisQueue("validate", client, prefix=plan.prefix, lease=plan.lease, max_deliveries=0)


class _Run:
    def __init__(self, plan: Plan, queue: RedisQueue, folder: Path) -> None:
        self.kills = 0
        self.histories: list[Path] = []
        self._plan = plan
        self._queue = queue
        self._folder = folder

    def work(self, progress: Callable[[int], None]) -> None:
        """Let consumers work until the queue is empty."""
        consumers: list[subprocess.Popen[str]] = []
        try:
            for _ in range(self._plan.consumers):
                consumers.append(self._start())
            self._watch(consumers, progress)
        finally:
            _end(*consumers)

    def _watch(self, consumers: list[subprocess.Popen[str]], progress: Callable[[int], None]) -> None:
        done, moved_at, done_at_kill = 0, time.perf_counter(), 0
        while True:
            self._queue.put_back()
            stats = self._queue.stats()
            if stats.acked > done:
                done, moved_at = stats.acked, time.perf_counter()
                progress(done)
            if not stats.ready + stats.delayed + stats.in_flight or time.perf_counter() - moved_at > QUIET_SECONDS:
                return
            time.sleep(KILL_EVERY)
            # Only after some progress: on a slow machine consumers would otherwise be killed before they have started.
            if self._plan.kill and stats.ready and done > done_at_kill:
                _end(random.choice(consumers))
                self.kills, done_at_kill = self.kills + 1, done
            for index, consumer in enumerate(consumers):
                if consumer.poll() is not None:
                    consumers[index] = self._start()

    def _start(self) -> subprocess.Popen[str]:
        path = self._folder / f"{len(self.histories)}.jsonl"
        self.histories.append(path)
        command = [sys.executable, "-c", "from redis_queue.validation.run import consume; consume()"]
        consumer = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        assert consumer.stdin is not None  # noqa: S101 - for the type checker
        # Not as arguments: the process list must not show the password.
        consumer.stdin.write(json.dumps([asdict(self._plan), str(path)]))
        consumer.stdin.close()
        return consumer


def _end(*consumers: subprocess.Popen[str]) -> None:
    for consumer in consumers:
        consumer.kill()
        consumer.wait()


def _keys(client: Client, prefix: str) -> Iterator[bytes | str]:
    for pattern in (f"{{{prefix}:*", f"{prefix}:*"):
        yield from client.scan_iter(match=pattern, count=1000)


def consume() -> None:
    """Run a consumer, in a process of its own, that loses messages on purpose until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan, history = json.load(sys.stdin)
    _consume(Plan(**plan), History(Path(history)))


def _consume(plan: Plan, history: History) -> None:
    queue = _queue(plan, connect(plan.url))
    while True:
        events: list[Event] = []
        kept: list[tuple[Message, Event]] = []
        for message in queue.get_many(plan.batch, block=True, timeout=1):
            claim = Event.of_claim(str(message.body), message, plan.lease)
            events.append(claim)
            if _is_dropped(message, plan.lose_every):
                events.append(claim._replace(op="drop"))
            else:
                events += [claim._replace(op="execute"), claim._replace(op="ack", kind="invoke")]
                kept.append((message, claim))
        history.write(*events)
        outcomes = zip(kept, queue.ack_many(message for message, _ in kept), strict=True)
        history.write(*(claim._replace(op="ack", kind="ok" if mine else "refused") for (_, claim), mine in outcomes))


def _is_dropped(message: Message, lose_every: int) -> bool:
    return bool(lose_every) and message.deliveries == 1 and message.body % lose_every == lose_every - 1
