"""The database that a project gives its tests, where it has no server of their own started."""

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
class GivenServer:
    """A database of a server that somebody else started; the tests empty it again and again."""

    url: str


def given_server(worker: str = "") -> GivenServer | None:
    """Return the database in REDIS_QUEUE_TEST_URL, or None where that is not set.

    The pytest-xdist *worker* ``gw3`` gets the third one behind it. Raises ConfigurationError for a database that is not
    empty, unless REDIS_QUEUE_TEST_FLUSH is 1, and what :func:`redis_queue.connect` raises.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    if scheme_of(url) not in _SCHEMES:
        raise ConfigurationError(f"{URL_VARIABLE} has the scheme {scheme_of(url)!r}: it must be one of {_SCHEMES}")
    url, number = _behind(url, int(worker.removeprefix("gw") or 0))
    with connect(url) as client:
        keys = client.dbsize()
    if keys and os.environ.get(FLUSH_VARIABLE) != "1":
        raise ConfigurationError(
            f"{URL_VARIABLE}: database {number} holds {keys} keys, and tests would delete them: give an empty one, "
            f"or set {FLUSH_VARIABLE}=1"
        )
    return GivenServer(url)


def _behind(url: str, steps: int) -> tuple[str, int]:
    """Return the URL of the database *steps* behind that of *url*, and its number."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    path = "" if parts.scheme == "unix" else parts.path.strip("/")
    try:
        number = int(query.get("db") or path or 0) + steps
    except ValueError:
        raise ConfigurationError(f"{URL_VARIABLE}: the database is no number") from None
    # For redis-py db= in the query wins over the path.
    return f"{url.partition('?')[0]}?{urlencode({**query, 'db': number})}", number
