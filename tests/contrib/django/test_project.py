"""The example shop as its users run it: checks, commands and views, also in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state

from redis_queue import Flow
from redis_queue.celery import DurableTasks
from tests.support.celery.shared_tasks import without_shared_tasks
from tests.support.django.project import SETTINGS, environment, rows, write


def manage(redis_url: str, database: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``manage.py`` of the shop."""
    return subprocess.run(
        [sys.executable, "-m", "examples.shop", *arguments],
        env={**os.environ, **environment(redis_url, database), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_check_finds_nothing_in_the_shop(redis_url: str, shop: Path) -> None:
    done = manage(redis_url, shop, "check")
    assert (done.returncode, done.stdout) == (0, "System check identified no issues (0 silenced).\n"), done.stderr


def test_migrations_are_complete(shop: Path) -> None:
    from django.core.management import call_command

    del shop
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            "CELERY_REDIS_QUEUE_DELAY_QEUE = 'x'\nREDIS_QUEUE_OVERDUE = 'run'",
            [
                "(redis_queue.E002) unknown setting CELERY_REDIS_QUEUE_DELAY_QEUE: "
                "did you mean CELERY_REDIS_QUEUE_DELAY_QUEUE?",
                "(redis_queue.W003) The setting REDIS_QUEUE_OVERDUE is not read.",
                "HINT: Write CELERY_REDIS_QUEUE_OVERDUE.",
            ],
        ),
        (
            "CELERY_REDIS_QUEUE_FLOW = {'shop.remid': {'limit': 1}}",
            ["(redis_queue.E003) CELERY_REDIS_QUEUE_FLOW['shop.remid']: unknown task"],
        ),
    ],
)
def test_check_finds_a_wrong_setting(
    redis_url: str, shop: Path, tmp_path: Path, settings: str, told: list[str]
) -> None:
    (tmp_path / "wrong.py").write_text(f"from examples.shop.settings import *\n{settings}\n")
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    done = manage(redis_url, shop, "check", DJANGO_SETTINGS_MODULE="wrong", PYTHONPATH=path)
    assert done.returncode == 1
    assert [line for line in told if line not in done.stderr] == []


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"dispatch_batch": 0, "url": "redis://localhost"}, ["redis_queue.E002"]),
        ({"url": "http://localhost"}, ["redis_queue.E002"]),
        ({}, ["redis_queue.E002"]),
        ({"url": "redis://localhost"}, []),
    ],
)
def test_the_settings_of_the_app_are_checked(
    shop: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], found: list[str]
) -> None:
    from redis_queue.contrib.django import checks

    del shop
    app = Celery("other", broker="amqp://localhost", set_as_current=False)
    app.conf.update({f"redis_queue_{name}": value for name, value in settings.items()})
    monkeypatch.setattr(checks, "celery_app", lambda: app)
    assert [message.id for message in checks.check_settings()] == [*found, "redis_queue.W002"]


@pytest.fixture
def check_settings(shop: Path) -> Any:
    """The checks of the app; Django must be configured to import them."""
    from redis_queue.contrib.django.checks import check_settings

    del shop
    return check_settings


@pytest.fixture
def project(shop: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Celery]:
    """The app of a project, with its fixup for Django; its tasks are in a module that is not imported yet."""
    from redis_queue.contrib.django import checks

    del shop
    without_shared_tasks(monkeypatch)
    (tmp_path / "late_tasks.py").write_text(LATE_TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", SETTINGS)
    # Celery makes the first app with the fixup the default one.
    monkeypatch.setattr(_state, "default_app", _state.default_app)
    # Port 1 answers nobody: the checks connect to no server.
    app = Celery("project", broker="redis://localhost:1", include=["late_tasks"], set_as_current=False)
    app.conf.task_default_queue = "mail"
    DurableTasks(app)
    monkeypatch.setattr(checks, "celery_app", lambda: app)
    monkeypatch.setitem(sys.modules, "late_app", SimpleNamespace(apps=[app]))
    yield app
    sys.modules.pop("late_tasks", None)


LATE_TASKS = """
import late_app

app = late_app.apps.pop()  # a second import fails

@app.task(name="dj.t", shared=False)
def t(a): ...
"""


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"flow": {"dj.typo": {"limit": 1}}}, "CELERY_REDIS_QUEUE_FLOW['dj.typo']: unknown task: did you mean 'dj.t'?"),
        (
            {"flow": {"queue:mail": {"fair": "{b}"}}},
            "CELERY_REDIS_QUEUE_FLOW['queue:mail']: fair='{b}': no task of this app takes the argument 'b': "
            "known are 'a'",
        ),
        (
            {"unique": {"dj.t": {"key": "{b}"}}},
            "unique of task dj.t: key='{b}': unknown argument 'b': task dj.t takes a",
        ),
        (
            {"flow": {"queue:maul": {"limit": 1}}},
            "CELERY_REDIS_QUEUE_FLOW['queue:maul']: no task of this app goes to this queue: did you mean 'queue:mail'?",
        ),
        ({"flow": {"dj.t": {"limit": 1, "key": "{a}"}}, "unique": {"dj.t": {"key": "{a}"}}}, None),
    ],
)
def test_flows_are_checked_as_a_worker_does(
    project: Celery, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], error: str | None
) -> None:
    from django.core.checks import run_checks

    project.conf.update({f"redis_queue_{name}": value for name, value in settings.items()})
    calls: list[Any] = []
    monkeypatch.setattr("django.core.checks.run_checks", lambda: calls.append(None))
    for _ in range(2):
        found = [(message.id, message.msg) for message in run_checks(tags=["redis_queue"])]
        kind = "W005" if "goes to" in (error or "") else "E003"
        assert found == ([] if error is None else [(f"redis_queue.{kind}", error)])
    assert not calls, "Celery does not run the checks again"
    assert "CELERY_SKIP_CHECKS" not in os.environ
    # A test may change the settings after the checks.
    assert not {name for name in vars(project) if name.startswith("redis_queue_")}


