"""Celery messages for tests: an ordinary one, and Hypothesis strategies for unusual ones."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timezone
from typing import Any

from hypothesis import strategies as st
from kombu.utils.json import dumps

from redis_queue.celery.message.envelope import PHRASES, Envelope

# Values with a meaning of their own in the stored form, or with a special encoding.
AWKWARD = [
    *(chr(code) for code in (0, 0x1F, 0x22, 0x5C, 0x7F, 0x80, 0x81, 0x82, 0x9D, 0xFF, 0x2028, 0xD800, 0x1F40D)),
    r"\u0080",
    r"\u0081",
    r"\\u0081",
    "%1",
    '"}}',
    '"delivery_tag":""}}',
    *(phrase.decode("latin-1") for phrase in PHRASES),
]

texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(AWKWARD)), max_size=5).map("".join)
task_ids = st.one_of(
    st.uuids().map(str),
    st.text(min_size=1, max_size=30),
    # Ids that also occur in other parts of a message.
    st.sampled_from(["application", "delivery_tag", "properties", "u0081u0081", "null, null", "celery.ping"]),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=8),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.just(timezone.utc)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def envelopes(draw: st.DrawFn, ids: st.SearchStrategy[str] = task_ids) -> Envelope:
    """Draw a message as Celery sends it, or one with unusual fields."""
    task_id = draw(ids)
    headers: dict[str, Any] = draw(st.dictionaries(texts, values, max_size=4))
    if draw(st.booleans()):
        headers |= {"lang": "py", "task": draw(texts), "id": task_id, "shadow": None, "eta": None, "expires": None}
        headers |= {"group": None, "group_index": None, "retries": draw(st.integers(0, 9)), "timelimit": [None, None]}
        headers |= {"root_id": task_id, "parent_id": None, "argsrepr": draw(texts), "kwargsrepr": "{}"}
    text = st.one_of(
        texts.map(lambda found: found.encode("utf-8", "surrogatepass")),
        values.map(lambda found: dumps([[found, task_id], {}, {"callbacks": None}]).encode()),
    )
    content_type, encoding, bodies = draw(
        st.sampled_from(
            [
                ("application/json", "utf-8", st.one_of(text, st.binary(max_size=60))),
                ("application/x-python-serialize", "binary", st.binary(max_size=60)),
                ("application/x-yaml", "us-ascii", text),
            ]
        )
    )
    if draw(st.booleans()):
        headers["compression"] = "application/x-gzip"
    properties = draw(st.dictionaries(st.sampled_from(["app_id", "type", "user_id"]), values))
    properties |= {"correlation_id": task_id, "reply_to": draw(texts), "delivery_mode": draw(st.sampled_from([1, 2]))}
    return Envelope(
        body=draw(bodies),
        content_type=content_type,
        content_encoding=encoding,
        headers=headers | {"id": task_id},
        properties=properties | {"priority": draw(st.integers(0, 255))},
        exchange=draw(texts),
        routing_key=draw(texts),
        declare=draw(st.just(()) | st.lists(texts, min_size=1, max_size=2)),
        expires_at=draw(st.none() | st.integers(0, 2**45)),
    )


def message(**changes: Any) -> Envelope:
    task_id = str(uuid.uuid4())
    headers: Mapping[str, Any] = {
        "lang": "py",
        "task": "shop.remind",
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": "(42,)",
        "kwargsrepr": "{}",
        "origin": "gen1@host",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    fields: dict[str, Any] = {
        "body": dumps([[42], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": headers,
        "properties": {"correlation_id": task_id, "reply_to": "", "delivery_mode": 2, "priority": 0},
        "exchange": "",
        "routing_key": "celery",
    }
    return Envelope(**{**fields, **changes})
