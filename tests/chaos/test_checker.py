"""The checker finds each broken promise, and none in a correct history."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checker import check
from chaos.workload import Progress
from redis_queue.validation.history import Event, History, read

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
        # Claimed by a process that died, put back, and then cancelled.
        ([*PUT, *TAKEN, Event("cancel", "invoke", "a"), Event("cancel", "ok", "a", at=1500)], ()),
        ([*PUT, *TAKEN, Event("claim", "ok", "a", claim=2, at=2000), Event("ack", "ok", "a", claim=2)], ()),
    ],
)
def test_correct_history_passes(events: list[Event], left: tuple[str, ...]) -> None:
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
        ([*PUT, Event("cancel", "invoke", "a"), Event("cancel", "refused", "a")], "lost"),
        ([*PUT, *TAKEN, SETTLED[0], Event("ack", "refused", "a", claim=1)], "lost"),
        ([*PUT, Event("cancel", "ok", "a"), *TAKEN], "cancelled and came"),
        ([*PUT, *TAKEN, *SETTLED, Event("cancel", "ok", "a", at=9000)], "cancelled and done"),
    ],
)
def test_broken_promise_is_found(events: list[Event], promise: str) -> None:
    assert promise in broken(events)


def test_events_are_counted(tmp_path: Path) -> None:
    history = History(tmp_path / "1.jsonl")
    history.write(*PUT, *TAKEN, Event("claim", "ok", "a", claim=2, at=2000), Event("execute", "ok", "a", claim=2))
    history.write(Event("ack", "refused", "a", claim=1), Event("ack", "ok", "a", claim=2), Event("put", "invoke", "b"))
    verdict = check(read(tmp_path / "1.jsonl", tmp_path / "none"), [])
    assert (verdict.sent, verdict.executed, verdict.repeated, verdict.refused, verdict.unknown) == (1, 2, 1, 1, 1)
    assert verdict.violations == []


def test_incomplete_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    History(path).write(*PUT)
    path.write_text(path.read_text() + '["cla')
    assert list(read(path)) == PUT


def put_and_claimed(id_: str, claim: int, deliveries: int = 1) -> list[Event]:
    return [
        Event("put", "invoke", id_, lane=1),
        Event("put", "ok", id_, lane=1),
        Event("claim", "ok", id_, claim, deliveries=deliveries),
        Event("ack", "ok", id_, claim),
    ]


def test_first_deliveries_keep_the_order_of_their_lane() -> None:
    assert broken(put_and_claimed("a", 1) + put_and_claimed("b", 2)) == []
    assert broken(put_and_claimed("a", 2) + put_and_claimed("b", 1)) == ["out of order"]
    # A returned message may follow later ones, and one with an interrupted put may come at any time.
    assert broken(put_and_claimed("a", 2, deliveries=2) + put_and_claimed("b", 1)) == []
    assert broken(put_and_claimed("a", 2)[:1] + put_and_claimed("a", 2)[2:] + put_and_claimed("b", 1)) == []


def test_time_until_redelivery_is_measured() -> None:
    claims = [Event("claim", "ok", "a", claim=1, at=1000), Event("claim", "ok", "a", claim=2, at=1700)]
    assert check([*PUT, *claims], ["a"]).returns == [700]
    # Returned on purpose: not a fault.
    assert check([*PUT, *claims, Event("nack", "ok", "a", claim=1)], ["a"]).returns == []


def test_long_history_is_abbreviated() -> None:
    events = [*PUT, *(Event("claim", "ok", "a", claim=number, at=2000) for number in range(1, 41))]
    text = str(check(events, []).violations[0])
    assert "30 more" in text
    assert "claim=40" in text


def test_possibly_cancelled_message_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    history = History(path)
    history.write(*(Event("put", "ok", id_) for id_ in "abcd"), Event("ack", "invoke", "a"))
    history.write(*(Event("cancel", "invoke", id_) for id_ in "bc"), Event("cancel", "refused", "c"))
    progress = Progress()
    assert not progress.is_done([path])
    assert progress.open == {"c", "d"}


def held(fence: int, asked: int, got: int, *then: tuple[str, int]) -> list[Event]:
    """Return the history of a holder: the request, the lock, confirmations and the release."""
    taken = Event("hold", "ok", "lock:a", fence, at=got, due=asked)
    return [taken, *(Event(op, "ok", "lock:a", fence, at=at) for op, at in then)]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (held(1, 1000, 1001, ("free", 1010)), held(2, 1005, 1011)),
        # The first holder died or was stopped: its lease of 200 ms has expired.
        (held(1, 1000, 1001), held(2, 1199, 1201)),
        (held(1, 1000, 1900, ("free", 1950)), held(2, 1200, 1201)),
    ],
)
def test_consecutive_holders_of_a_lock_pass(one: list[Event], two: list[Event]) -> None:
    assert broken(one + two) == []
    assert broken(two + one) == []


@pytest.mark.parametrize(
    ("one", "two", "promise"),
    [
        (held(1, 1000, 1001), held(2, 1100, 1101), "two held one lock"),
        (held(1, 1000, 1001, ("free", 1110)), held(2, 1100, 1101), "two held one lock"),
        (held(1, 1000, 1001, ("keep", 1300)), held(2, 1250, 1251), "two held one lock"),
        (held(2, 1000, 1001, ("free", 1010)), held(1, 1020, 1021), "a fence that was not greater"),
        (held(2, 1000, 1001, ("free", 1010)), held(2, 1020, 1021), "a fence that was not greater"),
    ],
)
def test_overlapping_holders_of_a_lock_are_found(one: list[Event], two: list[Event], promise: str) -> None:
    assert broken(one + two) == [promise]
    assert broken(two + one) == [promise]
