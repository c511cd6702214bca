"""The checker finds each broken promise, and none in what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_queue.chaos.checker import check
from redis_queue.chaos.history import Event, History, read

PUT = [Event("put", "invoke", "a", due=1000), Event("put", "ok", "a", due=1000)]
TAKEN = [Event("claim", "ok", "a", claim=1, at=1000), Event("execute", "ok", "a", claim=1)]
SETTLED = [Event("ack", "invoke", "a", claim=1), Event("ack", "ok", "a", claim=1)]


def broken(events: list[Event], left: tuple[str, ...] = ()) -> list[str]:
    return [violation.promise for violation in check(events, left).violations]


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([*PUT, *TAKEN, *SETTLED], ()),
        (PUT, ("a",)),
        (PUT[:1], ()),
        (PUT[:1] + TAKEN + SETTLED, ()),
        ([*PUT, *TAKEN, SETTLED[0]], ()),
        ([*PUT, Event("cancel", "invoke", "a"), Event("cancel", "ok", "a")], ()),
        ([*PUT, *TAKEN, Event("cancel", "refused", "a"), *SETTLED], ()),
        ([*PUT, *TAKEN, Event("claim", "ok", "a", claim=2, at=2000), Event("ack", "ok", "a", claim=2)], ()),
    ],
)
def test_what_is_right_passes(events: list[Event], left: tuple[str, ...]) -> None:
    assert broken(events, left) == []


@pytest.mark.parametrize(
    ("events", "promise"),
    [
        (PUT, "lost"),
        ([*PUT, *TAKEN, Event("ack", "refused", "a", claim=1)], "lost"),
        (TAKEN + SETTLED, "came from nowhere"),
        ([*PUT, Event("claim", "ok", "a", claim=1, at=999), *SETTLED], "early"),
        ([*PUT, *TAKEN, *SETTLED, Event("claim", "ok", "a", claim=2, at=2000)], "came again after its ack"),
        ([*PUT, *TAKEN, *SETTLED, Event("ack", "ok", "a", claim=1)], "acked twice"),
        ([*PUT, Event("cancel", "ok", "a"), *TAKEN], "cancelled and came"),
    ],
)
def test_what_is_broken_is_found(events: list[Event], promise: str) -> None:
    assert promise in broken(events)


def test_it_counts(tmp_path: Path) -> None:
    history = History(tmp_path / "1.jsonl")
    history.write(*PUT, *TAKEN, Event("claim", "ok", "a", claim=2, at=2000), Event("execute", "ok", "a", claim=2))
    history.write(Event("ack", "refused", "a", claim=1), Event("ack", "ok", "a", claim=2), Event("put", "invoke", "b"))
    verdict = check(read(tmp_path / "1.jsonl", tmp_path / "none"), [])
    assert (verdict.sent, verdict.executed, verdict.doubled, verdict.refused, verdict.unknown) == (1, 2, 1, 1, 1)
    assert verdict.violations == []


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    History(path).write(*PUT)
    path.write_text(path.read_text() + '{"op": "cla')
    assert list(read(path)) == PUT
