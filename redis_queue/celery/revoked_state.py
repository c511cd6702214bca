"""Set and clear the state REVOKED of cancelled tasks in the result backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.task import Context

from redis_queue.basics.logs import logger_of
from redis_queue.celery.message.body import plain_body
from redis_queue.celery.message.entry import read_entry
from redis_queue.celery.message.envelope import Envelope
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

EMBED = 2
"""Index of callbacks, chain and chord in a body of protocol 2."""


def mark_revoked(app: Celery, id: str, entry: Entry | None) -> None:
    """Set the state of a task to REVOKED, as a worker does with a revoked task; its chord is told.

    Best effort: an error of the result backend is logged.
    """
    try:
        app.backend.mark_as_revoked(id, "revoked", request=_request(entry), store_result=True)
    except Exception as error:  # noqa: BLE001 - every backend has errors of its own
        logger.warning("cannot mark %s as revoked: %s", id, error, extra={"action": "state_unknown", "task_id": id})


def clear_revoked(app: Celery, id: str) -> None:
    """Clear the state REVOKED of a task, because a newer call with its id waits. Best effort."""
    try:
        if app.backend.get_state(id) == states.REVOKED:
            app.backend.forget(id)
    except NotImplementedError:
        # The backend stores no results, or cannot delete them.
        return
    except Exception as error:  # noqa: BLE001 - every backend has errors of its own
        logger.warning("cannot clear the state of %s: %s", id, error, extra={"action": "state_unknown", "task_id": id})


def _request(entry: Entry | None) -> Any:
    """Return the request that a result backend needs to tell the chord; None without a chord."""
    try:
        message = None if entry is None else read_entry(entry)
    except InvalidValueError:
        return None
    if not isinstance(message, Envelope):
        return None
    chord = _chord(plain_body(message))
    return Context({**message.headers, "chord": chord}) if chord else None


def _chord(body: Any) -> Any:
    if isinstance(body, list) and len(body) > EMBED and isinstance(body[EMBED], Mapping):
        return body[EMBED].get("chord")
    return body.get("chord") if isinstance(body, Mapping) else None
