"""Consumer for asyncio: its handlers are coroutines on the event loop; all else is the synchronous Consumer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

from redis_queue.aio.queues import RedisQueue
from redis_queue.basics.times import Seconds
from redis_queue.basics.waits import retry_delay
from redis_queue.errors import InvalidValueError, Nack
from redis_queue.model import Message
from redis_queue.queue import consumer

CANCELLED: Final = "the handler was cancelled"


class Consumer:
    """Run the coroutine function *handler* for each message of *queue*, *concurrency* (1 to 1000) at a time.

    All handlers run on the event loop of :meth:`run`. What is promised, and the other arguments, are those of
    :class:`redis_queue.Consumer`, which does the rest in threads with connections of their own: leases are extended
    also while a handler blocks the event loop, up to *max_runtime* seconds per message. Handlers see a copy of the
    context in which :meth:`run` was called.

    :meth:`run` returns after :meth:`stop`, and after SIGTERM or SIGINT if it runs in the main thread and nobody else
    handles them. Running handlers get *grace* seconds to finish, then they are cancelled. If :meth:`run` is cancelled,
    its handlers are cancelled at once, and their messages are given back, to be claimed again at once.
    """

    def __init__(
        self,
        queue: RedisQueue,
        handler: Callable[[Message], Awaitable[Any]],
        *,
        concurrency: int = 1,
        batch: int = 1,
        grace: Seconds = 30.0,
        max_runtime: Seconds | None = None,
        retry_delay: Callable[[int], Seconds] = retry_delay,
    ) -> None:
        if not any(map(inspect.iscoroutinefunction, (handler, getattr(handler, "__call__", None)))):  # noqa: B004
            raise InvalidValueError(f"handler={handler!r}: must be an `async def` function that takes a message")
        if not isinstance(queue, RedisQueue):
            raise InvalidValueError(f"queue={queue!r}: must be a redis_queue.aio.RedisQueue")
        self._handler = handler
        self._consumer = consumer.Consumer(
            queue.sync,
            self._handle,
            concurrency=concurrency,
            batch=batch,
            grace=grace,
            max_runtime=max_runtime,
            retry_delay=retry_delay,
        )
        self._running: set[asyncio.Task[Any]] = set()
        self._is_cancelled = False

    def stop(self) -> None:
        """Stop claiming and let :meth:`run` return. Safe from any thread and from signal handlers."""
        self._consumer.stop()

    async def run(self) -> None:
        """Work until stopped. A Consumer runs only once: a second call raises RuntimeError."""
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        outcome: Future[None] = Future()
        threading.Thread(target=self._work, args=(outcome,), name="redis-queue-consumer", daemon=True).start()
        ended = asyncio.wrap_future(outcome)
        with _signals(self._loop, self.stop):
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                self.stop()
                self._cancel()
                await asyncio.wait([ended])
                raise
            finally:
                self._cancel()

    def _work(self, outcome: Future[None]) -> None:
        try:
            self._consumer.run()
        except BaseException as error:  # noqa: BLE001 - run() raises it
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    def _handle(self, message: Message) -> Any:
        # In a thread of the synchronous consumer: the handler gets a copy of the context of run().
        submit = asyncio.run_coroutine_threadsafe
        return self._context.copy().run(submit, self._call(message), self._loop).result()

    async def _call(self, message: Message) -> Any:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        if self._is_cancelled:
            raise Nack(CANCELLED)
        self._running.add(task)
        try:
            return await self._handler(message)
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise Nack(CANCELLED) from None
            raise
        finally:
            self._running.discard(task)

    def _cancel(self) -> None:
        self._is_cancelled = True
        for task in self._running:
            task.cancel()


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Call *stop* at SIGTERM and SIGINT, unless somebody else, such as a web server, handles them."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ours = {number: handler for number, handler in before.items() if _is_default(handler)}
    for number in ours:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in ours.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _is_default(handler: Any) -> bool:
    # asyncio.run() has a handler of its own for SIGINT, which cancels the main task.
    by_asyncio = getattr(getattr(handler, "func", None), "__module__", "") == "asyncio.runners"
    return by_asyncio or handler in (signal.SIG_DFL, signal.default_int_handler)
