"""Consumer: claim messages, call a handler for each in threads, and settle them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.times import Seconds, duration_ms, monotonic
from redis_queue.basics.waits import Backoff, StopEvent, retry_delay, signal_handler
from redis_queue.errors import RedisQueueError, StoreError, Verdict
from redis_queue.model import Message
from redis_queue.queue.claims import Step
from redis_queue.queue.handler import AckBuffer, GiveBack, Handler, check_handler, check_ran, verdict_on
from redis_queue.queue.heartbeat import Turn
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.store.redis_errors import is_outage

logger = logger_of(__name__)

MAX_THREADS: Final = 1000

Result = TypeVar("Result")


class Consumer:
    """Run *handler* for each message of *queue*, in *concurrency* threads.

    If the handler returns, its message is acked. If it raises, the message is given back with the exception as reason,
    and can be claimed again after ``retry_delay(deliveries)`` seconds. After its last delivery it becomes a dead
    letter. The handler may raise :class:`~redis_queue.errors.Nack` or :class:`~redis_queue.errors.Dead` to choose
    another outcome. Leases are extended while the handler works, up to *max_runtime* seconds per message: a handler
    that hangs for longer loses its message, and the other messages of its thread. While Redis cannot be reached, or
    refuses commands for now (it is full, read-only, loading, replaces a password ...), the threads wait with growing
    pauses; a finished message is acked as soon as Redis answers again.

    A thread acks finished messages and claims up to *batch* (1 to 500) others in one round trip: a larger batch is much
    faster. Messages are acked after the last one of their batch, but at most 5 ms after they are done, also while the
    next handler runs. A crash repeats the messages of these 5 ms and the running ones; the others of the batch are
    redelivered.

    :meth:`run` returns after :meth:`stop`, SIGTERM or SIGINT. Running handlers get *grace* seconds to finish. Claimed
    messages whose handler has not started go back at once, and that delivery does not count. If an error ended a
    thread, :meth:`run` raises it.
    """

    def __init__(
        self,
        queue: RedisQueue,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: int = 1,
        grace: Seconds = 30.0,
        max_runtime: Seconds | None = None,
        retry_delay: Callable[[int], Seconds] = retry_delay,
    ) -> None:
        check_handler(handler)
        self._queue = queue
        self._handler = handler
        self._concurrency = check_limit(concurrency, MAX_THREADS, name="concurrency")
        self._batch = check_limit(batch, CHUNK, name="batch")
        self._grace = duration_ms(grace, name="grace") / 1000
        self._retry_delay = retry_delay
        self._heartbeat = queue.keep_alive(max_runtime=max_runtime)
        self._done = AckBuffer(lambda done: self._guard(self._ack, done))
        self._claiming = threading.Lock()
        self._begun = False
        self._stop = StopEvent()
        self._abandon = threading.Event()
        self._error: BaseException | None = None
        self._outage = OutageLog(logger, "cannot settle yet", "settling again", action="store_unavailable")

    def stop(self) -> None:
        """Stop claiming and let :meth:`run` return. Safe from any thread and from signal handlers."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. A Consumer runs only once: a second call raises RuntimeError."""
        if self._begun:
            raise RuntimeError("this Consumer has already run: make a new one")
        self._begun = True
        threads = [
            threading.Thread(target=self._guard, args=(self._work,), name=f"redis-queue-consumer-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        with self._signals(), self._heartbeat:
            for thread in threads:
                thread.start()
            # Waking up now and then lets Python run signal handlers on every platform.
            while not self._stop.wait(1.0):
                pass
            deadline = monotonic() + self._grace
            for thread in threads:
                thread.join(max(0.0, deadline - monotonic()))
            self._done.close(max(0.0, deadline - monotonic()))
            self._abandon.set()
        if self._error is not None:
            raise self._error

    def _signals(self) -> contextlib.AbstractContextManager[None]:
        is_main = threading.current_thread() is threading.main_thread()
        return signal_handler(self._on_signal) if is_main else contextlib.nullcontext()

    def _on_signal(self, *_: object) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self.stop()

    def _work(self) -> None:
        backoff = Backoff()
        messages: list[Message] = []
        while messages or not self._stop.is_set():
            try:
                messages = messages or self._claim()
            except StoreError as error:
                if not is_outage(error):
                    raise
                # The queue has logged it.
                self._stop.wait(backoff.next())
                continue
            backoff.reset()
            messages = self._handle(messages)

    def _guard(self, work: Callable[..., object], *arguments: Any) -> None:
        """Call *work* in a thread; an error stops the consumer."""
        try:
            work(*arguments)
        except BaseException as error:
            logger.exception("consumer stopped", extra={"action": "consumer_failed"})
            self._error = error
            self.stop()

    def _claim(self) -> list[Message]:
        # One thread claims at a time: so many idle threads of a process need only one waiting connection.
        with self._claiming:
            if self._stop.is_set():
                return []
            return self._queue.get_many(self._batch, block=True, timeout=self._queue.settings.poll_interval)

    def _handle(self, messages: list[Message]) -> list[Message]:
        """Handle and settle *messages*; return the next ones, if they could be claimed with the ack."""
        turn = self._heartbeat.add(*messages)
        try:
            return self._work_off(messages, turn)
        finally:
            self._heartbeat.remove(*messages)

    def _work_off(self, messages: list[Message], turn: Turn) -> list[Message]:
        left = messages[::-1]
        last: list[Message] = []
        goes_on = False
        try:
            while left and not self._stop.is_set():
                message = left.pop()
                self._heartbeat.restart(turn)
                if not self._heartbeat.is_lost(message) and self._finish(message):
                    # No handler runs after the last one, so its ack is sent at once.
                    (self._done.add if left else last.append)(message)
            goes_on = not self._stop.is_set()
        finally:
            turn.pause()
            done = self._done.take() + last
            if not goes_on:
                self._leave(done, left[::-1])
        return self._ack_and_claim(done) if goes_on and done else []

    def _leave(self, done: list[Message], left: list[Message]) -> None:
        if done:
            self._ack(done)
        if left:
            self._settle(left, lambda: self._queue.nack_many(left, counted=False), [False] * len(left))

    def _finish(self, message: Message) -> bool:
        """Run the handler; True means that the message can be acked."""
        try:
            check_ran(self._handler(message))
        except Exception as error:
            if not isinstance(error, Verdict):
                logger.exception("handler failed", extra={"action": "handler_failed", "message_id": message.id})
            self._nack(message, verdict_on(message, error, self._retry_delay))
        except BaseException:
            self._nack(message, GiveBack("the handler ended its thread"))
            raise
        else:
            return True
        return False

    def _ack_and_claim(self, done: list[Message]) -> list[Message]:
        # The same call is repeated: if its reply was lost, it returns what it acked and claimed.
        refused = Step([False] * len(done), [])
        step = self._settle(done, self._queue.ack_then_get(done, self._batch), refused)
        _report(done, step.accepted)
        return step.messages

    def _ack(self, done: list[Message]) -> None:
        _report(done, self._settle(done, lambda: self._queue.ack_many(done), [False] * len(done)))

    def _nack(self, message: Message, how: GiveBack) -> None:
        self._settle([message], lambda: self._queue.nack(message, **how._asdict()), False)

    def _settle(self, messages: list[Message], call: Callable[[], Result], abandoned: Result) -> Result:
        """Repeat *call* until Redis answers: finished work is acked however long Redis cannot be reached.

        Returns *abandoned* if Redis does not answer until the grace is over.
        """
        backoff = Backoff()
        try:
            while True:
                try:
                    found = call()
                except StoreError as error:
                    if not is_outage(error):
                        raise
                    pause = backoff.next()
                    self._outage.note(error, retry_in=pause)
                    if self._abandon.wait(pause):
                        return abandoned
                else:
                    self._outage.end()
                    return found
        except RedisQueueError:
            logger.exception("cannot settle", extra={"action": "settle_failed"})
            raise
        finally:
            self._heartbeat.remove(*messages)


def _report(done: list[Message], accepted: list[bool]) -> None:
    for message, kept in zip(done, accepted, strict=True):
        if not kept:
            logger.warning("ack refused, lease lost", extra={"action": "ack_refused", "message_id": message.id})
