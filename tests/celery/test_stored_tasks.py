"""StoredTasks: reads and changes stored tasks, and installs nothing in the app."""

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import CancelOutcome
from redis_queue.celery import DurableTasks
from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.recording import record_commands
from tests.support.servers import RedisServer

PROGRAM = '''
import json, sys
from celery import Celery, signals
from celery.worker.control import Panel
from kombu.transport.redis import Channel
from kombu.utils.objects import cached_property

url, use = sys.argv[1:]
app = Celery("shop", broker=url, backend=url, set_as_current=False)

@app.task(name="shop.remind", shared=False)
def remind():
    pass

def snapshot():
    """Return all that an extension of Celery could have changed, as text."""
    named = {name: value for name, value in vars(signals).items() if isinstance(value, signals.Signal)}
    return {
        "app.amqp": [type(app.amqp).__name__, *map(repr, (app.amqp.create_task_message, app.amqp.send_task_message))],
        "app.control": sorted(vars(app.control)),
        "app.control.broadcast": repr(getattr(app.control.broadcast, "__func__", app.control.broadcast)),
        "app.control_cls": repr(app.control_cls),
        "app.steps": sorted(map(repr, app.steps["worker"] | app.steps["consumer"])),
        "app.user_options": {place: list(map(repr, options)) for place, options in app.user_options.items() if options},
        "app.Task": repr(app.Task.mro()),
        "tasks": sorted(app.tasks),
        "beat": repr(app.conf.beat_schedule),
        "settings": [app.conf.task_acks_late, app.conf.task_reject_on_worker_lost],
        "transport": repr(app.connection_for_write().transport_cls),
        "requests": [repr(task.Request) for task in app.tasks.values()],
        "panel": repr(sorted(Panel.data.items())),
        "channel": repr(sorted(vars(Channel).items())),
        "signals": {name: len(signal.receivers) for name, signal in named.items()},
    }

app.control, app.backend.client, app.finalize()
with app.connection_for_write() as connection:
    connection.default_channel.client.ping()
before = snapshot()
exec(use)
json.dump([before, snapshot()], sys.stdout)
'''

USES = {
    "cancel": """
from redis_queue.celery.stored_tasks import StoredTasks
assert StoredTasks.of(app).cancel("order-1")
""",
    "all that StoredTasks does": """
from redis_queue.celery.stored_tasks import StoredTasks
stored = StoredTasks.of(app)
assert stored.get("order-1").task == "shop.remind"
assert len(stored.list(task_part="remind")) == stored.count() == sum(count for _, count in stored.forecast()) == 1
assert stored.reschedule("order-1", countdown=50) and stored.run_now("order-1")
assert stored.cancel_matching(task="shop.remind") == 1
""",
    "operate": """
from redis_queue.operate.access import AppAccess
access = AppAccess(app)
assert access.removal(access.delay_queue()).cancel_many(["order-1"])[0].outcome
""",
    "adopt": """
from redis_queue.celery.migrate.adopt import Adoption
assert list(Adoption(app).find()) == []
""",
    # Proves that the snapshot detects installed hooks.
    "DurableTasks": """
from redis_queue.celery import DurableTasks
DurableTasks(app)
""",
}


@pytest.mark.parametrize("use", USES)
def test_using_it_installs_nothing_in_the_app(use: str, redis_server: RedisServer, client: redis.Redis) -> None:
    url = f"redis+socket://{redis_server.socket}"
    sender = Celery("sender", broker=url, set_as_current=False)
    DurableTasks(sender, leases=False)
    sender.send_task("shop.remind", countdown=3600, task_id="order-1")

    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, url, USES[use]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    changed = {name for name in before if before[name] != after[name]}
    installed = {"app.amqp", "app.control", "app.control.broadcast", "app.steps", "app.user_options", "settings"}
    if use == "DurableTasks":
        assert changed >= {*installed, "signals"}
    else:
        assert changed == set()


@pytest.fixture
def stored(redis_server: RedisServer, client: redis.Redis) -> StoredTasks:
    """The StoredTasks of an app without DurableTasks, with three waiting tasks."""
    url = f"redis+socket://{redis_server.socket}"
    sender, reader = (Celery(name, broker=url, set_as_current=False) for name in ("sender", "reader"))
    DurableTasks(sender, leases=False)
    for number, task in enumerate(["shop.remind", "shop.report", "bank.report"]):
        options: dict[str, Any] = {"queue": task.partition(".")[0], "task_id": f"{task}-{number}"}
        sender.send_task(task, countdown=3600 * (number + 1), **options)
    return StoredTasks.of(reader)


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ({}, [0, 1, 2]),
        ({"task": "shop.report"}, [1]),
        ({"task": "report"}, []),
        ({"task_part": "report"}, [1, 2]),
        ({"task_part": "report", "queue": "bank"}, [2]),
        ({"id_prefix": "shop."}, [0, 1]),
        ({"stamp": {"tenant": 7}}, []),
        ({"due_before": timedelta(hours=1.5)}, [0]),
        ({"due_after": timedelta(hours=1.5), "queue": "shop"}, [1]),
    ],
    ids=str,
)
def test_all_conditions_must_hold(stored: StoredTasks, conditions: dict[str, Any], numbers: list[int]) -> None:
    now = datetime.now(timezone.utc)
    given = {name: now + value if isinstance(value, timedelta) else value for name, value in conditions.items()}

    found = stored.list(**given)

    assert [int(task.id[-1]) for task in found] == numbers
    assert [task.id for task in stored.scan(**given)] == [task.id for task in found]


def test_an_unknown_condition_is_refused_at_once(stored: StoredTasks) -> None:
    conditions: dict[str, Any] = {"name": "shop.remind"}
    for call in (stored.scan, stored.list, stored.cancel_matching):
        with pytest.raises(TypeError, match="name"):
            call(**conditions)
    assert stored.count() == 3


def test_app_has_one_instance(stored: StoredTasks) -> None:
    assert StoredTasks.of(stored.app) is stored
    delayed = DurableTasks(stored.app, leases=False)
    assert StoredTasks.of(stored.app) is delayed
    assert delayed.cancel("shop.remind-0") is CancelOutcome.CANCELLED
    assert [task.id for task in delayed.list()] == [task.id for task in stored.list()]


@pytest.mark.parametrize("revoke", [False, True], ids=["cancel_many", "revoke"])
def test_many_tasks_are_cancelled_in_one_call_for_each_500(
    redis_server: RedisServer, client: redis.Redis, *, revoke: bool
) -> None:
    with Celery("tests", broker=f"redis+socket://{redis_server.socket}", set_as_current=False) as app:
        app.conf.redis_queue_url = redis_server.url
        delayed = DurableTasks(app)
        signatures = [app.signature("shop.remind") for _ in range(1000)]
        sent: dict[int, int] = {}
        for count in (500, 1000):
            ids = [result.id for result in delayed.send_many(signatures[:count], countdown=60)]
            with record_commands(client) as commands:
                app.control.revoke(ids) if revoke else delayed.cancel_many(ids)
            assert delayed.count() == 0
            sent[count] = commands.count("evalsha")
        assert sent == {500: 1, 1000: 2}
