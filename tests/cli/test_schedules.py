"""`redis-queue schedules`: lists periodic tasks, changes them, and sends runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue
from redis_queue.celery.message.entry import content_of
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.schedules.declaration import Declaration
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.operate.audit import Audit
from tests.support.cli.commands import NOW, Run
from tests.support.clock import Clock
from tests.support.store.stage import differences, snapshot
from tests.support.wait import must

PUT = ("schedules", "put", "hourly", "--rules", "0 * * * *", "--task", "shop.report")


@pytest.fixture(autouse=True)
def known_task(app: Celery) -> None:
    @app.task(name="shop.report", shared=False)
    def report(*args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def sent(queue: DelayQueue) -> list[tuple[str, str]]:
    """Return the schedule and the due time of each stored run."""
    contents = [content_of(entry) for entry in queue.list(limit=500) if entry.id != "data"]
    headers = [one.headers for one in contents if isinstance(one, Envelope)]
    return sorted((str(one["schedule"]), str(one["scheduled_for"])) for one in headers if "schedule" in one)


def told(run: Run, *line: str) -> dict[str, Any]:
    """Return what a command prints as JSON."""
    done = run(*line, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names(run: Run, *options: str) -> list[str]:
    return [row["name"] for row in told(run, "schedules", "list", *options)["schedules"]]


class TestList:
    def test_shown_figures_are_those_of_the_store(self, run: Run, schedules: Schedules) -> None:
        rows = {row["name"]: row for row in told(run, "schedules", "list")["schedules"]}
        for schedule in schedules.list():
            row = rows[schedule.name]
            assert (row["runs"], row["failed"], row["paused"]) == (schedule.runs, schedule.failed, schedule.paused)
            assert row["skipped"] == {reason: schedule.skipped.get(reason, 0) for reason in row["skipped"]}
            assert row["next_run"] == (schedule.next_run and schedule.next_run.isoformat())
        assert rows["nightly"]["last_run"] == {
            "id": "run-1",
            "due": "2029-12-31T01:46:40+00:00",
            "sent_at": "2029-12-31T01:46:42.500000+00:00",
            "late": 2.5,
            "outcome": "succeeded",
        }
        # A person sent it.
        assert rows["once"]["last_run"]["late"] is None

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ((), ["broken", "nightly", "once", "poll"]),
            (("--match", "shop.re"), ["nightly"]),
            (("--match", "on"), ["once"]),
            (("--state", "active"), ["nightly"]),
            (("--state", "paused"), ["poll"]),
            (("--state", "over"), ["once"]),
            (("--state", "unreadable"), ["broken"]),
            (("--match", "poll", "--state", "active"), []),
        ],
    )
    def test_a_part_of_a_name_and_a_state(
        self, run: Run, schedules: Schedules, options: Sequence[str], expected: list[str]
    ) -> None:
        assert sorted(names(run, *options)) == expected

    def test_without_a_match_it_says_how_many_were_searched(self, run: Run, schedules: Schedules) -> None:
        done = run("schedules", "list", "--match", "shop.reprot")
        assert done.stdout.startswith("no match among 4 schedules")
        assert "did you mean 'shop.report'" in done.stdout
        assert run("schedules", "list", "--match", "on", "--state", "paused").stdout.startswith("no match among 4")

    def test_without_schedules_it_is_one_line(self, run: Run, client: redis.Redis) -> None:
        assert run("schedules", "list").stdout.startswith("no schedules in")

    def test_other_programs_may_have_written_anything(
        self, run: Run, schedules: Schedules, client: redis.Redis
    ) -> None:
        root = "{redis_queue:delay:scheduled:0}:schedules:"
        for name in (b"\xff\x1b[2J", b"n" * 300, b"nothing"):
            client.zadd(f"{root}looks", {name: NOW})
        client.hset(f"{root}states", b"nothing", b"\xff")
        client.hset(
            f"{root}events", mapping={b"nothing": b"\xff\nsent x", b"nightly": "sent 1 a\x1b 2 2 2 " + "x" * 400}
        )
        done = run("schedules", "list")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.replace("\n", "").isprintable()
        assert len(names(run, "--state", "unreadable")) == 4
        assert run("schedules", "show", "nothing").exit_code == 0
        assert run("schedules", "show", "nightly").exit_code == 0


class TestPut:
    def test_it_stores_all_that_is_given(self, run_in_app: Run, schedules: Schedules, client: redis.Redis) -> None:
        options = {
            "--rules": "every 10 s; 30 2 * * *",
            "--args": "[1]",
            "--kwargs": '{"a": null}',
            "--timezone": "Europe/Berlin",
            "--queue": "reports",
            "--missed": "all",
            "--window": "2h",
            "--overlap": "queue",
            "--jitter": "5s",
            "--expires": "1h",
            "--until": "2030-02-01T00:00Z",
            "--max-runs": "7",
            "--pause-after-failures": "3",
            "--exclude": "2030-01-06, 2030-01-05",
        }
        line = [word for pair in options.items() for word in pair]
        row = told(run_in_app, "schedules", "put", "all", "--task", "shop.report", *line)
        assert (row["name"], row["rules"], row["next_run"]) == (
            "all",
            "every 10 s; 30 2 * * *",
            "2030-01-01T00:00:10+00:00",
        )
        found = must(schedules.find("all").definition)
        assert (found.args, found.kwargs, found.options) == ([1], {"a": None}, {"queue": "reports"})
        # More people read the audit than may see arguments.
        (line_of_audit,) = Audit(client, "redis_queue").last()
        assert ", args, kwargs, timezone Europe/Berlin, queue reports" in line_of_audit.detail
        assert (found.timezone, found.missed, found.overlap) == ("Europe/Berlin", "all", "queue")
        assert (found.window, found.jitter, found.expires) == (7_200_000, 5000, 3_600_000)
        assert (found.until, found.max_runs, found.pause_after_failures) == (NOW + 31 * 86_400_000, 7, 3)
        assert found.exclude == ["2030-01-05", "2030-01-06"]

    def test_a_dry_run_shows_what_changes_and_the_next_runs(
        self, run_in_app: Run, schedules: Schedules, client: redis.Redis
    ) -> None:
        before = snapshot(client)
        line = ("schedules", "put", "nightly", "--rules", "every 1h", "--task", "shop.reprot", "--dry-run")
        done = run_in_app(*line)
        assert (done.exit_code, done.stdout) == (0, "1 to be stored\n")
        assert differences(before, snapshot(client)) == []
        assert "the app has no task 'shop.reprot'" in done.stderr.lower()
        assert "did you mean 'shop.report'?" in done.stderr
        rows = [line.split("  ")[0] for line in done.stderr.splitlines()]
        assert {"rules", "task", "kwargs", "options", "timezone", "overlap", "max runs"} <= set(rows)
        assert "missed" not in rows
        expected = ", ".join(f"2030-01-01 0{hour}:00:00 UTC" for hour in (1, 2, 3))
        assert f"Next runs: {expected}." in done.stderr

    def test_the_result_in_words_is_the_next_run(self, run_in_app: Run, schedules: Schedules) -> None:
        done = run_in_app(*PUT)
        assert (done.stdout, done.stderr) == ("hourly: 0 * * * *. Next run: 2030-01-01 01:00:00 UTC\n", "")

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (("--rules", "0 25 * * *"), "0 25 * * *"),
            (("--rules", "; ;"), "must be 1 to 10 rules"),
            (("--args", "{}"), "must be a JSON array"),
            (("--kwargs", "x"), "must be JSON"),
            (("--timezone", "Europe/Berlim"), "did you mean 'Europe/Berlin'"),
            (("--missed", "none"), "must be one of latest, all, skip"),
            (("--window", "soon"), "must be a span like 90s"),
            (("--jitter", "2030-01-01T00:00Z"), "must be a span"),
            (("--expires", "-1h"), "must be >= 0"),
            (("--until", "2029-01-01T00:00Z"), "must be later than now"),
            (("--max-runs", "0"), "must be a whole number"),
            (("--max-runs", "9" * 30), "must be a whole number"),
            (("--exclude", "christmas"), "must be only dates"),
            (("--missed", "all", "--expires", "next"), "missed runs would expire"),
        ],
    )
    def test_invalid_values_are_one_error_and_store_nothing(
        self, run_in_app: Run, schedules: Schedules, client: redis.Redis, options: Sequence[str], error: str
    ) -> None:
        before = snapshot(client)
        done = run_in_app(*PUT, *options)
        assert done.exit_code == 2
        assert error in " ".join(done.stderr.split())
        assert differences(before, snapshot(client)) == []

    def test_a_schedule_of_the_code_is_not_replaced(self, run_in_app: Run, schedules: Schedules, app: Celery) -> None:
        app.conf.beat_schedule = {"hourly": {"task": "shop.report", "schedule": 60}}
        assert Declaration(schedules).make().changed == ["hourly"]
        done = run_in_app(*PUT)
        assert (done.exit_code, "is in the app's beat_schedule" in done.stderr) == (2, True)

    def test_without_an_app_it_is_an_error(self, run: Run, schedules: Schedules) -> None:
        for line in (PUT, ("schedules", "run", "nightly"), ("schedules", "backfill", "nightly", "--start", "-1h")):
            done = run(*line)
            assert (done.exit_code, "name it with -A APP" in done.stderr) == (2, True)


class TestPause:
    def test_until_a_time_and_until_resumed(self, run: Run, schedules: Schedules, clock: Clock) -> None:
        done = run("schedules", "pause", "nightly", "--until", "2h", "--reason", "a move")
        assert done.stdout == "nightly: paused until 2030-01-01 02:00:00 UTC\n"
        assert schedules.events("nightly")[0].text == "a move"
        assert told(run, "schedules", "pause", "nightly")["pause_ends"] is None
        assert (schedules.find("nightly").paused, schedules.find("nightly").pause_ends) == (True, None)
        done = run("schedules", "resume", "nightly")
        assert done.stdout == "nightly: 30 2 * * *. Next run: 2030-01-01 02:30:00 UTC\n"

    def test_times_are_those_of_the_zone_that_was_chosen(
        self, run: Run, run_in_app: Run, schedules: Schedules, local_zone: Callable[[str], None]
    ) -> None:
        local_zone("Asia/Tokyo")
        pause = ("schedules", "pause", "nightly", "--until", "2h")
        for options, tokyo, utc in (
            (PUT, "Next run: 2030-01-01 10:00:00 JST", "Next run: 2030-01-01 01:00:00 UTC"),
            ((*PUT, "--queue", "x", "--dry-run"), "Next runs: 2030-01-01 10:00:00 JST, ", "2030-01-01 01:00:00 UTC, "),
            (pause, "paused until 2030-01-01 11:00:00 JST", "paused until 2030-01-01 02:00:00 UTC"),
        ):
            run_it = run_in_app if "put" in options else run
            for more, expected in (((), tokyo), (("--utc",), utc)):
                done = run_it(*options, *more)
                assert expected in done.stdout + done.stderr

    def test_the_next_runs_of_a_paused_one_lie_in_the_future(
        self, run: Run, schedules: Schedules, clock: Clock
    ) -> None:
        assert run("schedules", "pause", "nightly").exit_code == 0
        clock.forward(3 * 86_400)
        assert "due (UTC)\n2030-01-04 01:30:00\n" in run("schedules", "next", "nightly", "-n", "2").stdout

    def test_runs_of_the_pause_are_skipped_or_count_as_missed(
        self, run: Run, schedules: Schedules, tasks: DelayQueue, clock: Clock
    ) -> None:
        run("schedules", "pause", "nightly")
        clock.forward(30 * 3600)
        assert run("schedules", "resume", "nightly", "--catch-up").exit_code == 0
        schedules.dispatch.run()
        assert sent(tasks) == [("nightly", "2030-01-02T01:30:00+00:00")]
        run("schedules", "pause", "nightly")
        clock.forward(24 * 3600)
        run("schedules", "resume", "nightly")
        assert told(run, "schedules", "show", "nightly")["skipped"]["paused"] == 1

    def test_a_time_of_the_past_and_an_unknown_name(self, run: Run, schedules: Schedules) -> None:
        done = run("schedules", "pause", "nightly", "--until", "-1h")
        assert (done.exit_code, "must be later than now" in done.stderr) == (2, True)
        done = run("schedules", "pause", "nihgtly")
        assert (done.exit_code, "did you mean 'nightly'?" in done.stderr) == (2, True)
        done = run("schedules", "pause", "broken")
        assert (done.exit_code, "a definition of a newer version" in done.stderr) == (2, True)


def test_run_sends_one_at_once(run_in_app: Run, schedules: Schedules, tasks: DelayQueue) -> None:
    done = run_in_app("schedules", "run", "nightly")
    (event, *_) = schedules.events("nightly")
    assert done.stdout == f"sent as task {event.id}\n"
    assert sent(tasks) == [("nightly", "2030-01-01T00:00:00+00:00")]
    assert told(run_in_app, "schedules", "show", "nightly")["runs"] == schedules.find("nightly").runs == 2


class TestBackfill:
    LINE = ("schedules", "backfill", "nightly", "--start", "2029-12-25T00:00Z", "--end", "2029-12-28T00:00Z")
    DUES = ("2029-12-25T01:30:00+00:00", "2029-12-26T01:30:00+00:00", "2029-12-27T01:30:00+00:00")

    def test_it_tells_how_many_it_sends_and_sends_each_once(
        self, run_in_app: Run, schedules: Schedules, tasks: DelayQueue
    ) -> None:
        assert run_in_app(*self.LINE, "--dry-run").stdout == "3 to be sent\n"
        assert sent(tasks) == []
        done = run_in_app(*self.LINE)
        assert (done.exit_code, "Send 3 runs of nightly? There is no terminal" in done.stderr) == (2, True)
        assert run_in_app(*self.LINE, "--yes").stdout == "3 sent\n"
        assert sent(tasks) == [("nightly", due) for due in self.DUES]
        again = run_in_app(*self.LINE, "--yes")
        assert (again.exit_code, again.stdout) == (1, "0 sent\n")
        assert "No run was due in this time that was not sent" in again.stderr

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (("--start", "1h"), "must be before the end"),
            (("--start", "-1h", "--end", "-2h"), "must be before the end"),
            (("--start", "2029-12-25"), "must have a time zone"),
            (("--start", "-3000d"), "more than 1,000 runs"),
        ],
    )
    def test_an_invalid_time_is_an_error(
        self, run_in_app: Run, schedules: Schedules, options: Sequence[str], error: str
    ) -> None:
        done = run_in_app("schedules", "backfill", "nightly", *options)
        assert done.exit_code == 2
        assert error in " ".join(done.stderr.split())


def test_delete_asks_and_an_unreadable_one_can_be_deleted(run: Run, schedules: Schedules) -> None:
    done = run("schedules", "delete", "broken")
    assert (done.exit_code, "Delete the schedule broken? There is no terminal" in done.stderr) == (2, True)
    for name in ("broken", "nightly"):
        assert run("schedules", "delete", name, "--yes").stdout == "1 deleted\n"
    assert sorted(names(run)) == ["once", "poll"]


def test_next_shows_as_many_as_asked(run: Run, schedules: Schedules) -> None:
    rows = told(run, "schedules", "next", "nightly", "-n", "500")["next_runs"]
    assert [row["due"] for row in rows] == [at.isoformat() for at in schedules.next_runs("nightly", 500)]
    assert len(rows) == 8
    assert run("schedules", "next", "once").stdout.startswith("no more runs in")


def test_declare_tells_what_changed_and_what_was_refused(run_in_app: Run, schedules: Schedules, app: Celery) -> None:
    app.conf.beat_schedule = {
        "hourly": {"task": "shop.report", "schedule": 3600},
        "poll": {"task": "shop.report", "schedule": 10},
    }
    done = run_in_app("schedules", "declare")
    assert (done.exit_code, done.stdout) == (1, "1 changed: hourly\n")
    assert "poll: schedule 'poll' was put at run time" in done.stderr
    schedules.delete("poll")
    app.conf.beat_schedule = {"hourly": {"task": "shop.report", "schedule": 60}}
    assert told(run_in_app, "schedules", "declare") == {
        "changed": ["hourly"],
        "deleted": [],
        "refused": {},
        "newer": None,
    }
    assert run_in_app("schedules", "declare").stdout == "nothing to change\n"
    app.conf.beat_schedule = {}
    assert run_in_app("schedules", "declare").stdout == "1 deleted: hourly\n"
    app.conf.beat_schedule = {"hourly": {"task": "shop.report", "schedule": 60}}
    done = run_in_app("schedules", "declare")
    assert (done.exit_code, "is newer: nothing was changed; for a rollback, add --force" in done.stderr) == (1, True)
    assert run_in_app("schedules", "declare", "--force").stdout == "1 changed: hourly\n"


def test_one_of_beat_schedule_is_deleted_by_force_only(run: Run, run_in_app: Run, app: Celery) -> None:
    app.conf.beat_schedule = {"hourly": {"task": "shop.report", "schedule": 3600}}
    assert run_in_app("schedules", "declare").exit_code == 0
    assert run("schedules", "pause", "hourly").exit_code == 0
    for arguments in (["--yes"], ["--dry-run"]):
        refused = run("schedules", "delete", "hourly", *arguments)
        assert (refused.exit_code, "remove it there, or pause it" in refused.stderr) == (2, True)
    assert run_in_app("schedules", "declare").stdout == "nothing to change\n"
    done = run("schedules", "delete", "hourly", "--force", "--yes")
    assert (done.exit_code, done.stdout) == (0, "1 deleted\n")


def test_every_change_has_a_line_in_the_audit(
    run: Run, run_in_app: Run, schedules: Schedules, app: Celery, client: redis.Redis
) -> None:
    assert run_in_app(*PUT, "--overlap", "skip").exit_code == 0
    for line in ("pause hourly --until 1h --reason x", "resume hourly", "delete hourly --yes"):
        assert run("schedules", *line.split()).exit_code == 0
    for line in ("run nightly", "backfill nightly --start 2029-12-25T00:00Z --end 2029-12-26T00:00Z --yes"):
        assert run_in_app("schedules", *line.split()).exit_code == 0
    found = [(one.verb, one.queue, one.count, one.detail) for one in reversed(Audit(client, "redis_queue").last())]
    assert found == [
        ("schedule-put", "hourly", 1, "rules 0 * * * *, task shop.report, overlap skip"),
        ("schedule-pause", "hourly", 1, "until 1 h from now, reason x"),
        ("schedule-resume", "hourly", 1, ""),
        ("schedule-delete", "hourly", 1, ""),
        ("schedule-run", "nightly", 1, ""),
        ("schedule-backfill", "nightly", 1, "from 2029-12-25 00:00:00 UTC to 2029-12-26 00:00:00 UTC"),
    ]


def test_an_equal_schedule_is_left_alone(run_in_app: Run, schedules: Schedules) -> None:
    run_in_app(*PUT)
    before = schedules.store.get(["hourly"])
    assert told(run_in_app, *PUT)["next_run"] == "2030-01-01T01:00:00+00:00"
    assert schedules.store.get(["hourly"]) == before
