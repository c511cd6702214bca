"""The checker finds each broken promise of flows, and none in a correct history."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from chaos.checker import check
from chaos.flow_plan import FATES, FLOWS, MEASURED, PACED, SMALL, Plan
from chaos.flow_runs import WINDOW
from chaos.tasks import LEASE
from redis_queue.admission.rules import interval_ms
from redis_queue.validation.history import Event

WORKER = 7
LEASED = round(LEASE * 1000)
numbers = itertools.count(1)


def labels(kind: str, key: str, fate: str = "") -> list[str]:
    found = (f"{kind}{number}" for number in range(MEASURED + 1, 3000))
    return [label for label in found if (Plan.of(label).key, Plan.of(label).fate) == (key, fate)]


S1, S2, S3 = labels("s", "k0")[:3]
OTHERS = [labels("s", key)[0] for key in ("k1", "k2")]
TIMED = labels("p", "k0")
GAP = round(interval_ms("rate", FLOWS[PACED].rate) or 0)
DEAD = Event("die", "ok", f"worker:{WORKER}", at=1050, lane=WORKER)


def put(label: str, at: int = 0) -> list[Event]:
    """Return the events of a producer that sends a task."""
    return [Event("put", "invoke", label), Event("put", "ok", label, at=at, lane=Plan.of(label).lane)]


def run(label: str, begins: int, *ends: int, taken: int = 0, deliveries: int = 1, leased: bool = True) -> list[Event]:
    """Return the events of one run of a task; without *ends*, its process was killed."""
    number, at = next(numbers), taken or begins
    return [
        Event("take", "ok", f"run:{label}", number, at=at, deliveries=deliveries),
        Event("enter", "ok", f"run:{label}", number, at=begins, due=at + LEASED, lane=WORKER),
        Event("claim", "ok", label, at=begins),
        Event("execute", "ok", label),
        *(Event("leave", "ok" if leased else "refused", f"run:{label}", number, at=end) for end in ends),
        *([Event("ack", "invoke", label)] if ends else []),
    ]


def broken(*runs: Iterable[Event], sent: Iterable[str] = ()) -> list[str]:
    """Return the broken promises of the history with these *runs*; the tasks were *sent* in this order."""
    events = [event for events in runs for event in events]
    known = list(sent) or sorted({event.id for event in events if event.op == "claim"})
    puts = [event for label in known for event in put(label)]
    return [violation.promise for violation in check([*puts, *events], known).violations]


class TestLimit:
    @pytest.mark.parametrize(
        "runs",
        [
            [run(S1, 1000, 1010), run(S2, 1010, 1020)],
            # One of each key, no more than the limit of the queue.
            [run(S1, 1000, 1010), *(run(label, 1000, 1010) for label in OTHERS)],
            # Its worker was killed, and the lease has ended.
            [run(S1, 1000), [DEAD], run(S2, 1051, 1060)],
            [run(S1, 1000), run(S2, 1000 + LEASED, 4000)],
            # Its process was killed: the last event of the run was not confirmed.
            [run(S1, 1000, 1020, leased=False), run(S2, 1020, 1030)],
            # Its worker was stopped for longer than its lease.
            [run(S1, 1000, 9000, leased=False), run(S2, 4000, 4010)],
            [run(S1, 4000, 4010, taken=1000, leased=False), run(S2, 4000, 4010)],
        ],
    )
    def test_runs_within_the_limits_pass(self, runs: list[list[Event]]) -> None:
        assert broken(*runs) == []

    @pytest.mark.parametrize(
        "runs",
        [
            [run(S1, 1000, 1010), run(S2, 1009, 1020)],
            [run(S1, 1000, 1010), run(S2, 1000, 1010)],
            # Three runs that follow each other closely, and a long one.
            [run(S1, 1000, 2000), run(S2, 1500, 1600)],
            # It held its lease until its end, although its worker was stopped.
            [run(S1, 1000, 9000), run(S2, 4000, 4010)],
            [run(S1, 1000), [DEAD], run(S2, 1049, 1060)],
            [run(S1, 1000), run(S2, 999 + LEASED, 4000)],
        ],
    )
    def test_two_of_one_key_are_found(self, runs: list[list[Event]]) -> None:
        assert broken(*runs) == ["more than the limit"]

    def test_more_than_the_limit_of_the_queue_are_found(self) -> None:
        plain = labels("o", "k0")
        limit = FLOWS["queue:flow"].limit or 0
        assert broken(*(run(label, 1000, 1010) for label in plain[:limit])) == []
        assert broken(*(run(label, 1000, 1010) for label in plain[: limit + 1])) == ["more than the limit"]

    def test_a_task_that_runs_twice_at_once_is_found(self) -> None:
        (label,) = labels("o", "k1")[:1]
        again = run(label, 1051, 1060, deliveries=2)
        assert broken(run(label, 1000), [DEAD], again) == []
        assert broken(run(label, 1000), again) == ["twice at once"]
        # The retry is another call, which its killed first attempt had sent.
        (retried,) = labels("o", "k1", FATES[0][0])[:1]
        assert broken(run(retried, 1000), run(retried, 1051, 1060, deliveries=2)) == []

    def test_a_task_that_was_moved_into_its_flow_twice_may_run_twice_at_once(self) -> None:
        label = labels("o", "k1")[0]
        ran, moved = [run(label, 1000, 1100), run(label, 1050, 1060)], [Event("move", "invoke", label)]
        assert broken(*ran, moved) == ["twice at once"]
        assert broken(*ran, moved, moved) == []
        # The limits count both.
        assert broken(run(S1, 1000, 1100), run(S1, 1050, 1060), *2 * [[Event("move", "invoke", S1)]]) == [
            "more than the limit"
        ]

    def test_a_task_outside_its_flow_is_found(self) -> None:
        outside = [Event("outside", "ok", f"run:{S1}", 1, at=1000)]
        assert broken(run(S1, 1000, 1010), outside) == ["ran outside its flow"]


class TestRate:
    def test_takings_at_the_rate_pass(self) -> None:
        runs = [run(label, 1000 + GAP * max(0, place - 1), 9999) for place, label in enumerate(TIMED[:3])]
        assert broken(*runs) == []

    def test_takings_faster_than_the_rate_are_found(self) -> None:
        runs = [run(label, 1000 + (GAP - 2) * max(0, place - 1), 9999) for place, label in enumerate(TIMED[:3])]
        assert broken(*runs) == ["taken faster than the rate"]

    def test_redelivered_tasks_count(self) -> None:
        one, two = TIMED[:2]
        runs = [run(one, 1000, 1001), run(two, 1000, 1001), run(one, 1020, 1021, deliveries=2)]
        assert broken(*runs) == ["taken faster than the rate"]

    def test_starts_may_be_closer_together_by_a_lease(self) -> None:
        # Their takings are unknown: the leases had been renewed.
        most = FLOWS[PACED].burst + LEASED // GAP
        runs = [
            [event for event in run(label, 3000 + place, 3001 + place) if event.op != "take"]
            for place, label in enumerate(TIMED[: most + 1])
        ]
        assert broken(*runs[:most]) == []
        assert broken(*runs) == ["started faster than the rate"]


class TestOrder:
    def test_tasks_of_one_key_are_taken_in_the_order_of_sending(self) -> None:
        assert broken(run(S1, 1000, 1010), run(S2, 1020, 1030), sent=[S1, S2]) == []
        assert broken(run(S2, 1000, 1010), run(S1, 1020, 1030), sent=[S1, S2]) == ["out of order"]
        late = [run(S2, 1000, 1010), run(S3, 1020, 1030), run(S1, 1040, 1050)]
        assert broken(*late, sent=[S1, S2, S3]) == ["out of order"] * 2

    def test_keys_and_redelivered_tasks_have_no_order(self) -> None:
        other = OTHERS[0]
        assert broken(run(other, 1000, 1010), run(S1, 1020, 1030), sent=[S1, other]) == []
        assert broken(run(S2, 1000, 1010), run(S1, 1020, 1030, deliveries=2), sent=[S1, S2]) == []

    def test_the_first_taking_counts(self) -> None:
        runs = [run(S1, 1000), [DEAD], run(S2, 1060, 1070), run(S1, 1080, 1090, deliveries=2)]
        assert broken(*runs, sent=[S1, S2]) == []


def measured(order: Iterable[str], *, at: int = 100) -> list[str]:
    """Return the broken promises if the tasks of tenants were sent at *at* and are taken in this *order*."""
    taken = list(order)
    puts = [event for label in sorted(taken, key=_number) for event in put(label, at)]
    runs = [event for place, label in enumerate(taken) for event in run(label, 1000 + place * 50, 1010 + place * 50)]
    return sorted({violation.promise.partition(":")[0] for violation in check([*puts, *runs], taken).violations})


def _number(label: str) -> int:
    return int(label[1:])


class TestTurns:
    tenants = tuple(
        [f"f{number}" for number in range(0, MEASURED, 2) if Plan.of(f"f{number}").key == f"t{tenant}"]
        for tenant in range(SMALL + 1)
    )

    def test_tenants_that_take_turns_pass(self) -> None:
        rows = itertools.zip_longest(*self.tenants)
        assert measured(label for row in rows for label in row if label) == []

    def test_a_tenant_that_waits_for_the_others_is_found(self) -> None:
        assert len(self.tenants[0]) > WINDOW
        big, *small = self.tenants
        assert measured(label for tenant in (*small, big) for label in tenant) == []
        assert measured(label for tenant in (big, *small) for label in tenant) == ["passed over"]

    def test_tenants_that_did_not_wait_show_nothing(self) -> None:
        assert measured((label for tenant in self.tenants for label in tenant), at=99_999) == ["no tenant waited"]


def test_shares_of_fates_leave_tasks_that_end_well() -> None:
    assert {Plan.of(f"s{number}").fate for number in range(100)} == {"", *(fate for fate, _ in FATES)}
