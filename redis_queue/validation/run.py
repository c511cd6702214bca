"""Run a validation: put, consume and lose messages, kill, put back, check the histories, clean up."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.model import Message
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import CHUNK, check_limit, chunks
from redis_queue.store.connection import Client, connect
from redis_queue.store.scripts import Scripts
from redis_queue.validation.history import CheckResult, Event, History, check, read

KILL_EVERY: Final = 0.25
QUIET_SECONDS: Final = 30.0
"""A run without an ack for so long has stopped making progress."""

Progress = Callable[[int], None]
"""Called with the number of finished messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a run.

    *lost* messages were put and never acked; *doubled* ones were acked twice, or came again after their ack; *unknown*
    ones came without a put; *out_of_order* ones came before a message that was put earlier.
    """

    messages: int
    handled: int
    lost: int
    doubled: int
    unknown: int
    out_of_order: int
    lost_on_purpose: int
    handled_again: int
    late_acks_refused: int
    kills: int
    put_back: int
    left_over: int
    put_per_s: float
    handled_per_s: float
    seconds: float

    @classmethod
    def of(cls, verdict: CheckResult, **figures: Any) -> Report:
        """Return the report of a checked history and the other *figures* of the run."""
        return cls(
            handled=verdict.executed - verdict.repeated,
            lost=verdict.broken("lost"),
            doubled=verdict.broken("acked twice", "came again after its ack"),
            unknown=verdict.broken("came from nowhere"),
            out_of_order=verdict.broken("out of order"),
            lost_on_purpose=verdict.dropped,
            handled_again=verdict.repeated,
            late_acks_refused=verdict.refused,
            **figures,
        )

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.unknown or self.out_of_order or self.left_over)

    def as_dict(self) -> dict[str, Any]:
        """Return the report with its verdict, ready for JSON."""
        return {"passed": self.passed, **asdict(self)}


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
    prefix: str = field(default_factory=lambda: f"redis_queue_validate_{random.randrange(16**8):08x}")

    def __post_init__(self) -> None:
        check_limit(self.messages, 10_000_000, name="messages")
        check_limit(self.batch, CHUNK, name="batch")
        check_limit(self.consumers, 64, name="consumers")
        if self.lose_every:
            check_limit(self.lose_every, self.messages, name="lose_every")


def validate(plan: Plan, progress: Progress = lambda _: None) -> Report:
    """Run *plan* and return its report; all its keys are deleted at the end, also when interrupted.

    Raises ConfigurationError if any key begins with the plan's prefix, and the errors of :func:`redis_queue.connect`.
    """
    client = connect(plan.url)
    queue = _queue(plan, client)
    if key := next(_keys(client, plan.prefix), None):
        raise ConfigurationError(f"prefix {plan.prefix!r} is in use (key {key!r}): must be unused")
    started, scripts = time.monotonic(), Scripts(client)
    try:
        with tempfile.TemporaryDirectory(prefix="redis-queue-validate-") as folder:
            run = _Run(plan, queue, Path(folder))
            put_seconds, work_seconds = run.put(), run.work(progress)
            found = check(read(*run.histories), [])
            left = queue.stats()
            return Report.of(
                found,
                messages=plan.messages,
                kills=run.kills,
                put_back=left.redelivered,
                left_over=left.ready + left.delayed + left.in_flight + left.dead + left.quarantined,
                put_per_s=round(plan.messages / put_seconds, 1),
                handled_per_s=round((found.executed - found.repeated) / work_seconds, 1),
                seconds=round(time.monotonic() - started, 2),
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

    def put(self) -> float:
        """Put all numbers; return the seconds it took."""
        started = time.monotonic()
        self._queue.put_many(range(self._plan.messages))
        seconds = max(time.monotonic() - started, 1e-6)
        history = History(self._new_history())
        for numbers in chunks(range(self._plan.messages)):
            history.write(*(Event("put", "ok", str(number), lane=1) for number in numbers))
        history.close()
        return seconds

    def work(self, progress: Progress) -> float:
        """Let consumers work until the queue is empty; return the seconds it took."""
        started = time.monotonic()
        consumers: list[subprocess.Popen[str]] = []
        try:
            for _ in range(self._plan.consumers):
                consumers.append(self._start())
            self._watch(consumers, progress)
        finally:
            _end(*consumers)
        return max(time.monotonic() - started, 1e-6)

    def _watch(self, consumers: list[subprocess.Popen[str]], progress: Progress) -> None:
        done, moved_at, done_at_kill = 0, time.monotonic(), 0
        while True:
            self._queue.put_back()
            stats = self._queue.stats()
            if stats.acked > done:
                done, moved_at = stats.acked, time.monotonic()
                progress(done)
            if not stats.ready + stats.delayed + stats.in_flight or time.monotonic() - moved_at > QUIET_SECONDS:
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
        plan, path = self._plan, self._new_history()
        command = [sys.executable, "-c", "from redis_queue.validation.run import consume; consume()"]
        consumer = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        assert consumer.stdin is not None  # noqa: S101 - for the type checker
        # Not as arguments: the process list must not show the password.
        consumer.stdin.write(json.dumps([asdict(plan), str(path)]))
        consumer.stdin.close()
        return consumer

    def _new_history(self) -> Path:
        self.histories.append(self._folder / f"{len(self.histories)}.jsonl")
        return self.histories[-1]


def _end(*consumers: subprocess.Popen[str]) -> None:
    for consumer in consumers:
        consumer.kill()
        consumer.wait()


def _keys(client: Client, prefix: str) -> Iterator[str]:
    if not prefix or not set(prefix) <= _PLAIN:
        raise InvalidValueError(f"prefix={prefix!r}: must consist of letters, digits, '_', '-' and '.'")
    for pattern in (f"{{{prefix}:*", f"{prefix}:*"):
        for key in client.scan_iter(match=pattern, count=1000):
            yield key.decode(errors="replace") if isinstance(key, bytes) else key


_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def consume() -> None:
    """Run a consumer, in a process of its own, that loses messages on purpose until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    plan, history = json.load(sys.stdin)
    _consume(Plan(**plan), History(Path(history)))


def _consume(plan: Plan, history: History) -> None:
    queue = _queue(plan, connect(plan.url))
    while True:
        messages = queue.get_many(plan.batch, block=True, timeout=1)
        claims = [Event.of_claim(str(message.body), message, plan.lease) for message in messages]
        dropped = [_is_dropped(message, plan.lose_every) for message in messages]
        history.write(*_steps(claims, dropped))
        kept = [(message, claim) for message, claim, drop in zip(messages, claims, dropped, strict=True) if not drop]
        accepted = queue.ack_many(message for message, _ in kept)
        history.write(
            *(
                claim._replace(op="ack", kind="ok" if mine else "refused")
                for (_, claim), mine in zip(kept, accepted, strict=True)
            )
        )


def _is_dropped(message: Message, lose_every: int) -> bool:
    return bool(lose_every) and message.deliveries == 1 and message.body % lose_every == lose_every - 1


def _steps(claims: Sequence[Event], dropped: Sequence[bool]) -> Iterator[Event]:
    for claim, drop in zip(claims, dropped, strict=True):
        yield claim
        if drop:
            yield claim._replace(op="drop")
        else:
            yield claim._replace(op="execute")
            yield claim._replace(op="ack", kind="invoke")
