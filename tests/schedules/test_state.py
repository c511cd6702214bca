"""What a dispatcher does with due times that have passed: a table of policies, and properties of any history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_queue.errors import InvalidValueError
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import NEVER, NONE, REASONS, Event, State, Step, plan, resumed, runs_of

SECOND = 1000
START = 1_800_000_000_000


class Every:
    """Due each *ms*."""

    def __init__(self, ms: int = SECOND) -> None:
        self.ms = ms

    def next(self, after_ms: int, anchor_ms: int | None = None) -> int | None:
        return after_ms + self.ms - (after_ms - (anchor_ms or 0)) % self.ms


def definition(**fields: Any) -> Definition:
    return Definition("nightly", "t", [{"every": SECOND}], **fields)


def state(**fields: Any) -> State:
    return State("0123abcd", START, START - SECOND, **fields)


def step(late: int, running: bool = False, over: bool = False, **fields: Any) -> Step:
    """Return the step at *late* ms after the first due time."""
    known = state(active="a", active_at=START) if running else state()
    return plan(definition(**fields), known, START + late, Every(), lambda: over)


def dues(found: Step) -> list[int]:
    """Return the due times that are sent, in seconds after the start."""
    return [(due - START) // SECOND for due in found.sends]


@pytest.mark.parametrize(
    ("late", "fields", "sent", "skipped"),
    [
        (0, {}, [0], {}),
        (999, {}, [0], {}),
        (3500, {}, [3], {"late": 3}),
        (3500, {"missed": "all"}, [0, 1, 2, 3], {}),
        (3500, {"missed": "skip"}, [3], {"late": 3}),
        (60_500, {"missed": "latest", "window": 5000}, [60], {"late": 60}),
        # A step passes up to 50 due times of "all"; the next one goes on.
        (60_500, {"missed": "all", "window": 12_000}, [49], {"late": 49}),
        (3500, {"max_runs": 1}, [3], {"late": 3}),
        (3500, {"missed": "all", "max_runs": 2}, [0, 1], {"late": 2}),
        (3500, {"missed": "all", "until": START + 1500}, [0, 1], {}),
    ],
)
def test_missed_runs(late: int, fields: dict[str, Any], sent: list[int], skipped: dict[str, int]) -> None:
    found = step(late, **fields)
    assert dues(found) == sent
    assert {name: count for name in REASONS if (count := found.state.skipped_for(name))} == skipped


@pytest.mark.parametrize(("missed", "sent"), [("skip", []), ("latest", [0]), ("all", [0])])
def test_a_run_of_a_rare_schedule_that_is_an_hour_late(missed: Any, sent: list[int]) -> None:
    daily = replace(definition(missed=missed), rules=[{"every": 86_400_000}])
    found = plan(daily, state(), START + 3_600_000, Every(86_400_000), lambda: True)
    assert dues(found) == sent
    assert found.state.late == 1 - len(sent)
    assert found.state.due > START


@pytest.mark.parametrize(
    ("overlap", "sent", "skipped", "cancels"),
    [("allow", [0], {}, False), ("skip", [], {"overlap": 1}, False), ("cancel", [0], {}, True)],
)
def test_the_run_before_has_not_ended(overlap: Any, sent: list[int], skipped: dict[str, int], cancels: bool) -> None:
    found = step(100, running=True, overlap=overlap)
    assert dues(found) == sent
    assert {name: count for name in REASONS if (count := found.state.skipped_for(name))} == skipped
    assert found.cancels is cancels
    assert found.state.due == START + SECOND


def test_one_run_waits_for_the_run_before_and_the_others_are_skipped() -> None:
    held = step(2500, running=True, overlap="queue")
    assert (held.sends, held.state.due, held.state.skipped) == ([], START, 0)
    assert START + 2500 < held.look < NEVER
    sent = step(2500, overlap="queue")
    assert dues(sent) == [2]
    assert sent.state.overlap == 2


def test_what_blocks_no_more_does_not_block() -> None:
    assert dues(step(0, running=True, over=True, overlap="skip")) == [0]


def test_a_pause_skips_what_was_due_and_a_long_one_takes_several_steps() -> None:
    found = resumed(definition(), state(is_paused=True, streak=3), START + 2500, Every())
    assert (found.state.paused, found.state.is_paused, found.state.streak, found.sends) == (3, False, 0, [])
    assert found.look == found.state.due == START + 3000
    now = START + 2_000_500
    # An interval is counted, whatever its number.
    found = resumed(definition(), state(is_paused=True), now, Every())
    assert (found.state.paused, found.state.is_paused) == (2001, False)
    known, steps = state(is_paused=True), 0
    while known.is_paused:
        found = resumed(definition(exclude=["2000-01-01"]), known, now, Every())
        assert found.look == (now if found.state.is_paused else found.state.due)
        known, steps = found.state, steps + 1
    assert (known.paused, steps) == (2001, 3)


def test_jitter_is_the_same_everywhere_and_within_its_bounds() -> None:
    with_jitter = definition(jitter=500)
    found = {with_jitter.fire_ms(START + number * SECOND) - number * SECOND - START for number in range(200)}
    assert found == {
        definition(jitter=500).fire_ms(START + number * SECOND) - number * SECOND - START for number in range(200)
    }
    assert min(found) >= 0
    assert max(found) <= 500
    assert len(set(found)) > 100
    late = plan(with_jitter, state(), with_jitter.fire_ms(START) - 1, Every(), lambda: True)
    assert (late.sends, late.look) == ([], with_jitter.fire_ms(START))


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=30),
    st.sampled_from(["skip", "latest", "all"]),
    st.sampled_from([None, 0, 2000]),
    st.integers(0, 700),
)
def test_each_due_time_is_sent_once_or_counted(pauses: list[int], missed: Any, window: int | None, jitter: int) -> None:
    what = definition(missed=missed, window=window, jitter=jitter)
    known, now, sent = state(), START, list[int]()
    for pause in pauses:
        now += pause
        found = plan(what, known, now, Every(), lambda: True)
        sent += found.sends
        assert found.look > now or len(found.sends) == 50
        assert found.state.due >= known.due
        known = found.state
    assert sent == sorted(set(sent))
    assert len(sent) + known.skipped == (known.due - START) // SECOND
    assert all(what.fire_ms(due) <= now for due in sent)


@given(st.integers(0, 10**13), st.integers(0, 10**9), st.booleans())
def test_a_state_is_read_as_it_was_written(due: int, count: int, paused: bool) -> None:
    known = State("00ff00ff", due, 1, count, count, 1, 2, 3, 4, 5, paused, "an-id", 7)
    assert State.read(str(known).encode()) == known


@pytest.mark.parametrize(
    "text", [b"", b"x", b"\xff\xfe", b"0123abcd 1 2", b"0123abcd" + b" 9" * 9 + b" 2 a 1", b"9" * 10**6]
)
def test_a_hostile_state_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidValueError, match="unreadable"):
        State.read(text)


def test_events_are_read_as_they_were_written_and_others_are_left_out() -> None:
    events = [
        Event("ended", START + 3, "a", text="succeeded"),
        Event("skipped", START + 2, NONE, 1, 2, 3, "late"),
        Event("sent", START + 1, "a", START),
    ]
    lines = "\n".join([*map(str, events), "sent x", "\u0000", "unknown 1 a 1 1 1 x"])
    assert Event.read_all(lines.encode()) == events
    (run,) = runs_of(events)
    assert (run.id, run.outcome) == ("a", "succeeded")
    for id_ in ("an id\nsent 1 b 1 1 1 ", "", "x" * 1_000_000):
        hostile = Event("ended", 1, id_, text="two\nlines\x1b[2J")
        assert (str(hostile).count("\n"), len(str(hostile)) < 100) == (0, True)
        assert Event.read_all(str(hostile).encode())[0].id == NONE


def test_a_definition_survives_and_only_its_meaning_counts() -> None:
    one = definition(args=[1, {"a": None}], options={"queue": "q"}, expires="next", version="1", exclude=[])
    assert Definition.read(one.text()) == one
    assert one.means_the_same(replace(one, version="2", tzdata="2026a"))
    assert not one.means_the_same(replace(one, args=[2, {"a": None}]))


@pytest.mark.parametrize(
    "fields",
    [
        {"missed": "often"},
        {"overlap": "no"},
        {"dst": "summer"},
        {"window": -1},
        {"window": 1.5},
        {"jitter": True},
        {"max_runs": 0},
        {"expires": 0},
        {"expires": "soon"},
        {"args": "text"},
        {"kwargs": [1]},
        {"kwargs": {1: 2}},
        {"static": "yes"},
        {"timezone": None},
        {"pause_after_failures": 1001},
    ],
)
def test_invalid_values_are_refused_and_named(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(fields))):
        definition(**fields)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"v":2}', b'{"v":1,"name":"a"}', b'{"v":1,"nam":1}', b"\xff", b"[" * 10**6, b'{"v":1e999}'],
)
def test_a_hostile_definition_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidValueError):
        Definition.read(text)
