"""The result backend of an app: the records of tasks, and the state REVOKED of cancelled ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from celery import Celery, states
from celery.app.task import Context

from redis_queue.basics.logs import logger_of
from redis_queue.celery.address import results_of
from redis_queue.celery.message.entry import content_of
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.next_steps import links_of
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry
from redis_queue.store.chunks import chunks
from redis_queue.store.codec import read_document
from redis_queue.store.connection import connect
from redis_queue.store.ids import is_id, readable
from redis_queue.store.scripts import Scripts

logger = logger_of(__name__)

RESULTS_TIMEOUT: Final = 2.0
"""Seconds to wait for a connection, and for each reply."""

MAX_BYTES: Final = 64 * 1024
"""Maximum bytes that are read of a record; of a longer one only its state is known."""

MAX_LINKS: Final = 200

MAX_STATE: Final = 40

MAX_VALUE: Final = 1024
"""Maximum characters of the text of a result or an error."""

_ROUND: Final = 20
"""Records of one round trip."""

_NAMES: Final = {"task": "name", "queue": "queue", "worker": "worker", "parent": "parent_id", "group": "group_id"}
"""Fields of a ResultRecord, and their names in the backend."""

_START: Final = re.compile(rb'\{"status": ?"([A-Z_]{1,40})"')


class TaskLink(NamedTuple):
    """A task *child* that *parent* has led to; *group* is "" outside a group."""

    parent: str
    child: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """What the result backend keeps of the task *id*. *state* is one of Celery's, such as "SUCCESS".

    *task*, *queue* and *worker* are "" without ``result_extended``. *value* is the result as JSON, *error* the
    exception of a task that failed; both are cut. If *is_cut*, only the state could be read.
    """

    id: str
    state: str
    done_at: datetime | None = None
    task: str = ""
    queue: str = ""
    worker: str = ""
    parent: str = ""
    group: str = ""
    links: tuple[TaskLink, ...] = ()
    is_cut: bool = False
    value: str = ""
    error: str = ""


class ResultRecords:
    """Reads the records of one result backend. All methods raise StoreError."""

    def __init__(self, scripts: Scripts, prefix: str) -> None:
        self._scripts = scripts
        self._prefix = prefix

    @classmethod
    def of(cls, app: Any) -> ResultRecords | None:
        """Return the records of *app*; None if its result backend is not one Redis. Raises ConfigurationError."""
        address = results_of(app.conf)
        if address is None:
            return None
        options = {**address.options, "socket_timeout": RESULTS_TIMEOUT, "socket_connect_timeout": RESULTS_TIMEOUT}
        transport = app.conf.get("result_backend_transport_options") or {}
        prefix = str(transport.get("global_keyprefix") or "")
        if prefix and prefix[-1] not in ":_-.":
            prefix += "_"
        return cls(Scripts(connect(address.url, check=False, **options)), prefix)

    def tasks(self, ids: Iterable[str]) -> dict[str, ResultRecord]:
        """Return the readable records of *ids*, by id."""
        found: dict[str, ResultRecord] = {}
        for chunk in chunks(ids, _ROUND):
            for id_, text in zip(chunk, self._texts("celery-task-meta-", chunk), strict=True):
                record = _record(id_, text)
                if record is not None:
                    found[id_] = record
        return found

    def group(self, id_: str) -> tuple[TaskLink, ...]:
        """Return the members of a group that was saved; () for an unknown one."""
        (text,) = self._texts("celery-taskset-meta-", [id_])
        found = _document(text)
        return tuple(_links("", [found.get("result")])) if found is not None else ()

    def _texts(self, kind: str, ids: Iterable[str]) -> list[bytes]:
        keys = [f"{self._prefix}{kind}{id_}".encode(errors="surrogateescape") for id_ in ids]
        # One byte more than is read: so a cut is noticed.
        calls = [self._scripts.read_call("GETRANGE", key, 0, MAX_BYTES) for key in keys]
        return [reply() for reply in self._scripts.each(calls)]


def _record(id_: str, text: bytes) -> ResultRecord | None:
    if len(text) > MAX_BYTES:
        start = _START.match(text)
        return ResultRecord(id_, start[1].decode(), is_cut=True) if start else None
    found = _document(text)
    if found is None or not isinstance(found.get("status"), str):
        return None
    names: dict[str, Any] = {ours: _name(found.get(name)) for ours, name in _NAMES.items()}
    children = found.get("children")
    names["links"] = tuple(_links(id_, children)) if isinstance(children, list) else ()
    if "result" in found:
        names |= _outcome(found["result"], failed=found["status"] in states.EXCEPTION_STATES)
    return ResultRecord(id_, found["status"][:MAX_STATE], _time(found.get("date_done")), **names)


def _outcome(result: Any, *, failed: bool) -> dict[str, str]:
    """Return the text of a result, or of an exception as Celery stores it: its class, and its arguments."""
    if not failed:
        return {"value": readable(json.dumps(result, ensure_ascii=False)[:MAX_VALUE])}
    if not isinstance(result, Mapping):
        return {}
    text = result.get("exc_message")
    message = ", ".join(map(str, text)) if isinstance(text, list) else str(text or "")
    return {"error": readable(": ".join(filter(None, (str(result.get("exc_type") or ""), message)))[:MAX_VALUE])}


def _document(text: bytes) -> Mapping[str, Any] | None:
    try:
        found = read_document(text)
    except ValueError:
        return None
    return found if isinstance(found, Mapping) else None


def _links(owner: str, results: list[Any]) -> Iterator[TaskLink]:
    """Yield the links of Celery's result tuples, ``[[id, parent], members of the group or None]``."""
    waiting = [(owner, "", result) for result in results[:MAX_LINKS]]
    for _ in range(MAX_LINKS):
        if not waiting:
            return
        above, group, result = waiting.pop(0)
        if not (isinstance(result, list) and len(result) == 2 and isinstance(result[0], list) and result[0]):  # noqa: PLR2004
            continue
        (id_, *rest), members = result
        before = rest[0] if rest else None
        if isinstance(before, list):
            waiting.append((above, group, before))
            above = before[0][0] if before and isinstance(before[0], list) and before[0] else above
        if not is_id(id_):
            continue
        if isinstance(members, list):
            waiting += [(above, id_, member) for member in members[:MAX_LINKS]]
        else:
            yield TaskLink(above if is_id(above) else "", id_, group)


def _name(found: Any) -> str:
    return found if is_id(found) else ""


def _time(found: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(found)
        return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
    except (TypeError, ValueError, OverflowError):
        return None


def mark_revoked(app: Celery, id: str, source: Entry | Envelope | None) -> None:
    """Set the state of a task to REVOKED, as a worker does with a revoked task; its chord is told.

    Best effort: an error of the result backend is logged.
    """
    try:
        app.backend.mark_as_revoked(id, "revoked", request=_request(source), store_result=True)
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


def _request(source: Entry | Envelope | None) -> Any:
    """Return the request that a result backend needs to tell the chord; None without a chord."""
    try:
        message = content_of(source) if isinstance(source, Entry) else source
    except InvalidValueError:
        return None
    if not isinstance(message, Envelope):
        return None
    chord = (links_of(message) or {}).get("chord")
    return Context({**message.headers, "chord": chord}) if chord else None
