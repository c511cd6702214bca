"""The checker finds each broken promise of unique tasks, and none in a correct history."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from chaos.checker import check
from chaos.tasks import LEASE
from chaos.unique_plan import FATES, KINDS, MAX_DELAY, MIN_DELAY, SPACING, UniquePlan
from chaos.unique_runs import SETTLED_MS
from redis_queue.validation.history import Event

WORKER = 7
LEASED = round(LEASE * 1000)
PACE = round(SPACING * 1000)
LATER = 1000 + SETTLED_MS
DEAD = Event("die", "ok", f"worker:{WORKER}", at=1050, lane=WORKER)
numbers = itertools.count(1)


def labels(kind: str, fate: str = "", key: str = "k0") -> list[str]:
    """Return labels of calls with *key* and *fate*, and without a delay where the task has some."""
    found = (f"{kind}{number}" for number in range(3000))
    plans = ((label, UniquePlan.of(label)) for label in found)
    return [label for label, plan in plans if (plan.key, plan.fate) == (key, fate) and (kind == "b" or not plan.delay)]


def call(label: str, begins: int, ends: int = 0, id_: str | None = None, *, ok: bool = True) -> list[Event]:
    """Return the events of a call that returns the task *id_*, by default its own; without *ends*, its sender died."""
    id_ = label if id_ is None else id_
    return [
        Event("put", "invoke", label),
        Event("call", "invoke", f"call:{label}", at=begins),
        *([Event("put", "ok", label)] if ends and ok and id_ == label else []),
        *([Event("call", "ok" if ok else "refused", f"call:{label}:{id_}", at=ends)] if ends else []),
        *([] if ends else [Event("die", "ok", f"call:{label}", at=begins + 1)]),
    ]


def run(
    id_: str,
    begins: int,
    *ends: int,
    label: str = "",
    taken: int = 0,
    deliveries: int = 1,
    attempt: int = 1,
    leased: bool = True,
) -> list[Event]:
    """Return the events of one run of the task *id_*; without *ends*, its process was killed."""
    number, at, name = next(numbers), taken or begins, f"unique:{id_}:{label or id_}"
    again = UniquePlan.of(label or id_).retries and attempt == 1
    return [
        *taking(id_, at),
        Event("take", "ok", name, number, at=at, deliveries=max(deliveries, attempt)),
        Event("enter", "ok", name, number, at=begins, due=at + LEASED, deliveries=attempt, lane=WORKER),
        Event("claim", "ok", id_, at=begins),
        Event("execute", "ok", id_),
        *(Event("leave", "ok" if leased else "refused", name, number, at=end) for end in ends),
        *([Event("ack", "invoke", id_)] if ends and not again else []),
    ]


def taking(id_: str, at: int) -> list[Event]:
    return [Event("taking", "ok", f"unique:{id_}", at=at)]


def revoke(id_: str) -> list[Event]:
    return [Event("cancel", "invoke", id_)]


def move(label: str) -> list[Event]:
    return [Event("move", "invoke", label)]


def broken(*parts: Iterable[Event]) -> list[str]:
    found = check([event for events in parts for event in events], [])
    return [violation.promise for violation in found.violations]


class TestAccepted:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_task_that_runs_passes(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        assert (
            broken(call(one, 1000, 1010), call(two, 1012, 1020, one), run(one, 2000, 2010, label=_last(one, two))) == []
        )

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_task_that_does_not_run_is_found(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        assert "accepted and did not run" in broken(call(one, 1000), call(two, 1012, 1020, one))
        assert "lost" in broken(call(one, 1000, 1010))

    @pytest.mark.parametrize("kind", "slb")
    def test_a_task_that_had_started_before_the_call_is_found(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        late = call(one, 1000, 1010), run(one, 2000, 2010), call(two, 2005, 2006, one)
        assert "accepted and did not run" in broken(*late)
        assert broken(*late, revoke(one)) == []

    @pytest.mark.parametrize("kind", "exr")
    def test_a_task_that_had_ended_long_before_is_found(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        ok = kind != "x"
        ran = call(one, 900, 910), run(one, 950, 1000)
        assert broken(*ran, call(two, LATER, LATER + 10, one, ok=ok)) == []
        assert broken(*ran, call(two, LATER + 1, LATER + 10, one, ok=ok)) == ["accepted and did not run"]

    def test_a_call_that_was_cut_off_or_failed_may_be_lost(self) -> None:
        for kind in KINDS:
            one = labels(kind)[0]
            assert broken(call(one, 1000)) == broken(call(one, 1000, 1010, "", ok=False)) == []


def _last(one: str, two: str) -> str:
    return two if UniquePlan.of(one).unique.on_conflict == "replace" else one


class TestReplace:
    @pytest.mark.parametrize("kind", "lb")
    def test_the_arguments_of_the_last_call_run(self, kind: str) -> None:
        one, two, three = labels(kind)[:3]
        calls = call(one, 1000, 1010), call(two, 1020, 1030, one)
        assert broken(*calls, run(one, 1100, 1110, label=two)) == []
        assert set(broken(*calls, run(one, 1100, 1110))) == {"accepted and did not run", "replaced and ran"}
        # A call at the same time, or of unknown outcome, may be the last one.
        assert broken(*calls, call(three, 1025, 1040, one), run(one, 1100, 1110, label=two)) == []
        assert broken(*calls, call(three, 1025), run(one, 1100, 1110, label=three)) == []

    @pytest.mark.parametrize("kind", "lb")
    def test_replaced_arguments_do_not_run_later(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        calls = call(one, 1000, 1010), call(two, 1020, 1030, one), run(one, 1040, 1050, label=two)
        assert "replaced and ran" in broken(*calls, run(one, 1100, 1110))
        # It was taken before, and its worker was killed.
        assert "replaced and ran" not in broken(*calls, run(one, 1100, 1110, deliveries=2))

    @pytest.mark.parametrize("kind", "lb")
    def test_of_replaced_arguments_a_second_message_does_not_run(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        ran = call(one, 1000, 1010), call(two, 1020, 1030, one), run(one, 1100, 1110), run(one, 1200, 1210, label=two)
        assert set(broken(*ran, move(one), move(two))) == {"replaced and ran", "ran twice"}
        assert broken(*ran, move(one), move(one)) == ["replaced and ran"]

    def test_a_task_that_runs_is_not_replaced(self) -> None:
        one, two = labels("r")[:2]
        assert broken(call(one, 1000, 1010), run(one, 1020, 1050), call(two, 1030, 1040, one)) == []


class TestOneAtATime:
    @pytest.mark.parametrize("kind", "slb")
    def test_until_the_start_no_two_wait(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        first = call(one, 1000, 1010), run(one, 1100, 1200)
        assert broken(*first, call(two, 1090, 1101), run(two, 1150, 1160)) == []
        assert broken(*first, call(two, 1080, 1090), run(two, 1150, 1160)) == ["two at a time"]
        # It was taken before, by a worker that was killed before it wrote that down, and its key was free.
        again = call(one, 1000, 1010), taking(one, 1080), run(one, 1100, 1200, deliveries=2)
        assert broken(*again, call(two, 1080, 1090), run(two, 1150, 1160)) == []
        assert broken(*again, call(two, 1070, 1078), run(two, 1150, 1160)) == ["two at a time"]
        assert broken(*first, revoke(one), call(two, 1080, 1090), run(two, 1150, 1160)) == []

    @pytest.mark.parametrize("kind", "exr")
    def test_until_the_end_no_two_wait_or_run(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        first = call(one, 1000, 1010), run(one, 1100, 1200)
        assert broken(*first, call(two, 1190, 1201), run(two, 1250, 1260)) == []
        assert broken(*first, call(two, 1190, 1198), run(two, 1250, 1260)) == ["two at a time"]
        # Its first run was killed, so it waits until the second one ends.
        killed = call(one, 1000, 1010), run(one, 1020), [DEAD], run(one, 1100, 1200, deliveries=2)
        assert broken(*killed, call(two, 1060, 1070), run(two, 1250, 1260)) == ["two at a time"]

    def test_a_retry_keeps_the_key(self) -> None:
        one, two = labels("e", "retry")[0], labels("e")[0]
        first = call(one, 1000, 1010), run(one, 1020, 1030), run(one, 1100, 1110, attempt=2)
        assert broken(*first, call(two, 1105, 1111), run(two, 1120, 1130)) == []
        assert broken(*first, call(two, 1040, 1050), run(two, 1120, 1130)) == ["two at a time"]

    def test_for_a_time(self) -> None:
        one, two = labels("t")[:2]
        first = call(one, 1000, 1010), run(one, 1100, 1200)
        ends = 1000 + PACE
        assert broken(*first, call(two, ends - 1, ends + 1), run(two, 5000, 5010)) == []
        assert broken(*first, call(two, ends - 9, ends - 3), run(two, 5000, 5010)) == ["two at a time"]
        other = labels("t", key="k1")[0]
        assert broken(*first, call(other, 1020, 1030), run(other, 1040, 1050)) == []

    @pytest.mark.parametrize("kind", "exr")
    def test_two_inside_are_found(self, kind: str) -> None:
        one, two = labels(kind)[:2]
        # Revoked tasks do not wait for certain, but run alone.
        first = call(one, 1000, 1010), run(one, 1100, 1200), revoke(one)
        assert broken(*first, call(two, 1190, 1195), run(two, 1200, 1260)) == []
        assert broken(*first, call(two, 1190, 1195), run(two, 1199, 1260)) == ["two inside"]
        assert broken(*first, call(two, 1190, 1195), run(two, 1199, 1260), move(one), move(one)) == []


class TestOnce:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_task_that_ends_twice_is_found(self, kind: str) -> None:
        (one,) = labels(kind)[:1]
        first = call(one, 900, 910), run(one, 1000, 1010)
        again = run(one, 1060, 1070, deliveries=2)
        assert broken(*first, run(one, 1060, 1070)) == ["ran twice"]
        assert broken(*first, again) == ["ran twice"]
        child = Event("die", "ok", "call:", at=1050, lane=WORKER)
        assert broken(*first, [DEAD], again) == broken(*first, [child], again) == []
        assert broken(*first, run(one, 1000 + LEASED, 9000, deliveries=2)) == []

    def test_a_task_that_waits_again_may_be_replaced(self) -> None:
        one, two = labels("l")[:2]
        first = call(one, 900, 910), run(one, 1000, 1010), call(two, 1060, 1070, one)
        again = run(one, 1080, 1090, label=two)
        assert broken(*first, [DEAD], again) == []
        assert broken(*first, again) == ["ran twice"]

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_task_that_was_moved_into_its_flow_twice_may_end_twice(self, kind: str) -> None:
        (one,) = labels(kind)[:1]
        ran = call(one, 900, 910), run(one, 1000, 1010), run(one, 1060, 1070)
        assert broken(*ran, move(one)) == ["ran twice"]
        assert broken(*ran, move(one), move(one)) == []

    def test_a_retry_is_another_run(self) -> None:
        (one,) = labels("s", "retry later")[:1]
        assert broken(call(one, 900, 910), run(one, 1000, 1010), run(one, 1060, 1070, attempt=2)) == []


def test_labels_tell_all_kinds_of_calls() -> None:
    plans = [UniquePlan.of(f"{kind}{number}") for kind in KINDS for number in range(300)]
    assert {plan.fate for plan in plans} == {"", *(fate for fate, _ in FATES)}
    assert {plan.key for plan in plans} == {"k0", "k1"}
    assert all(plan.delay == 0 or MIN_DELAY <= plan.delay <= MAX_DELAY for plan in plans)
    assert not any(plan.fate == "expire" and plan.unique.on_conflict == "replace" for plan in plans)
