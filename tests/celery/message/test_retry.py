"""A message is rebuilt as if its task had not run yet."""

import base64
import json
import pickle
import zlib
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from redis_queue.celery.message.body import fresh, with_arguments
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import CALL, ETA, FLOW, SENT, UNIQUE
from redis_queue.errors import InvalidValueError

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
EMBED = {"callbacks": [{"task": "next"}], "errbacks": None, "chain": None, "chord": {"id": "c"}}


def envelope(body: bytes = b"", content_type: str = "application/json", **headers: Any) -> Envelope:
    found = {"lang": "py", "task": "shop.mail", "id": "id1", "retries": 3, "argsrepr": "(1,)", **headers}
    body = body or json.dumps([[1], {"a": 2}, EMBED]).encode()
    return Envelope(body, content_type, "utf-8", found, {"priority": 5}, "shop", "mail")


def protocol_1(**fields: Any) -> Envelope:
    body = {"id": "id1", "task": "shop.mail", "args": [1], "kwargs": {}, "retries": 3, **fields}
    return Envelope(json.dumps(body).encode(), "application/json", "utf-8", {}, {}, "", "mail")


def test_retries_are_counted_from_zero_and_all_else_stays() -> None:
    flow = ["shop.mail", "a", ""]
    before = envelope(group="g", **{ETA: "x", CALL: "c", SENT: 5, FLOW: flow, UNIQUE: ["e"]}, expires=None)
    after = fresh(before, NOW)
    assert after.headers == {
        "lang": "py",
        "task": "shop.mail",
        "id": "id1",
        "retries": 0,
        "argsrepr": "(1,)",
        "group": "g",
        # It runs under the same limits.
        FLOW: flow,
        "expires": None,
    }
    assert (after.body, after.properties, after.exchange, after.routing_key) == (
        before.body,
        before.properties,
        "shop",
        "mail",
    )


@pytest.mark.parametrize(
    ("expires", "kept"),
    [
        (NOW - timedelta(seconds=1), False),
        (NOW, False),
        (NOW + timedelta(seconds=1), True),
        ("never", True),
        ("9" * 100, True),
        (5, True),
        ("2025-01-01T00:00:00", True),
    ],
)
def test_an_expiry_that_has_passed_is_removed(expires: Any, kept: bool) -> None:
    text = expires.isoformat() if isinstance(expires, datetime) else expires
    assert fresh(envelope(expires=text), NOW).headers["expires"] == (text if kept else None)
    body = json.loads(fresh(protocol_1(expires=text), NOW).body)
    assert (body["expires"], body["retries"]) == (text if kept else None, 0)


def test_other_arguments_keep_the_callbacks() -> None:
    after = with_arguments(envelope(), ["x"], None)
    assert json.loads(after.body) == [["x"], {"a": 2}, EMBED]
    assert (after.headers["argsrepr"], "kwargsrepr" in after.headers) == ("('x',)", False)
    after = with_arguments(envelope(), None, {"b": None})
    assert json.loads(after.body) == [[1], {"b": None}, EMBED]
    assert (after.headers["argsrepr"], after.headers["kwargsrepr"]) == ("(1,)", "{'b': None}")
    assert json.loads(with_arguments(protocol_1(), [2], {"c": 3}).body)["args"] == [2]
    assert with_arguments(envelope(), None, None) == envelope()


def test_the_texts_of_long_arguments_are_cut() -> None:
    after = with_arguments(envelope(), ["x" * 5000], {"y": "z" * 5000})
    assert len(after.headers["argsrepr"]) == len(after.headers["kwargsrepr"]) == 1024


def bodies_without_arguments() -> list[Envelope]:
    pickled = base64.b64encode(pickle.dumps([[1], {}, EMBED]))
    packed = zlib.compress(json.dumps([[1], {}, EMBED]).encode())
    return [
        envelope(pickled, "application/x-python-serialize"),
        envelope(packed, compression="application/x-gzip"),
        envelope(b"[1]"),
        envelope(b"not json"),
        Envelope(b"[]", "application/json", "utf-8", {}, {}, "", "mail"),
    ]


@pytest.mark.parametrize("found", bodies_without_arguments(), ids=["pickle", "compressed", "short", "text", "protocol"])
def test_bodies_that_are_not_plain_json_keep_their_arguments(found: Envelope) -> None:
    with pytest.raises(InvalidValueError, match="is not plain JSON"):
        with_arguments(found, [2], None)
    assert fresh(found, NOW).body == found.body


def test_arguments_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="cannot be written as JSON"):
        with_arguments(envelope(), [float("nan")], None)
