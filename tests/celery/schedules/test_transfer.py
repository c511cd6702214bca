"""Import from redbeat, django-celery-beat, beat_schedule and a file, and export: nothing is lost, doubled or missed."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule
from click.testing import CliRunner, Result
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from redis_queue import DelayQueue
from redis_queue.celery import DurableTasks
from redis_queue.celery.schedules.declaration import Declaration
from redis_queue.celery.schedules.redbeat import RedBeat
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.celery.schedules.transfer import (
    SourceSchedule,
    beat_schedule,
    export_document,
    from_document,
    import_from,
)
from redis_queue.cli.schedules import export_schedules, import_schedules
from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.operate.audit import Audit
from tests.support.celery.brokers import ManualClock, stored_messages
from tests.support.wait import must

UTC = timezone.utc

NOW = datetime(2026, 6, 10, 10, 0, 30, tzinfo=UTC)

Read = Callable[..., dict[str, SourceSchedule]]


@pytest.fixture
def durable(app: Celery, redis_url: str, delayed: Callable[..., DelayQueue]) -> DurableTasks:
    app.conf.update(redis_queue_url=redis_url, redbeat_redis_url=redis_url, result_expires=None)
    app.main = "shop"
    app.task(name="shop.build", shared=False)(print)
    found = DurableTasks(app)
    found.queue = delayed()
    return found


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock._now = round(NOW.timestamp() * 1000)
    return clock


@pytest.fixture
def schedules(durable: DurableTasks) -> Schedules:
    return durable.schedules


def save(app: Celery, name: str, rule: Any, last: datetime | None = NOW, **fields: Any) -> None:
    """Store an entry of redbeat that was sent at *last*."""
    rule.app = app
    RedBeatSchedulerEntry(name, "shop.build", rule, app=app, last_run_at=last, **fields).save()


def results(schedules: Schedules, sources: Any, **options: Any) -> dict[str, tuple[str, str]]:
    """Import *sources*; return the result and the reason for each."""
    return {row.name: (row.result, row.reason) for row in import_from(schedules, sources, **options)}


def only(schedules: Schedules, sources: Any) -> str:
    """Import the one schedule of *sources*; return its next run, or why it was refused."""
    (row,) = import_from(schedules, sources)
    return row.reason if row.next_run is None else f"{row.next_run:%d %H:%M:%S}{' paused' * row.paused}"


@pytest.mark.parametrize(
    ("rule", "ago", "expected"),
    [
        (schedule(600), timedelta(minutes=3), "10 10:07:30"),
        (schedule(600, relative=True), timedelta(minutes=3), "10 10:07:00"),
        (crontab(minute="*/15"), timedelta(seconds=3), "10 10:15:00"),
        # It is overdue: the newest of the due times is sent, once.
        (schedule(600), timedelta(minutes=25), "10 09:55:30"),
        (schedule(1), timedelta(days=1000), "10 10:00:30"),
        (crontab(minute="*/15"), timedelta(days=400), "10 10:00:00"),
        (crontab(minute="0", hour="0", day_of_month="1", month_of_year="1"), timedelta(days=400), "01 00:00:00"),
    ],
)
def test_the_next_run_is_the_one_that_redbeat_would_have_sent(
    schedules: Schedules, rule: Any, ago: timedelta, expected: str
) -> None:
    save(schedules.app, "a", rule, NOW - ago)
    assert only(schedules, RedBeat(schedules)) == expected
    schedules.dispatch.run()
    assert len(list(stored_messages(schedules.app))) == (expected <= "10 10:00:30")


def test_redbeat_sends_an_entry_without_a_last_run_at_once(schedules: Schedules, client: redis.Redis) -> None:
    save(schedules.app, "a", crontab(minute="0", hour="3"))
    client.hdel("redbeat:a", "meta")
    assert only(schedules, RedBeat(schedules)) == "10 10:00:30"


def test_all_of_an_entry_of_redbeat_is_moved(schedules: Schedules) -> None:
    schedules.app.conf.timezone = "Europe/Berlin"
    save(
        schedules.app,
        "a",
        crontab(minute=5, hour="8-10", day_of_week="mon,fri"),
        args=[1, {"a": None}],
        kwargs={"b": 2},
        options={"queue": "slow", "priority": 3, "expires": 60, "headers": {"tenant": "x"}},
        enabled=False,
    )
    assert only(schedules, RedBeat(schedules)) == "12 06:05:00 paused"
    found = schedules.find("a")
    definition = must(found.definition)
    assert (found.rules, found.timezone, found.paused) == ("5 8-10 * * 1,5", "Europe/Berlin", True)
    assert (definition.args, definition.kwargs, definition.app) == ([1, {"a": None}], {"b": 2}, "shop")
    assert definition.options == {"queue": "slow", "priority": 3, "expires": 60, "headers": {"tenant": "x"}}
    assert definition.dst == "wall"


def test_a_url_and_a_prefix_choose_another_redis(schedules: Schedules, redis_url: str) -> None:
    schedules.app.conf.redbeat_key_prefix = "mine:"
    save(schedules.app, "a", schedule(60))
    assert list(RedBeat(schedules, redis_url, "other:")) == []
    del schedules.app.redbeat_conf
    schedules.app.conf.update(redbeat_key_prefix=None, redbeat_redis_url="http://nowhere")
    with pytest.raises(ConfigurationError):
        RedBeat(schedules)
    assert [source.name for source in RedBeat(schedules, redis_url, "mine:")] == ["a"]


def hostile(client: redis.Redis, **fields: Any) -> None:
    """Store an entry of redbeat with these *fields*."""
    entry = {"name": "a", "task": "shop.build", "schedule": {"__type__": "interval", "every": 60}, **fields}
    client.hset("redbeat:bad", mapping={"definition": json.dumps(entry), "meta": "{}"})
    client.zadd("redbeat::schedule", {"redbeat:bad": 1})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"schedule": {"__type__": "interval", "every": "every 10 s"}}, "not a crontab or an interval"),
        ({"schedule": {"__type__": "interval", "every": 0.01}}, "must be 50 ms to ten years"),
        ({"schedule": {"__type__": "interval", "every": -1}}, "must be >= 0"),
        ({"schedule": {"__type__": "os.system"}}, "not a crontab or an interval"),
        ({"schedule": {"__type__": "crontab", "minute": "*" * 1000}}, "minute='***"),
        ({"schedule": {"__type__": "crontab", "minute": {"a": 1}}}, "must be a text or numbers"),
        ({"schedule": {"__type__": "crontab", "minute": "0-99999999999"}}, "Invalid end range"),
        ({"schedule": {"__type__": "crontab", "month_of_year": 2, "day_of_month": 30}}, "never occurs"),
        ({"schedule": [1]}, "AttributeError"),
        ({"args": [{"deep": [{"__type__": "datetime", "year": 2026}]}]}, "a datetime in redbeat's form"),
        ({"args": "text"}, "must be a list or tuple"),
        ({"options": {"eta": "2030-01-01"}}, "option 'eta'"),
        ({"options": {"serialiser": "pickle"}}, "did you mean 'serializer'?"),
        ({"task": 7}, "task=7"),
        ({"name": "a" * 1000}, "name"),
        ({"name": None}, "name=None"),
    ],
)
def test_hostile_and_strange_entries_of_redbeat_are_named_and_the_others_are_moved(
    schedules: Schedules, client: redis.Redis, fields: dict[str, Any], reason: str
) -> None:
    hostile(client, **fields)
    save(schedules.app, "b", schedule(60))
    found = results(schedules, RedBeat(schedules))
    assert found.pop("b") == ("put", "")
    ((result, text),) = found.values()
    assert (result, reason in text) == ("refused", True), text
    assert [item.name for item in schedules.list()] == ["b"]


def test_keys_of_another_type_and_without_a_definition_are_named(schedules: Schedules, client: redis.Redis) -> None:
    client.set("redbeat:text", "x")
    client.hset("redbeat:large", "definition", "x" * 300_000)
    client.hset("redbeat:broken", "definition", "{")
    client.zadd(
        "redbeat::schedule", dict.fromkeys(["redbeat:text", "redbeat:large", "redbeat:gone", "redbeat:broken"], 1)
    )
    save(schedules.app, "rule", rrule("DAILY", dtstart=NOW))
    found = {name: reason for name, (_, reason) in results(schedules, RedBeat(schedules)).items()}
    assert list(found) == ["broken", "gone", "large", "rule", "text"]
    assert "JSON" in found["broken"] or "Expecting" in found["broken"]
    assert "redbeat does not send it" in found["gone"]
    assert "must be at most" in found["large"]
    assert "recurrence rule" in found["rule"]
    assert "another Redis type" in found["text"]


def test_an_entry_of_beat_schedule_comes_from_the_code_with_the_last_run_of_redbeat(schedules: Schedules) -> None:
    schedules.app.conf.beat_schedule = {"a": {"task": "shop.build", "schedule": 600, "args": (1,)}}
    save(schedules.app, "a", schedule(600), NOW - timedelta(minutes=3))
    save(schedules.app, "celery.backend_cleanup", crontab(minute="0", hour="4"))
    found = results(schedules, RedBeat(schedules))
    assert found["celery.backend_cleanup"][0] == "unchanged"
    now = schedules.find("a")
    assert (now.static, now.next_run) == (True, NOW + timedelta(minutes=7))
    assert Declaration(schedules).make().changed == []
    assert schedules.find("a").next_run == NOW + timedelta(minutes=7)
    assert results(schedules, beat_schedule(schedules)) == {"a": ("unchanged", "")}


def test_a_second_import_sends_nothing_twice(schedules: Schedules, clock: ManualClock) -> None:
    save(schedules.app, "a", schedule(600), NOW - timedelta(minutes=3))
    assert results(schedules, RedBeat(schedules), dry_run=True) == {"a": ("put", "")}
    assert schedules.list() == []
    assert results(schedules, RedBeat(schedules)) == {"a": ("put", "")}
    assert results(schedules, RedBeat(schedules)) == {"a": ("unchanged", "")}
    clock.advance(7 * 60)
    schedules.dispatch.run()
    before = schedules.find("a")
    assert before.runs == 1
    assert results(schedules, RedBeat(schedules)) == {"a": ("unchanged", "")}
    # The old beat went on after the first import.
    entry = RedBeatSchedulerEntry.from_key("redbeat:a", app=schedules.app)
    entry.reschedule(NOW + timedelta(minutes=12))
    assert results(schedules, RedBeat(schedules)) == {"a": ("changed", "")}
    assert schedules.find("a") == replace(
        before, next_run=NOW + timedelta(minutes=22), since=NOW + timedelta(minutes=12)
    )


def test_what_is_paused_here_stays_so_and_another_rule_begins_from_now(
    schedules: Schedules, clock: ManualClock
) -> None:
    save(schedules.app, "a", schedule(600), NOW - timedelta(minutes=3))
    results(schedules, RedBeat(schedules))
    clock.advance(7 * 60)
    schedules.dispatch.run()
    schedules.pause("a")
    save(schedules.app, "a", schedule(300), NOW - timedelta(minutes=3))
    assert results(schedules, RedBeat(schedules)) == {"a": ("changed", "")}
    assert schedules.find("a").paused
    assert schedules.resume("a").next_run == NOW + timedelta(minutes=12)


def test_a_name_of_another_app_and_a_name_given_twice_are_refused(schedules: Schedules, client: redis.Redis) -> None:
    schedules.put("a", 60, "shop.build")
    schedules.app.main = "other"
    save(schedules.app, "a", schedule(60))
    save(schedules.app, "b", schedule(60))
    client.copy("redbeat:b", "redbeat:c")
    client.zadd("redbeat::schedule", {"redbeat:c": 1})
    found = [(row.name, row.result, row.reason) for row in import_from(schedules, RedBeat(schedules))]
    assert [row[:2] for row in found] == [("a", "refused"), ("b", "put"), ("b", "refused")]
    assert "belongs to the app 'shop'" in found[0][2]
    assert "another entry" in found[2][2]


def fill(schedules: Schedules, clock: ManualClock) -> None:
    schedules.put("interval", 600, "shop.build", args=(datetime(2026, 1, 1, tzinfo=UTC),), missed="all", queue="slow")
    schedules.put("rules", ["*/5 * * * *", "every 1d12h", {"solar": ["sunset", 51.5, -0.1]}], "shop.build", jitter=3)
    schedules.put("and", crontab(day_of_month="1-7", day_of_week="mon"), "shop.build", countdown=5, expires="next")
    schedules.put("until", 60, "shop.build", until=clock.after(86400), max_runs=7, exclude=["2026-12-25"], dst="celery")
    schedules.put("paused", 60, "shop.build", timezone="Europe/Berlin")
    schedules.put("pause ends", 60, "shop.build")
    schedules.pause("paused")
    schedules.pause("pause ends", until=clock.after(3600))
    clock.advance(130)
    schedules.dispatch.run()


def shown(schedules: Schedules) -> list[Any]:
    """Return what an export keeps."""
    return sorted(
        (item.name, item.definition, item.paused, item.pause_ends, item.next_run, item.since)
        for item in map(schedules.find, schedules.store.all_names())
    )


def test_an_export_deleted_and_imported_is_equal(schedules: Schedules, clock: ManualClock) -> None:
    schedules.app.conf.beat_schedule = {"static": {"task": "shop.build", "schedule": crontab(minute=5)}}
    Declaration(schedules).make()
    fill(schedules, clock)
    before = shown(schedules)
    document, unreadable = export_document(schedules)
    assert unreadable == {}
    for name in schedules.store.all_names():
        schedules.delete(name, force=True)
    text = json.dumps(document)
    assert {result for result, _ in results(schedules, from_document(schedules, text)).values()} == {"put"}
    after = shown(schedules)
    # The version of the release is set by a declaration.
    assert [(name, *rest) for name, _, *rest in after] == [(name, *rest) for name, _, *rest in before]
    for (_, old, *_), (_, new, *_) in zip(before, after, strict=True):
        assert new.means_the_same(old)
    assert export_document(schedules)[0]["schedules"] == [
        {**item, "definition": {**item["definition"], "version": ""}} for item in document["schedules"]
    ]
    assert {result for result, _ in results(schedules, from_document(schedules, text)).values()} == {"unchanged"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"redis_queue_schedules": 2, "schedules": []}', "[" * 10_000])
def test_another_document_is_refused(schedules: Schedules, text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"the file is not"):
        from_document(schedules, text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"definition": None}, "TypeError"),
        ({"paused": "yes"}, "must be true or false"),
        ({"due": "soon"}, "must be a time"),
        ({"due": None}, "it is over"),
        ({"due": 7}, "must be a time"),
        ({"definition": {"name": "a", "task": "shop.build", "rules": [{"cron": "bad"}]}}, "expected five cron fields"),
        ({"definition": {"name": "a", "task": "shop.build", "ruels": []}}, "did you mean 'rules'?"),
        (
            {"definition": {"name": "a", "task": "x", "rules": [{"every": 60000}], "options": {"producer": 1}}},
            "producer",
        ),
        (
            {"definition": {"name": "a", "task": "x", "rules": [{"every": 60000}], "timezone": "Mars"}},
            "timezone='Mars'",
        ),
    ],
)
def test_a_bad_schedule_of_a_file_is_named_and_the_others_are_imported(
    schedules: Schedules, change: dict[str, Any], reason: str
) -> None:
    schedules.put("a", 60, "shop.build")
    schedules.put("b", 60, "shop.build")
    document, _ = export_document(schedules)
    schedules.delete("a")
    schedules.delete("b")
    document["schedules"][0].update(change)
    bad, good = results(schedules, from_document(schedules, json.dumps(document))).values()
    assert (bad[0], reason in bad[1]) == ("refused", True), bad[1]
    assert good == ("put", "")


Row = Callable[..., Any]


@pytest.fixture
def row(beat_tables: Any) -> Row:
    """Makes a row of PeriodicTask, whose last run was three minutes ago."""
    from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

    del beat_tables
    models = {"crontab": CrontabSchedule, "interval": IntervalSchedule, "clocked": ClockedSchedule}

    def make(name: str = "a", **fields: Any) -> Any:
        rules = {kind: models[kind].objects.create(**fields.pop(kind)) for kind in models if kind in fields}
        known = {"last_run_at": NOW - timedelta(minutes=3), **rules, **fields}
        task = PeriodicTask(name=name, task="shop.build", **known)
        task.save()
        PeriodicTask.objects.filter(pk=task.pk).update(date_changed=NOW - timedelta(minutes=1))
        return task

    return make


TEN = {"every": 10, "period": "minutes"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"interval": TEN}, "10 10:07:30"),
        ({"interval": TEN, "last_run_at": None}, "10 10:09:30"),
        ({"interval": TEN, "enabled": False}, "10 10:10:30 paused"),
        ({"interval": TEN, "start_time": NOW + timedelta(hours=1), "last_run_at": None}, "10 11:00:30"),
        ({"interval": TEN, "start_time": NOW + timedelta(hours=1)}, "10 11:00:30"),
        ({"interval": TEN, "start_time": NOW - timedelta(hours=1)}, "10 10:07:30"),
        ({"crontab": {"minute": "0", "hour": "3", "timezone": "Asia/Kolkata"}}, "10 21:30:00"),
        ({"crontab": {"minute": "0", "hour": "9"}, "start_time": NOW + timedelta(days=3)}, "14 09:00:00"),
        ({"clocked": {"clocked_time": NOW + timedelta(days=2)}, "one_off": True}, "12 10:00:30"),
        ({"clocked": {"clocked_time": NOW - timedelta(hours=2)}, "one_off": True}, "10 08:00:30"),
        ({"interval": TEN, "one_off": True, "total_run_count": 1}, "it is a one-off task, which has run"),
        ({"interval": TEN, "expires": NOW - timedelta(hours=1)}, "it expired at 2026-06-10T09:00:30+00:00"),
        ({"interval": TEN, "expires": NOW + timedelta(minutes=1)}, "it has no due time before its end"),
        ({"interval": {"every": 1, "period": "microseconds"}}, "every=1 ms: must be 50 ms to ten years"),
        (
            {"clocked": {"clocked_time": NOW + timedelta(days=400)}, "one_off": True},
            "its time is more than a year away: call the task with an eta instead",
        ),
        (
            {"clocked": {"clocked_time": NOW - timedelta(days=1)}, "one_off": True, "enabled": False},
            "its time has passed, and it is disabled",
        ),
        ({"interval": TEN, "kwargs": "[1]"}, "kwargs=[1]: must be a mapping with string names"),
    ],
)
def test_rows_of_django_celery_beat(
    schedules: Schedules, beat_tables: Any, row: Row, fields: dict[str, Any], expected: str
) -> None:
    row(**fields)
    assert only(schedules, beat_tables(schedules)) == expected


def test_all_of_a_row_is_moved(schedules: Schedules, beat_tables: Any, row: Row, clock: ManualClock) -> None:
    ends = NOW + timedelta(days=1)
    options = {"queue": "slow", "priority": 3, "headers": '{"tenant": "x"}'}
    row(interval=TEN, args="[1]", kwargs='{"b": 2}', one_off=True, expires=ends, **options)
    row("broken", interval=TEN, args="[")
    row("expiring", interval=TEN, expire_seconds=30, exchange="e", routing_key="k")
    found = results(schedules, beat_tables(schedules))
    assert [result for result, _ in found.values()] == ["put", "refused", "put"]
    definition = must(schedules.find("a").definition)
    assert (definition.args, definition.kwargs, definition.max_runs) == ([1], {"b": 2}, 1)
    assert definition.until == ends.timestamp() * 1000 - 1
    own = {"queue": "slow", "priority": 3, "expires": ends.isoformat()}
    assert definition.options == {**own, "headers": {"tenant": "x", "periodic_task_name": "a"}}
    clock.advance(600)
    schedules.dispatch.run()
    expires = {message.headers["schedule"]: message.headers["expires"] for message in stored_messages(schedules.app)}
    assert expires["a"] == ends.isoformat()
    assert schedules.find("a").next_run is None


def test_without_its_tables_django_celery_beat_cannot_be_read(schedules: Schedules, shop: Path) -> None:
    from redis_queue.contrib.django.periodic_tasks import periodic_tasks

    del shop
    with pytest.raises(ConfigurationError, match="django_celery_beat"):
        list(periodic_tasks(schedules))


@pytest.fixture
def run(durable: DurableTasks) -> Callable[..., Result]:
    """Run one of the two commands."""

    def run(command: Any, *arguments: str, **options: Any) -> Result:
        place = SimpleNamespace(app=durable.app)
        return CliRunner().invoke(command, arguments, obj=place, env={"COLUMNS": "160"}, **options)

    return run


def test_the_commands(schedules: Schedules, run: Callable[..., Result], client: redis.Redis, tmp_path: Path) -> None:
    save(schedules.app, "a", schedule(600), NOW - timedelta(minutes=3))
    hostile(client, name="b", task=7)
    client.set("redbeat::lock", "x")
    dry = run(import_schedules, "--from", "redbeat", "--dry-run", "--utc")
    assert "2026-06-10 10:07:30" in dry.stdout
    assert "Stop the old beat" in dry.stdout
    assert "holds redbeat's lock" in dry.stderr
    assert schedules.list() == []
    done = run(import_schedules, "--from", "redbeat", "--json")
    assert json.loads(done.stdout)["put"] == 1
    assert "Do not start the old beat again" in run(import_schedules, "--from", "redbeat").stdout
    file = tmp_path / "schedules.json"
    assert "1 exported" in run(export_schedules, str(file)).stderr
    assert json.loads(file.read_text()) == json.loads(run(export_schedules).stdout)
    schedules.delete("a")
    assert run(import_schedules, "--from", "file", str(file)).exit_code == 0
    assert schedules.find("a").next_run == NOW + timedelta(minutes=7)
    assert "import" in {line.verb for line in Audit(client, "redis_queue").last()}


def test_wrong_arguments_of_the_commands(run: Callable[..., Result], client: redis.Redis, schedules: Schedules) -> None:
    assert run(import_schedules, "--from", "cron").exit_code == 2
    assert run(import_schedules, "--from", "file", "--url", "redis://x").exit_code == 2
    assert run(import_schedules, "--from", "file", input="{}").exit_code == 2
    empty = run(import_schedules, "--from", "redbeat")
    assert (empty.exit_code, "there are no schedules" in empty.stdout) == (0, True)
    schedules.put("a", 60, "shop.build")
    client.hset(schedules.store._keys.schedules, "a", "garbage")
    bad = run(export_schedules)
    assert (bad.exit_code, "a: a definition that is not JSON" in bad.stderr) == (1, True)