def test_the_first_run_of_the_checks_may_be_that_of_celery(project: Celery) -> None:
    project.conf.redis_queue_flow = {"dj.typo": {"limit": 1}}
    project.loader.import_default_modules()
    assert "dj.t" in project.tasks


def test_flows_at_decorators_are_checked(check_settings: Any, project: Celery) -> None:
    @project.task(name="dj.charge", shared=False, flow=Flow(limit=1, key="{shop}"))  # type: ignore[untyped-decorator]
    def charge(account: int) -> None:
        """Do nothing."""

    (message,) = check_settings()
    assert message.msg == "flow of task dj.charge: key='{shop}': unknown argument 'shop': task dj.charge takes account"
    charge.flow = "shop"
    (message,) = check_settings()
    assert message.msg == "task dj.charge: flow='shop': must be a redis_queue.Flow"


def test_a_project_without_flows_does_not_import_its_tasks_for_the_checks(check_settings: Any, project: Celery) -> None:
    assert check_settings() == []
    assert "late_tasks" not in sys.modules


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            "from redis_queue import Flow; Flow(limit=-1)",
            ("redis_queue.E003", "limit=-1: must be a whole number from 0 to 1,000,000"),
        ),
        (
            "import no_such_module",
            (
                "redis_queue.W004",
                "The flows cannot be checked, since the tasks cannot be imported: ModuleNotFoundError: "
                "No module named 'no_such_module'",
            ),
        ),
        (
            "from redis_queue import StoreError; raise StoreError('is down')",
            (
                "redis_queue.W004",
                "The flows cannot be checked, since the tasks cannot be imported: StoreError: is down",
            ),
        ),
    ],
)
def test_tasks_that_cannot_be_imported_are_named(
    check_settings: Any, project: Celery, tmp_path: Path, code: str, found: tuple[str, str]
) -> None:
    (tmp_path / "late_tasks.py").write_text(code)
    assert check_settings() == []
    project.conf.redis_queue_flow = {"dj.t": {"limit": 1}}
    assert [(message.id, message.msg) for message in check_settings()] == [found]


def test_tasks_that_cannot_be_made_do_not_end_the_checks(check_settings: Any, project: Celery) -> None:
    project.task(lambda: None, name="dj.unnamed", shared=False, lazy=True)
    (message,) = check_settings()
    assert message.id == "redis_queue.W004"


def test_a_worker_checks_its_flows_itself(check_settings: Any, project: Celery) -> None:
    project.conf.redis_queue_flow = {"dj.typo": {"limit": 1}}
    project.loader.init_worker()
    assert check_settings() == []


