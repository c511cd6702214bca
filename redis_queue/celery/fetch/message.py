"""FetchedMessage: a message that atomic fetch has taken, and how long messages of its task took before."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, Final

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

NAMES: Final = 1000
"""Maximum number of names of tasks whose durations are remembered."""


class FetchedMessage(virtual.Message):
    """Message that is made when it is fetched; when kombu makes it again for its delivery, it gets the same object."""

    #: The queue from which it was fetched.
    queue: str
    #: The tag that its sender gave it, which each of its deliveries has; None if it has none.
    sent_as: str | None = None
    #: The name of its task; None if it has none.
    task: str | None = None
    #: When it was delivered to Celery, on the monotonic clock.
    handed_at = math.inf

    def __new__(cls, payload: Any, channel: Any = None, **options: Any) -> FetchedMessage:  # noqa: ARG004
        """Return *payload* if it is a message already."""
        return payload if isinstance(payload, cls) else super().__new__(cls)

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        if payload is not self:
            super().__init__(payload, channel=channel, **options)  # type: ignore[no-untyped-call]

    @classmethod
    def read(cls, item: bytes, tag: str, queue: str, channel: Any) -> FetchedMessage:
        """Return the message of a list's *item* with the delivery *tag*; raises any error if it cannot be read."""
        text = bytes_to_str(item)
        # The decoder of kombu is slow, and only needed for its own types of values.
        payload = loads(text) if "__type__" in text else json.loads(text)
        sent_as, payload["properties"]["delivery_tag"] = payload["properties"].get("delivery_tag"), tag
        # kombu turns the priority into an integer when it restores a message: 1e999999 gets a million digits.
        if isinstance(payload["properties"].get("priority"), Decimal):
            raise TypeError("priority: expected an integer, got a decimal")
        channel._get_message_priority(payload)
        # Make the message here: a later error would stop this worker, and each worker that gets the message.
        message = cls(payload, channel=channel)
        message.queue = queue
        message.sent_as = sent_as if isinstance(sent_as, str) else None
        name = message.headers.get("task") if isinstance(message.headers, dict) else None
        message.task = name if isinstance(name, str) else None
        return message


class Durations:
    """How many seconds the last message of each task took; of up to NAMES tasks."""

    def __init__(self) -> None:
        self._of: dict[str | None, float] = {}

    def note(self, message: FetchedMessage, seconds: float) -> None:
        """Record that *message* took *seconds*."""
        if len(self._of) >= NAMES:
            self._of.clear()
        self._of[message.task] = seconds

    def of(self, message: FetchedMessage) -> float:
        """Return how long the last message of the same task took; infinite if that is not known."""
        return self._of.get(message.task, math.inf)
