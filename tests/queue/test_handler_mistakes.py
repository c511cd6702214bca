"""Mistakes in handlers neither end a consumer nor ack unprocessed messages."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn

import pytest
import redis

from redis_queue import Consumer, Dead, InvalidValueError, Message, Nack, RedisQueue
from tests.support.wait import must


@pytest.fixture
def queue(client: redis.Redis) -> RedisQueue:
    return RedisQueue("work", client)


def run_one(queue: RedisQueue, handler: Callable[[Message], object], **options: Any) -> None:
    """Put a message and let a consumer handle it."""
    queue.put("body", dedupe_key="k")
    consumer = Consumer(queue, handler, **options)
    consumer._handle(consumer._claim())


def raising(error: BaseException) -> Callable[[Message], NoReturn]:
    def handle(message: Message) -> NoReturn:
        raise error

    return handle


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


class TestReasons:
    @pytest.mark.parametrize(
        ("reason", "text"),
        [
            (ValueError("no such customer"), "ValueError: no such customer"),
            (None, ""),
            (404, "404"),
            (MuteError(), "MuteError"),
        ],
    )
    def test_any_reason_becomes_text(self, queue: RedisQueue, reason: Any, text: str) -> None:
        run_one(queue, raising(Dead(reason)))
        (letter,) = queue.dead_letters()
        assert letter.reason == text

        queue.purge("dead")
        run_one(queue, raising(Nack(reason)))
        item = must(queue.look("k"))
        assert (item.state, item.reason) == ("ready", text)

    def test_an_exception_without_text_is_named(self, queue: RedisQueue) -> None:
        run_one(queue, raising(MuteError()))
        item = must(queue.look("k"))
        assert (item.state, item.reason) == ("delayed", "MuteError")

    @pytest.mark.parametrize(("reason", "text"), [(None, ""), (KeyError("x"), "KeyError: 'x'")])
    def test_nack_accepts_any_reason(self, queue: RedisQueue, reason: Any, text: str) -> None:
        queue.put(1, dedupe_key="k")
        message = must(queue.get())
        assert queue.nack(message, reason=reason)
        assert must(queue.look("k")).reason == text


class TestDelays:
    @pytest.mark.parametrize(
        "delays", [[0.01, 0.02].__getitem__, lambda _: -1, lambda _: "soon", lambda: 1, lambda _: None]
    )
    def test_a_wrong_retry_delay_is_replaced(
        self, queue: RedisQueue, delays: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue.put("body", dedupe_key="k")
        for _ in range(3):
            message = must(queue.get())
            queue.nack(message)
        with caplog.at_level(logging.ERROR):
            run_one(queue, raising(ValueError("x")), retry_delay=delays)
        assert "invalid delay" in caplog.text
        assert queue.stats().delayed == 1

    def test_a_wrong_delay_of_a_nack_is_replaced(self, queue: RedisQueue) -> None:
        run_one(queue, raising(Nack("later", delay="soon")))  # type: ignore[arg-type]
        assert queue.stats().delayed == 1


class Async:
    async def __call__(self, message: Message) -> None:
        """Do nothing."""


async def coroutine(message: Message) -> None:
    """Do nothing."""


async def coroutines(message: Message) -> AsyncIterator[int]:
    yield 1


def steps(message: Message) -> Iterator[int]:
    yield 1


class TestHandlersThatDoNotRun:
    @pytest.mark.parametrize("handler", [coroutine, functools.partial(coroutine), Async(), coroutines, steps])
    def test_async_handlers_and_generators_are_refused(
        self, queue: RedisQueue, handler: Callable[[Message], object]
    ) -> None:
        with pytest.raises(InvalidValueError, match="must be a plain function"):
            Consumer(queue, handler)

    @pytest.mark.parametrize("function", [coroutine, steps])
    def test_a_returned_coroutine_or_generator_is_a_failure(
        self, queue: RedisQueue, function: Callable[[Message], object]
    ) -> None:
        def handle(message: Message) -> object:
            return function(message)

        run_one(queue, handle)
        item = must(queue.look("k"))
        assert item.state == "delayed"
        assert "code did not run" in item.reason


def test_a_consumer_can_run_only_once(queue: RedisQueue) -> None:
    consumer = Consumer(queue, print)
    consumer.stop()
    consumer.run()
    with pytest.raises(RuntimeError, match="make a new one"):
        consumer.run()


class TestVerdictsInLease:
    def test_dead_buries_the_message(self, queue: RedisQueue) -> None:
        queue.put("body")
        with pytest.raises(Dead), queue.lease():
            raise Dead("never")
        (letter,) = queue.dead_letters()
        assert letter.reason == "never"

    def test_nack_has_its_delay_and_may_be_uncounted(self, queue: RedisQueue) -> None:
        queue.put("body", dedupe_key="k")
        with pytest.raises(Nack), queue.lease():
            raise Nack("busy", delay=30, counted=False)
        item = must(queue.look("k"))
        assert (item.state, item.deliveries, item.reason) == ("delayed", 0, "busy")

    def test_any_other_exception_releases_the_message_at_once(self, queue: RedisQueue) -> None:
        queue.put("body", dedupe_key="k")
        with pytest.raises(MuteError), queue.lease():
            raise MuteError
        item = must(queue.look("k"))
        assert (item.state, item.reason) == ("ready", "MuteError")
