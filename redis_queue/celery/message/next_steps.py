"""Next steps: the tasks that a message names to come after its own. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from redis_queue.celery.message.body import plain_body
from redis_queue.celery.message.envelope import MAX_MESSAGE_NAME, Envelope
from redis_queue.store.ids import is_id, readable

Link = Literal["chain", "chord", "callback", "errback"]
"""How a task follows: as the next one of a chain, as the body of a chord, or as link= or link_error=."""

MAX_STEPS: Final = 100

_EMBED: Final = 2
"""Index of the links in a body of protocol 2; in protocol 1 they stand beside the arguments."""

_FIELDS: Final[Mapping[str, Link]] = {
    "chain": "chain",
    "chord": "chord",
    "callbacks": "callback",
    "errbacks": "errback",
}


@dataclass(frozen=True, slots=True)
class NextStep:
    """A task that comes after another one. *id* and *group* are "" if the message does not tell."""

    link: Link
    task: str
    id: str = ""
    group: str = ""


def next_steps(envelope: Envelope) -> tuple[NextStep, ...] | None:
    """Return up to :data:`MAX_STEPS` tasks that come after that of *envelope*, a chain in the order of its runs.

    None if the body is not plain JSON.
    """
    links = links_of(envelope)
    return None if links is None else tuple(_steps(links))


def links_of(envelope: Envelope) -> Mapping[str, Any] | None:
    """Return callbacks, chain and chord of a message; None if its body is not plain JSON."""
    body = plain_body(envelope)
    links = body[_EMBED] if isinstance(body, list) and len(body) > _EMBED else body
    return links if isinstance(links, Mapping) else None


def _steps(links: Mapping[str, Any]) -> Iterator[NextStep]:
    for field, link in _FIELDS.items():
        found = links.get(field)
        signatures = found[-MAX_STEPS:] if isinstance(found, list) else [found]
        # Celery takes the next task from the end of a chain.
        for signature in reversed(signatures) if link == "chain" else signatures:
            if isinstance(signature, Mapping) and isinstance(signature.get("task"), str):
                yield _step(link, signature)


def _step(link: Link, signature: Mapping[str, Any]) -> NextStep:
    options = signature.get("options")
    ids = options if isinstance(options, Mapping) else {}
    id_, group = (str(ids.get(name) or "") for name in ("task_id", "group_id"))
    task = readable(signature["task"][:MAX_MESSAGE_NAME])
    return NextStep(link, task, id_ if is_id(id_) else "", group if is_id(group) else "")
