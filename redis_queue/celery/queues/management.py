"""Management: counts and rates of queues from RabbitMQ's management API."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from redis_queue.celery.queues.depth import Depth
from redis_queue.store.codec import read_document, small_integer

TIMEOUT: Final = 2.0
"""Seconds to wait for an answer."""

DEADLINE: Final = 5.0
"""Seconds for all answers together."""

MOST_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of one answer."""

PAGE: Final = 500
MOST_PAGES: Final = 20

COLUMNS: Final = "name,messages_ready,messages_unacknowledged,consumers,head_message_timestamp,message_stats"


class ManagementError(Exception):
    """The management API gave no usable answer."""


class Management:
    """The management API at *url*, ``http://user:password@host:15672``, for one *virtual_host*."""

    def __init__(self, url: str, virtual_host: str) -> None:
        parts = urlsplit(url)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        place = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/")).geturl()
        self._url = f"{place}/api/queues/{quote(virtual_host, safe='')}"
        self._headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        # The password must not go to another server.
        self._open = build_opener(_NoRedirects).open

    def depths(self) -> dict[str, Depth]:
        """Return the depth of each queue, of up to 10,000. Raises ManagementError."""
        return {name: depth for row in self._rows() for name, depth in _depth(row)}

    def _rows(self) -> Iterator[Any]:
        until = time.monotonic() + DEADLINE
        for page in range(1, MOST_PAGES + 1):
            answer = self._get(f"?page={page}&page_size={PAGE}&columns={COLUMNS}", until - time.monotonic())
            rows, pages = answer.get("items"), answer.get("page_count")
            if not isinstance(rows, list):
                raise ManagementError("the management API answers with something else than queues")
            yield from rows
            if not isinstance(pages, int) or page >= pages:
                return

    def _get(self, query: str, left: float) -> Mapping[str, Any]:
        request = Request(self._url + query, headers=self._headers)  # noqa: S310 - the scheme was checked
        try:
            with self._open(request, timeout=max(0.1, min(TIMEOUT, left))) as response:
                data = response.read(MOST_BYTES + 1)
            found = read_document(data) if len(data) <= MOST_BYTES else None
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ManagementError(f"the management API cannot be read: {reason}") from error
        if not isinstance(found, Mapping):
            raise ManagementError("the management API answers with something else than queues")
        return found


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect."""


def _depth(row: Any) -> Iterator[tuple[str, Depth]]:
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        return
    at = _count(row.get("head_message_timestamp"))
    stats = row.get("message_stats")
    published = stats.get("publish_details") if isinstance(stats, Mapping) else None
    rate = published.get("rate") if isinstance(published, Mapping) else None
    yield (
        row["name"],
        Depth(
            _count(row.get("messages_ready")),
            _count(row.get("messages_unacknowledged")),
            _count(row.get("consumers")),
            None if at is None else float(at),
            put_rate=float(rate) if isinstance(rate, int | float) and 0 <= rate < 1e9 else None,  # noqa: PLR2004
        ),
    )


def _count(value: Any) -> int | None:
    try:
        return max(0, small_integer(value))
    except TypeError:
        return None
