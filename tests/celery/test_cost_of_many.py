"""What is done with many names, ids or bytes costs no more than there are of them, and sees that a name is replaced."""

import time
import timeit
from collections.abc import Callable

import pytest
from celery import Celery
from kombu.entity import Exchange, Queue

from redis_queue import Flow, Unique
from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.options import did_you_mean
from redis_queue.celery import DurableTasks
from redis_queue.celery.admission.policy import FlowPolicy, UniquePolicy
from redis_queue.celery.control import revokes
from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.queues.names import QueueNames
from redis_queue.operate.queue_row import Faults, QueueRow


def flows_of_unknown_queues(count: int) -> Callable[[], object]:
    app = Celery("many", broker="redis://", set_as_current=False)
    app.conf.redis_queue_flow = {f"queue:q{number}": Flow(limit=1) for number in range(count)}
    DurableTasks(app)
    policy, half = FlowPolicy.of(app), [f"q{number}" for number in range(0, count, 2)]
    return lambda: policy.unknown_queues(half)


def exchanges(count: int) -> Callable[[], object]:
    app = Celery("many", set_as_current=False)
    app.conf.task_queues = [Queue(f"q{number}", Exchange(f"e{number}"), f"q{number}") for number in range(count)]
    destinations = Destinations(app)
    return lambda: [*map(destinations.check_exchange, (f"e{number}" for number in range(count)))]


def exchanges_that_only_a_setting_allows(count: int) -> Callable[[], object]:
    app = Celery("many", set_as_current=False)
    app.conf.task_queues = [Queue(f"q{number}", Exchange(f"e{number}"), f"q{number}") for number in range(count)]
    app.conf.redis_queue_allowed_queues = ["other-*"]
    destinations = Destinations(app)
    return lambda: [*map(destinations.check_exchange, (f"other-{number}" for number in range(count)))]


def unknown_bindings(count: int) -> Callable[[], object]:
    app = Celery("many", set_as_current=False)
    app.conf.task_queues = [Queue(f"q{number}", Exchange(f"e{number}"), f"q{number}") for number in range(count)]
    names = QueueNames(app)
    return lambda: [names.bound("e1", f"other-{number}") for number in range(count)]


def rescheduled_ids(count: int) -> Callable[[], object]:
    app = Celery("many", set_as_current=False)
    for number in range(count):
        app.task(name=f"task-{number}", shared=False, lazy=False)(hide_secrets)
    policy = UniquePolicy.of(app)
    return lambda: [policy.exist for _ in range(count)]


def revoked_ids_that_end(count: int) -> Callable[[], object]:
    ids = revokes.RevokedIds()
    ids.add_stored(map(str, range(count)))
    ids._stored.update(dict.fromkeys(ids._stored, 0.0))
    return lambda: ids.add_stored(["last"])


def queues_that_cannot_be_read(count: int) -> Callable[[], object]:
    rows, faults = [QueueRow("queue", f"q{number}", error="an error") for number in range(count)], Faults()
    return lambda: [*map(faults.add, rows)]


def slashes(count: int) -> Callable[[], object]:
    return lambda: hide_secrets("/" * count)


def letters(count: int) -> Callable[[], object]:
    """Compare a long name with long names, as many as a server may keep."""
    return lambda: did_you_mean("a" * count, [f"{number}{'a' * count}" for number in range(count)])


@pytest.mark.parametrize(
    ("many", "count"),
    [
        (flows_of_unknown_queues, 1000),
        (exchanges, 500),
        (exchanges_that_only_a_setting_allows, 500),
        (unknown_bindings, 1000),
        (rescheduled_ids, 500),
        (revoked_ids_that_end, 25_000),
        (queues_that_cannot_be_read, 2000),
        (slashes, 10_000),
        (letters, 48),
    ],
)
def test_four_times_as_many_cost_four_times_as_much(many: Callable[[int], Callable[[], object]], count: int) -> None:
    def cost(count: int) -> float:
        return timeit.timeit(many(count), timer=time.process_time, number=1)

    # The least of some: what else the machine does is not counted.
    assert min(cost(4 * count) for _ in range(3)) < 8 * max(min(cost(count) for _ in range(3)), 0.005)


def test_a_name_that_replaces_another_one_is_known() -> None:
    app = Celery("few", set_as_current=False)
    app.conf.update(task_queues=[Queue("old", Exchange("old"), "key")], redis_queue_allowed_queues=[])
    destinations, names, policy = Destinations(app), QueueNames(app), UniquePolicy.of(app)
    destinations.check_exchange("old")
    assert (names.bound("old", "key"), policy.exist) == ("old", False)
    app.amqp.queues.pop("old")
    app.amqp.queues.add(Queue("new", Exchange("new"), "key"))
    app.tasks.unregister("celery.group")
    app.task(name="new", shared=False, lazy=False, unique=Unique())(hide_secrets)
    destinations.check_exchange("new")
    assert (names.bound("new", "key"), policy.exist) == ("new", True)