def test_an_app_that_is_not_finalized_yet_is_left_alone(check_settings: Any, project: Celery) -> None:
    project.autofinalize = False
    project.conf.redis_queue_flow = {"dj.typo": {"limit": 1}}
    assert check_settings() == []
    assert not project.finalized
    project.finalize()
    assert [message.id for message in check_settings()] == ["redis_queue.E003"]


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ({"CELERY_APP": "examples.nowhere:app"}, ["redis_queue.E001"]),
        ({"CELERY_APP": "os:path"}, ["redis_queue.E001"]),
        ({"CELERY": "examples.shop.celery:app"}, ["redis_queue.E001"]),
        ("examples.shop.celery:app", ["redis_queue.E001"]),
        ({}, ["redis_queue.W001"]),
    ],
)
def test_the_name_of_the_app_is_checked(
    check_settings: Any, monkeypatch: pytest.MonkeyPatch, setting: Any, found: list[str]
) -> None:
    from django.test import override_settings

    # Other tests of this process may have left an app as the current or the default one.
    monkeypatch.setattr(_state._tls, "current_app", None)
    monkeypatch.setattr(_state, "default_app", None)
    with override_settings(REDIS_QUEUE=setting):
        assert [message.id for message in check_settings()] == found


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "examples.shop.celery:ap",
            "module 'examples.shop.celery' has no 'ap'; its Celery app is 'examples.shop.celery:app'",
        ),
        ("os:nothing", "module 'os' has no 'nothing'"),
        ("os", "'os' has no Celery app"),
        ("os:path", "expected a Celery app, got module"),
        ("examples.nowhere:app", "No module named 'examples.nowhere'"),
    ],
)
def test_a_wrong_name_of_the_app_is_explained(check_settings: Any, name: str, error: str) -> None:
    from django.test import override_settings

    with override_settings(REDIS_QUEUE={"CELERY_APP": name}):
        (message,) = check_settings()
    assert str(message.msg).startswith(f"REDIS_QUEUE['CELERY_APP']={name!r}")
    assert str(message.msg).endswith(error)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("REDIS_QUEUE_OVERDUE", "CELERY_REDIS_QUEUE_OVERDUE"),
        ("REDIS_QUEUE_OVERDUES", "CELERY_REDIS_QUEUE_OVERDUE"),
        ("REDIS_QUEUE_OF_ANOTHER_PACKAGE", None),
    ],
)
def test_a_setting_without_celerys_prefix_is_a_warning(check_settings: Any, setting: str, expected: str | None) -> None:
    from django.test import override_settings

    with override_settings(**{setting: "run"}):
        found = [(message.id, message.hint) for message in check_settings()]
    assert found == ([("redis_queue.W003", f"Write {expected}.")] if expected else [])


def test_the_command_equals_that_of_celery(redis_url: str, shop: Path, tables: Any, outbox: Any) -> None:
    with tables.atomic():
        outbox.schedule("shop.remind", countdown=600, task_id="remind-1")
    found = json.loads(manage(redis_url, shop, "redis_queue", "scheduled", "list", "--json").stdout)
    assert [row["id"] for row in found["entries"]] == ["remind-1"]
    assert "scheduled" in manage(redis_url, shop, "redis_queue", "--help").stdout
    assert manage(redis_url, shop, "redis_queue", "scheduled", "show", "nothing").returncode == 1


def test_the_command_takes_the_options_of_manage_py(redis_url: str, shop: Path) -> None:
    options = ("--pythonpath", ".", "--settings=examples.shop.settings")
    done = manage(redis_url, shop, "redis_queue", "stats", "--json", *options, DJANGO_SETTINGS_MODULE="nowhere")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prefix"] == "redis_queue"


def test_call_command_runs_the_command(tables: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from django.core.management import call_command

    del tables
    with pytest.raises(SystemExit) as ended:
        call_command("redis_queue", "stats")
    assert ended.value.code == 0
    assert "prefix" in capsys.readouterr().out


def test_the_relay_command_with_once(redis_url: str, shop: Path, tables: Any) -> None:
    del tables
    for number in range(3):
        write(task_id=f"x{number}")
    done = manage(redis_url, shop, "redis_queue_relay", "--once")
    assert (done.returncode, done.stdout) == (0, "3 relayed, 0 failed\n"), done.stderr
    assert rows() == []
    refused = manage(redis_url, shop, "redis_queue_relay", "--interval", "0")
    assert refused.returncode == 1
    assert "--interval 0" in refused.stderr


def test_views_schedule_and_cancel_with_their_transaction(delayed: Any) -> None:
    from django.test import Client

    from examples.shop.orders.models import Order

    browser = Client(raise_request_exception=False)
    assert browser.post("/orders/", {"item": "tea", "fail": "1"}).status_code == 500
    assert (Order.objects.count(), delayed.count()) == (0, 0)
    number = browser.post("/orders/", {"item": "tea"}).json()["order"]
    assert delayed.get(f"cancel-order-{number}") is not None
    assert browser.post(f"/orders/{number}/pay/").json() == {"order": number, "deadline_taken_out": True}
    assert delayed.count() == 0
