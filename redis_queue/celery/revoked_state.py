"""What a cancelled task leaves behind: its state, and the chord that waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.task import Context

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.protocol import plain_body
from redis_queue.errors import InvalidValueError
from redis_queue.logs import logger_of
from redis_queue.model import Entry

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

EMBED = 2
"""Where a body of protocol 2 keeps callbacks, chain and chord, behind arguments and keywords."""


def mark_revoked(app: Celery, id: str, entry: Entry | None) -> None:
    """Set the state of a task to REVOKED, as a worker does that finds it revoked; its chord learns of it, too.

    The task is gone already: a result backend that is away only leaves its state as it was.
    """
    try:
        app.backend.mark_as_revoked(id, "revoked", request=_request(entry), store_result=True)
    except Exception as error:  # noqa: BLE001 - every backend has errors of its own
        logger.warning("cannot mark %s as revoked: %s", id, error, extra={"action": "state_unknown", "task_id": id})


def clear_revoked(app: Celery, id: str) -> None:
    """Clear the state REVOKED of a task, because a newer call with its id waits."""
    try:
        if app.backend.get_state(id) == states.REVOKED:
            app.backend.forget(id)
    except NotImplementedError:
        # A backend that stores no results, or cannot delete them.
        return
    except Exception as error:  # noqa: BLE001 - every backend has errors of its own
        logger.warning("cannot clear the state of %s: %s", id, error, extra={"action": "state_unknown", "task_id": id})


def _request(entry: Entry | None) -> Any:
    """Return what a result backend needs to know of the task; None where its message tells no chord."""
    if entry is None or not isinstance(entry.payload, bytes):
        return None
    try:
        envelope = Envelope.unpack(entry.payload, entry.id, entry.headers)
    except InvalidValueError:
        return None
    chord = _chord(plain_body(envelope))
    return Context({**envelope.headers, "chord": chord}) if chord else None


def _chord(body: Any) -> Any:
    if isinstance(body, list) and len(body) > EMBED and isinstance(body[EMBED], Mapping):
        return body[EMBED].get("chord")
    return body.get("chord") if isinstance(body, Mapping) else None
