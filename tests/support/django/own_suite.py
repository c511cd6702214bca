"""Run Django's own tests of task backends with RedisQueueBackend: ``python -m … FOLDER MODULE REDIS_URL``.

FOLDER has the tests of Django's source distribution. The backends that they are about are replaced before they are
imported: the dummy one by `Stored`, which sends to nobody, and the immediate one by `Finished`, whose tasks a worker in
this process runs. Prints one JSON object: how many tests ran, and which names of MISFITS the module has.
"""

from __future__ import annotations

import json
import sys
import unittest
from copy import deepcopy
from typing import Any, Final

from celery import Celery
from celery.contrib.testing.worker import start_worker

_DUMMY: Final = "test_dummy_backend.DummyBackendTestCase"
_IMMEDIATE: Final = "test_immediate_backend.ImmediateBackendTestCase"

MISFITS: Final = {
    f"{_DUMMY}.test_refresh_result": "changes the list in which the dummy backend keeps its results",
    f"{_DUMMY}.test_refresh_result_async": "changes the list in which the dummy backend keeps its results",
    f"{_IMMEDIATE}.test_cannot_get_result": "results can be read",
    f"{_IMMEDIATE}.test_cannot_refresh_result": "results can be read",
    f"{_IMMEDIATE}.test_cannot_pass_run_after": "run_after is supported",
    f"{_IMMEDIATE}.test_throws_keyboard_interrupt": "an interrupt ends the worker, not the caller",
    f"{_IMMEDIATE}.test_catches_exception": "sys.exit() fails the task with a RuntimeError, not with a SystemExit",
}
"""Tests that do not fit, and why. Those of custom backends are about other backends."""


def suite_of(module: str) -> tuple[unittest.TestSuite, list[str]]:
    """Return the tests of *module* that fit, and the names of the others."""
    fitting, misfits = unittest.TestSuite(), []
    cases: Any = unittest.defaultTestLoader.loadTestsFromName(f"tasks.{module}")
    for case in cases:
        for test in case:
            name = test.id().removeprefix("tasks.")
            if name in MISFITS:
                misfits.append(name)
            else:
                fitting.addTest(test)
    return fitting, misfits


def main(folder: str, module: str, url: str) -> None:
    import django
    from django.conf import settings

    sys.path.insert(0, folder)
    settings.configure(
        INSTALLED_APPS=[],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
    )
    django.setup()
    from django.tasks.backends import dummy, immediate

    from redis_queue.celery import DurableTasks
    from redis_queue.celery.store import Store
    from redis_queue.contrib.django.task_backend import RedisQueueBackend
    from tests.support.wait import wait_until

    app = Celery("suite", broker=url, backend=url)
    app.set_default()
    DurableTasks(app)

    class Stored(RedisQueueBackend):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.results: list[Any] = []

        def enqueue(self, *given: Any, **named: Any) -> Any:
            result = super().enqueue(*given, **named)
            self.results.append(deepcopy(result))
            return result

        def clear(self) -> None:
            for key in Store.of(app).client.scan_iter("celery-task-meta-*"):
                Store.of(app).client.delete(key)
            self.results.clear()

        def _options(self, result: Any) -> dict[str, Any]:
            return {**super()._options(result), "queue": "nobody"}

    class Finished(RedisQueueBackend):
        def enqueue(self, *given: Any, **named: Any) -> Any:
            result = super().enqueue(*given, **named)

            def is_finished() -> bool:
                result.refresh()
                return bool(result.is_finished)

            wait_until(is_finished, description="the end of the task")
            return result

    dummy.DummyBackend, immediate.ImmediateBackend = Stored, Finished
    suite, misfits = suite_of(module)
    with start_worker(app, perform_ping_check=False):
        done = unittest.TextTestRunner(stream=sys.stderr).run(suite)
    print(json.dumps({"run": done.testsRun, "misfits": misfits}))  # noqa: T201
    sys.exit(not done.wasSuccessful())


if __name__ == "__main__":
    main(*sys.argv[1:])
