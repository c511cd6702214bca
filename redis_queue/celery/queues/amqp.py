"""Depths of queues on RabbitMQ, by passive declarations and, if it is known, the management API."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.queues.depth import BrokerQueues, Depth
from redis_queue.store.codec import read_document, small_integer

logger = logger_of(__name__)

TIMEOUT: Final = 2.0
"""Seconds to wait for an answer."""

DEADLINE: Final = 5.0
"""Seconds for all answers together."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of one answer."""

PAGE: Final = 500
MAX_PAGES: Final = 20

COLUMNS: Final = "name,messages_ready,messages_unacknowledged,consumers,head_message_timestamp,message_stats"

MAX_DECLARED: Final = 200
"""Maximum number of queues that are declared for one answer if the management API tells the others."""


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
        until = monotonic() + DEADLINE
        for page in range(1, MAX_PAGES + 1):
            answer = self._get(f"?page={page}&page_size={PAGE}&columns={COLUMNS}", until - monotonic())
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
                data = response.read(MAX_BYTES + 1)
            found = read_document(data) if len(data) <= MAX_BYTES else None
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


class AmqpQueues(BrokerQueues):
    """Reads queues through kombu's *connection*; a declaration of a missing queue ends its channel, not the connection.

    All methods raise the errors of kombu and py-amqp if the broker is away. Without an answer of the *management* API,
    what only it tells is unknown. A client of RabbitMQ cannot list its queues, so none are known to be bound.
    """

    def __init__(self, connection: Any, management: Management | None = None) -> None:
        self._connection = connection
        self._channel: Any = None
        self._management = management
        self._managed: dict[str, Depth] | None = None

    def sizes(self, queues: Sequence[str]) -> tuple[list[int | None], int | None]:
        """Return how many messages wait in each queue, and are in flight in all; None without the management API."""
        rows = [self._by_management().get(queue) for queue in queues]
        known = [row for row in rows if row is not None]
        return [row.ready if row else None for row in rows], sum(row.in_flight or 0 for row in known) if known else None

    def depths(self, queues: Sequence[str]) -> list[Depth]:
        """Return the depth of each queue, with one round trip for each of the first 200 queues at least."""
        managed = self._by_management()
        try:
            return [
                managed[queue] if number >= MAX_DECLARED and queue in managed else self._both(queue, managed)
                for number, queue in enumerate(queues)
            ]
        finally:
            self._close()

    def _both(self, queue: str, managed: Mapping[str, Depth]) -> Depth:
        # The management API lags by some seconds.
        found, more = self._depth(queue), managed.get(queue)
        if more is None or found.error or not found.exists:
            return found
        return replace(found, in_flight=more.in_flight, oldest_at=more.oldest_at, put_rate=more.put_rate)

    def _by_management(self) -> Mapping[str, Depth]:
        if self._managed is None:
            self._managed = {}
            if self._management is not None:
                try:
                    self._managed = self._management.depths()
                except ManagementError as error:
                    logger.warning("%s", error, extra={"action": "management_failed"})
        return self._managed

    def _depth(self, queue: str) -> Depth:
        if self._channel is None:
            self._channel = self._connection.channel()
        try:
            found = self._channel.queue_declare(queue, passive=True)
        except self._connection.channel_errors as error:
            self._close()
            if getattr(error, "code", None) == 404:  # noqa: PLR2004 - NOT_FOUND
                return Depth(0, 0, 0, exists=False)
            return Depth(error=str(error))
        return Depth(found.message_count, None, found.consumer_count)

    def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.is_open:
            channel.close()
