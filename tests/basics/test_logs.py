"""Stored values in log messages cannot forge log lines."""

import logging
from pathlib import Path
from typing import Any

import pytest

import redis_queue
from redis_queue.basics.logs import logger_of

FORGED = "x\n2026-01-01 INFO redis_queue.operate.audit cancel by admin: 9 of celery\r\x1b[2K\u2028\u202e"

logger = logger_of("redis_queue.tests.logs")


class ListHandler(logging.Handler):
    """A handler that collects formatted records."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@pytest.fixture
def written() -> Any:
    handler = ListHandler()
    logger.addHandler(handler)
    yield handler.texts
    logger.removeHandler(handler)


@pytest.mark.parametrize(
    "arguments",
    [
        ("lost %s", FORGED),
        ("lost %s", ValueError(FORGED)),
        ("lost %(id)s", {"id": FORGED}),
        (f"lost {FORGED}",),
        ("lost %r", FORGED),
    ],
    ids=["text", "error", "mapping", "message", "repr"],
)
def test_a_message_stays_on_one_line(arguments: tuple[Any, ...], written: list[str]) -> None:
    logger.warning(*arguments)
    (text,) = written
    assert text.startswith("lost ")
    assert text.isprintable()
    assert "redis_queue.operate.audit cancel" in text


def test_messages_in_a_traceback_are_one_line_each(written: list[str]) -> None:
    def fail() -> None:
        try:
            raise KeyError("a cause")
        except KeyError:
            try:
                raise RuntimeError(FORGED)
            except RuntimeError as error:
                raise ValueError(f"outer {FORGED}") from error

    try:
        fail()
    except ValueError:
        logger.exception("failed")
    (text,) = written
    assert "\nValueError: outer x" in text
    assert "\nRuntimeError: x" in text
    assert text.count("\n    raise ") == 3
    assert not [line for line in text.splitlines() if line.startswith("2026-")]
    assert "\x1b" not in text


class Mute(Exception):  # noqa: N818 - not a failure
    def __str__(self) -> str:
        raise ValueError


def test_an_error_whose_str_fails_is_logged(written: list[str]) -> None:
    try:
        raise Mute
    except Mute:
        logger.exception("failed")
    (text,) = written
    assert text.startswith("failed\nTraceback")


def test_numbers_and_objects_are_formatted_as_they_are(written: list[str]) -> None:
    logger.warning("%d of %.1f %s", 3, 2.5, Path("a"))
    logger.warning("100 %")
    assert written == ["3 of 2.5 a", "100 %"]


def test_every_module_of_the_package_uses_logger_of() -> None:
    root = Path(redis_queue.__file__).parent
    found = [path for path in root.rglob("*.py") if "getLogger(" in path.read_text() and path.name != "logs.py"]
    assert found == []
