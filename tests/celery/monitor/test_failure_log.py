"""FailureLog: notes never raise, and hold a limited number."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionWithTraceback
from celery.utils.serialization import UnpickleableExceptionWrapper

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.monitor.activity import exception_name
from redis_queue.celery.monitor.failure_log import FailureLog
from redis_queue.celery.settings import KeepFailures
from redis_queue.monitor.failure_rows import MAX_MESSAGE, MAX_TRACEBACK
from redis_queue.monitor.failures import MAX_AT_ONCE
from redis_queue.monitor.rows import MAX_RAW


class EvilError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def message(body: Any = b"[[], {}, {}]", headers: Any = None, **fields: Any) -> Any:
    """Return a message as kombu delivers it."""
    known = {
        "body": body,
        "headers": {"id": "id1", "task": "shop.mail"} if headers is None else headers,
        "properties": {"correlation_id": "id1"},
        "delivery_info": {"exchange": "", "routing_key": "mail"},
        "content_type": "application/json",
        "content_encoding": "utf-8",
    }
    return SimpleNamespace(**{**known, **fields})


def request(found: Any = None, *, time_start: float | None = None, **headers: Any) -> Any:
    found = found or message()
    return SimpleNamespace(message=found, request_dict={**found.headers, **headers}, time_start=time_start)


def failed(error: BaseException, traceback: Any = "Traceback") -> Any:
    return SimpleNamespace(exception=error, traceback=traceback)


@pytest.fixture
def log() -> FailureLog:
    return FailureLog("one@host", lambda info: str(info["routing_key"]), KeepFailures())


def test_a_failed_run(log: FailureLog) -> None:
    log.note(request(retries=2, argsrepr="(1,)", kwargsrepr="{}"), failed(ValueError("bad")), 1.5)
    ((found,), missed) = log.take(skew=10)
    assert missed == 0
    assert (found.id, found.task, found.queue, found.worker) == ("id1", "shop.mail", "mail", "one@host")
    assert (found.exception, found.message, found.traceback) == ("ValueError", "bad", "Traceback")
    assert (found.args, found.kwargs, found.attempts, found.seconds) == ("(1,)", "{}", 3, 1.5)
    assert found.body is not None
    assert Envelope.unpack(found.body, "any").id == "id1"
    ((unshifted,), _) = log.take()
    assert (found.failed_at - unshifted.failed_at).total_seconds() == pytest.approx(10, abs=0.01)


def test_notes_stay_until_they_were_written(log: FailureLog) -> None:
    log.note(request(), failed(ValueError()), None)
    assert len(log.take()[0]) == 1
    log.note(request(), failed(KeyError()), None)
    log.written()
    assert [found.exception for found in log.take()[0]] == ["KeyError"]
    log.written()
    assert log.take() == ([], 0)


def test_more_than_a_hundred_are_counted(log: FailureLog) -> None:
    for _ in range(MAX_AT_ONCE + 7):
        log.note(request(), failed(ValueError()), None)
    found, missed = log.take()
    assert (len(found), missed) == (MAX_AT_ONCE, 7)
    log.note(request(), failed(ValueError()), None)
    log.written()
    assert log.take() == ([], 1)


def test_threads_lose_no_count(log: FailureLog, pool: ThreadPoolExecutor) -> None:
    def fail(_: int) -> None:
        for _ in range(200):
            log.note(request(), failed(ValueError()), None)

    list(pool.map(fail, range(8)))
    found, missed = log.take()
    assert len(found) == MAX_AT_ONCE
    log.written()
    rest, more = log.take()
    assert len(found) + missed + len(rest) + more == 1600
    assert len(rest) < 8


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (ValueError("x"), "ValueError", "x"),
        (EvilError(), "tests.celery.monitor.test_failure_log.EvilError", ""),
        (ExceptionWithTraceback(KeyError("k"), None), "KeyError", "'k'"),
        (UnpickleableExceptionWrapper("shop", "CardError", ["x"], "CardError(x)"), "shop.CardError", "CardError(x)"),
    ],
)
def test_names_and_texts_of_exceptions(log: FailureLog, error: Any, name: str, text: str) -> None:
    log.note(request(), failed(error), None)
    ((found,), _) = log.take()
    assert (found.exception, found.message) == (name, text)
    assert exception_name(type("n" * 1000, (Exception,), {"__module__": "m"})()) == f"m.{'n' * 253}"


def test_huge_values_are_cut_when_they_are_noted(log: FailureLog) -> None:
    huge = "\x1b[31m" + "x" * 10_000_000
    body = message(body=b"x" * (MAX_MESSAGE + 1), headers={"id": "id1", "task": huge, "argsrepr": huge})
    log.note(request(body, kwargsrepr=huge), failed(ValueError(huge), huge), None)
    ((found,), _) = log.take()
    assert max(map(len, (found.message, found.args, found.kwargs))) <= MAX_RAW
    assert (len(found.task), found.body) == (255, None)
    assert len(found.traceback.encode()) <= MAX_TRACEBACK
    assert "\x1b" not in found.message + found.traceback


@pytest.mark.parametrize(
    "found",
    [
        message(body=None),
        message(headers={"id": 5, "task": ["x"], "retries": "x"}),
        message(headers={}),
        message(delivery_info={"routing_key": None}),
        message(content_type=None),
        message(body="text"),
        message(headers={"id": "x" * 10_000, "task": "t"}),
        message(headers={"id": "a\nb", "task": "t"}),
    ],
)
def test_odd_messages_are_noted_all_the_same(log: FailureLog, found: Any) -> None:
    log.note(request(found), failed(ValueError()), None)
    log.note_message("unreadable", found, "why")
    log.note_message("unregistered", found, KeyError("shop.new"))
    (run, unreadable, unregistered), missed = log.take()
    assert missed == 0
    assert 0 < len(run.id) <= 255
    assert run.id.isprintable()
    assert (unreadable.kind, unreadable.message, unreadable.attempts) == ("unreadable", "why", 0)
    assert (unregistered.task, unregistered.exception) == ("shop.new", "NotRegistered")


def test_a_failure_that_cannot_be_noted_disturbs_nothing(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.note(object(), failed(ValueError()), None)
    log.note_message("unreadable", object(), "why")
    assert log.take() == ([], 0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_the_run_time_is_that_since_the_start(log: FailureLog) -> None:
    log.note(request(time_start=0.0), failed(ValueError()), None)
    ((found,), _) = log.take()
    assert found.seconds is not None
    assert found.seconds > 1e9
