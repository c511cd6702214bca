"""TaskMessage: serialises to the same bytes as py-amqp."""

from __future__ import annotations

from typing import Any

import amqp
from hypothesis import given
from hypothesis import strategies as st

from redis_queue.celery.brokers.amqp_message import TaskMessage

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=80) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=3),
    max_leaves=8,
)
headers = st.dictionaries(st.text(min_size=1, max_size=20), values, max_size=12)


@given(headers=headers, content_type=st.sampled_from(["application/json", "é"]), extra=st.booleans())
def test_message_bytes_equal_those_of_py_amqp(headers: dict[str, Any], content_type: str, *, extra: bool) -> None:
    properties = {"correlation_id": "c", "delivery_mode": 2, "priority": 0, "reply_to": "r"} if extra else {}
    options = {"content_type": content_type, "content_encoding": "utf-8", "application_headers": headers, **properties}
    ours, theirs = TaskMessage("body", **options), amqp.Message("body", **options)
    assert ours._serialize_properties() == theirs._serialize_properties()
    assert ours.properties == theirs.properties


def test_equal_values_of_different_types_keep_their_type() -> None:
    for value in (True, 1, False, 0, 1, True):
        options = {"content_type": "a", "content_encoding": "b", "application_headers": {"flag": value}}
        assert TaskMessage("", **options)._serialize_properties() == amqp.Message("", **options)._serialize_properties()
