"""Use an existing Redis database for tests (``REDIS_QUEUE_TEST_URL``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis_queue.errors import ConfigurationError
from redis_queue.store.connection import connect
from redis_queue.store.urls import scheme_of

URL_VARIABLE: Final = "REDIS_QUEUE_TEST_URL"
FLUSH_VARIABLE: Final = "REDIS_QUEUE_TEST_FLUSH"
_SCHEMES: Final = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class ExternalServer:
    """An existing database; tests empty it again and again."""

    url: str


def external_server(worker: str = "") -> ExternalServer | None:
    """Return the database of REDIS_QUEUE_TEST_URL, or None if that is not set.

    The pytest-xdist *worker* ``gw3`` gets the database with the number + 3. Raises ConfigurationError for a database
    that is not empty, unless REDIS_QUEUE_TEST_FLUSH is 1, and the errors of :func:`redis_queue.connect`.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    if scheme_of(url) not in _SCHEMES:
        raise ConfigurationError(f"{URL_VARIABLE}: scheme {scheme_of(url)!r}: must be one of {', '.join(_SCHEMES)}")
    url, number = _shifted(url, int(worker.removeprefix("gw") or 0))
    with connect(url) as client:
        keys = client.dbsize()
    if keys and os.environ.get(FLUSH_VARIABLE) != "1":
        raise ConfigurationError(
            f"{URL_VARIABLE}: database {number} holds {keys} keys, which tests would delete: use an empty one, "
            f"or set {FLUSH_VARIABLE}=1"
        )
    return ExternalServer(url)


def _shifted(url: str, steps: int) -> tuple[str, int]:
    """Return the URL of the database whose number is *steps* higher, and that number."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    path = "" if parts.scheme == "unix" else parts.path.strip("/")
    try:
        number = int(query.get("db") or path or 0) + steps
    except ValueError:
        raise ConfigurationError(f"{URL_VARIABLE}: the number of the database is not a number") from None
    # For redis-py db= in the query wins over the path.
    return f"{url.partition('?')[0]}?{urlencode({**query, 'db': number})}", number
