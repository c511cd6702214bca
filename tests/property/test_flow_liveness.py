"""Flows against their model: no limit is exceeded, and what may start starts, whoever else waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest
import redis

from redis_queue.admission.flows import route_of
from redis_queue.celery.admission.admission import FlowReply
from redis_queue.store.keys import FlowKeys
from redis_queue.store.script_files import load
from redis_queue.store.scripts import Scripts
from tests.property.harness import PROFILES, profile
from tests.property.model_flow import HOUR_MS, FlowModel, Group, OwnRule, Rule
from tests.support.recording import commands_run

KEYS: Final = FlowKeys("redis_queue")
OF_BROKER: Final = {
    name: f"{{redis_queue:flow}}:{name}".encode() for name in ("index", "unacked", "line", "listener", "lease_ends")
}
QUEUES: Final = ("a", "b")
TASKS: Final = ("", "sync")
START: Final = 1_700_000_000_000
MAX_CALLS: Final = 300
"""Calls in which all that may start has started."""

EXAMPLES: Final = 60 if profile() is PROFILES["default"] else 2000


class House:
    """Flows in Redis beside their model. All queues have a worker at first."""

    def __init__(self, client: redis.Redis, rules: dict[str, Rule]) -> None:
        self.client, self.present = client, set(QUEUES)
        self.model = FlowModel(rules, START)
        self._scripts = Scripts(client)
        self._serial = 0
        for flow, rule in rules.items():
            self._run("admission/configure", **self._change(flow, declared_now=rule.text))

    def _run(self, script: str, **arguments: Any) -> Any:
        named = {"slot": KEYS.slot("house"), **OF_BROKER}
        found = self._scripts.bind(script, KEYS, **{key: named[key] for key in named if key in load(script).keys})
        return found(**arguments)

    def _change(self, flow: str, **changes: Any) -> dict[str, Any]:
        flag = route_of(flow.removeprefix("queue:")) if flow.startswith("queue:") else flow
        return {"flow": flow, "declared_now": "", "set": "", "flag": flag, "paused": "", "forget": 0, **changes}

    def send(self, group: Group, count: int) -> None:
        for _ in range(count):
            self._serial += 1
            message = f"-{self._serial}"
            call = {**group._asdict(), "sequence": self._serial, "is_new": 1, "message": message}
            assert self._run("admission/send", now=self.model.now, **call)
            self.model.send(group, message)

    def pause(self, flow: str, paused: bool) -> None:
        """Pause or resume a flow, as `Flows` does."""
        (self.model.paused.add if paused else self.model.paused.discard)(flow)
        if self._run("admission/configure", **self._change(flow, paused=int(paused))):
            self._run("admission/reconsider", limit=0, places=1, more=[flow])

    def set_key(self, flow: str, key: str, rule: OwnRule) -> None:
        """Pause a key, or set its limits, as `Flows` does."""
        self.model.own[flow, key] = rule
        texts = {None: "-", "": "="}
        limits = {name: texts.get(value, value) for name, value in (("places", rule.limit), ("spacing", rule.gap))}
        call = {**limits, "burst": "=" if rule.gap == "" else "1", "paused": int(rule.paused), "forget": 0, "most": 9}
        self._run("admission/set_key", flow=flow, key=key, **call)
        self._run("admission/reconsider", limit=0, places=1, more=[f"{flow}\0{key}"])
        for queue in QUEUES if rule.gap != "" else ():
            self._run("admission/reconsider", limit=200, places=0, more=[queue])

    def take(self, queues: list[str], limit: int, settled: list[str]) -> FlowReply:
        self._serial += 1
        tag = f"t{self._serial}-"
        for each in settled:
            self.model.end(each)
        more = [*settled, *(part for queue in queues for part in (queue, route_of(queue)))]
        options = {"channel": "c", "turn": self._serial, "settled": len(settled), "lease": 60_000}
        caller = {"now": self.model.now, "limit": limit, "at_once": limit, "tag": tag}
        taken = FlowReply.of(self._run("admission/take", **caller, **options, more=more))
        assert not taken.missing
        for number, (_, item) in enumerate(taken.messages, 1):
            self.model.take(f"{tag}{number:03}", item.decode())
        return taken

    def settle(self, tag: str) -> None:
        """Settle a message without taking others."""
        self.model.end(tag)
        assert not self._run("admission/settle", now=self.model.now, more=[tag])

    def restore(self, tag: str) -> None:
        group, message = self.model.end(tag)
        record = self.client.hget(OF_BROKER["unacked"].decode(), tag)
        call = {**group._asdict(), "message": message}
        assert self._run("admission/restore", now=self.model.now, tag=tag, record=record, ended=0, last=0, **call)
        self.model.send(group, message, first=True)

    def settle_down(self) -> None:
        """Let all workers take until none gets more; then what may start must have started."""
        for _ in range(MAX_CALLS):
            rounds = [self.take([queue], 20, []) for queue in sorted(self.present)]
            if not any(taken.messages or taken.left or taken.next_in <= 0.001 for taken in rounds):
                break
        else:
            pytest.fail(f"after {MAX_CALLS} calls of each worker, there is still more to take")
        live = self.present - {flow.removeprefix("queue:") for flow in self.model.paused}
        assert not self.model.startable(live)


Step = tuple[Any, ...]
FLOWS: Final = [*(f"queue:{queue}" for queue in QUEUES), *TASKS[1:]]
TENANTS: Final = (1, 1, 2, 60, 120)
"""Of a burst: one, some, or more than one offer of a place reaches."""


KEYS_OF_FLOWS: Final = [*((flow, f"tenant{number}") for flow in FLOWS[:2] for number in range(3)), ("sync", "x")]


def send_and_take(groups: list[Group]) -> list[Step]:
    """Return the steps that send a message to each group, and take what can be taken."""
    return [("send", groups), ("take", 100, 0)]


def tenants(queue: str, task: str, of_task: str, count: int, step: int = 0) -> list[Group]:
    """Return the groups of one task and account, one for each tenant of the queue."""
    return [Group(step, queue, task, of_task, f"tenant{number}") for number in range(count)]


def rules_of(random: Random) -> dict[str, Rule]:
    """Return limits of whole flows, which are seldom, and of keys."""
    seldom, often, gaps = (None, None, None, 1, 3), (None, 1, 1, 2), (None, None, None, 1000, HOUR_MS)
    return {flow: Rule(*(random.choice(of) for of in (seldom, gaps, often, gaps))) for flow in FLOWS}


def own_rule(random: Random) -> OwnRule:
    """Return what an operator sets for a key: a pause, limits, or none of them."""
    return random.choice(
        [OwnRule(paused=True), OwnRule(limit=random.choice([None, 0, 2])), OwnRule(gap=1000), OwnRule()]
    )


def script_of(random: Random) -> list[Step]:
    def burst() -> list[Group]:
        task = random.choice(TASKS)
        of_task = random.choice(["", "x", "x", "y"]) if task else ""
        return tenants(random.choice(QUEUES), task, of_task, random.choice(TENANTS), random.choice([0, 0, 3]))

    makers: list[Callable[[], list[Step]]] = [
        *[lambda: send_and_take(burst())] * 8,
        lambda: [("take", random.choice([1, 100]), random.randrange(3))],
        *[lambda: [(random.choice(["settle", "settle", "restore"]), random.randrange(5))]] * 2,
        lambda: [("pause", random.choice(FLOWS), random.random() < 0.5)],
        lambda: [("set_key", *random.choice(KEYS_OF_FLOWS), own_rule(random))],
        lambda: [(random.choice(["visit", "leave"]), random.choice(QUEUES))],
        lambda: [("wait", random.choice([1000, HOUR_MS]))],
    ]
    return list(itertools.chain(*(random.choice(makers)() for _ in range(random.randint(5, 25)))))


def live(house: House, script: list[Step]) -> None:
    """Do the steps; then let tasks end, and time pass: what may start has to start each time."""
    for action, *arguments in script:
        perform(house, action, arguments)
    house.settle_down()
    for place, rule in list(house.model.own.items()):
        if rule.paused or rule.limit == 0:
            house.set_key(*place, OwnRule())
            house.settle_down()
    for _ in range(6):
        for tag in list(house.model.running)[:20]:
            house.settle(tag)
        house.settle_down()
        house.model.now += HOUR_MS
        house.settle_down()


def perform(house: House, action: str, arguments: list[Any]) -> None:
    """Do one step of a script."""
    running = list(house.model.running)
    if action == "send":
        for group in arguments[0]:
            house.send(group, 1)
    elif action == "take":
        limit, ends = arguments
        house.take(sorted(house.present), limit, running[:ends])
    elif action in ("settle", "restore") and running:
        getattr(house, action)(running[arguments[0] % len(running)])
    elif action in ("pause", "set_key"):
        getattr(house, action)(*arguments)
    elif action in ("visit", "leave"):
        (house.present.add if action == "visit" else house.present.discard)(arguments[0])
    elif action == "wait":
        house.model.now += arguments[0]


BUSY_ACCOUNT: Final = send_and_take([Group(0, "b", "sync", "x", "first")])
ANOTHER: Final = [*send_and_take([Group(0, "b", "sync", "x", "")]), ("settle", 0)]


@pytest.mark.parametrize(
    ("rule", "script"),
    [
        (Rule(gap_each=HOUR_MS), [*send_and_take(tenants("a", "", "", 270)), ("take", 100, 0), ("take", 100, 0)]),
        (Rule(limit_each=1), [*send_and_take(tenants("a", "", "", 270)), ("take", 100, 0), ("take", 100, 0)]),
        (Rule(), [("leave", "a")]),
        (Rule(), [("pause", "queue:a", True)]),
        (Rule(), [("set_key", "queue:a", f"tenant{number}", OwnRule(paused=True)) for number in range(9)]),
    ],
    ids=["rates", "places", "no workers", "paused", "paused keys"],
)
def test_a_place_that_many_cannot_use_goes_to_another_queue(
    client: redis.Redis, rule: Rule, script: list[Step]
) -> None:
    house = House(client, {**dict.fromkeys(FLOWS, Rule()), "queue:a": rule, "sync": Rule(limit_each=1)})
    live(house, [*BUSY_ACCOUNT, *send_and_take(tenants("a", "sync", "x", 270)), *script, *ANOTHER])


def test_a_call_costs_the_same_however_many_wait(client: redis.Redis) -> None:
    house = House(
        client, {**dict.fromkeys(FLOWS, Rule()), "queue:a": Rule(gap_each=HOUR_MS), "sync": Rule(limit_each=1)}
    )
    for action, *arguments in [*BUSY_ACCOUNT, ("send", tenants("a", "sync", "x", 3000))]:
        perform(house, action, arguments)
    house.settle_down()
    for action, *arguments in [("pause", "queue:a", True), *ANOTHER]:
        perform(house, action, arguments)
    dear = []
    while not house.take(["b"], 20, []).messages:
        dear.append(commands_run(client))
    assert len(dear) == 3000 // 50 - 1
    assert max(after - before for before, after in itertools.pairwise(dear)) < 300


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_what_may_start_starts_whoever_else_waits(client: redis.Redis, seed: int) -> None:
    random = Random(seed)
    live(House(client, rules_of(random)), script_of(random))
