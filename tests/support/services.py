"""The RabbitMQ and PostgreSQL of a test run: from the environment, on this host, or private ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from .parts import MissingPartError
from .postgres import PostgresServer, postgres_answers
from .rabbit import RabbitServer, rabbitmq_answers

RABBITMQ_VARIABLE: Final = "REDIS_QUEUE_TEST_RABBITMQ"
RABBITMQ_DEFAULT: Final = "amqp://guest:guest@127.0.0.1:5672//"
POSTGRES_VARIABLE: Final = "REDIS_QUEUE_TEST_POSTGRES"
POSTGRES_DEFAULT: Final = "postgresql://postgres@127.0.0.1:5432/postgres"


@contextmanager
def rabbitmq() -> Iterator[str]:
    """Yield the URL of a RabbitMQ; raises MissingPartError if none runs and none can be started."""
    with _service(RABBITMQ_VARIABLE, RABBITMQ_DEFAULT, rabbitmq_answers, RabbitServer) as url:
        yield url


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a PostgreSQL; raises MissingPartError if none runs and none can be started."""
    with _service(POSTGRES_VARIABLE, POSTGRES_DEFAULT, postgres_answers, PostgresServer) as url:
        yield url


@contextmanager
def shared() -> Iterator[dict[str, str]]:
    """Yield the environment variables through which all processes of a run share the servers."""
    with ExitStack() as stack:
        found = {}
        for variable, service in ((RABBITMQ_VARIABLE, rabbitmq), (POSTGRES_VARIABLE, postgres)):
            with suppress(MissingPartError):
                found[variable] = stack.enter_context(service())
        yield found


@contextmanager
def _service(
    variable: str, default: str, answers: Callable[[str], bool], private: Callable[[], RabbitServer | PostgresServer]
) -> Iterator[str]:
    if url := os.environ.get(variable):
        yield url
    elif answers(default):
        yield default
    else:
        with private() as server:
            yield server.url
