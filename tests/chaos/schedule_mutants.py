"""The mutants of schedules that tests with real processes find: the tests that find each, its name, and the fault."""

from __future__ import annotations

from typing import Final

from tests.chaos.edits import lua, py

FOUND_BY_SCHEDULE_TESTS: Final = {
    "tests/celery/schedules/test_processes.py": {
        "send a run of an older state": lua(
            "schedules/change", "local flag = found == before and 1 or 0", "local flag = 1", "command_is_cut"
        ),
        "find due runs by the clock of the host": py(
            "schedules/store.py",
            "self._read(now=self._shard.clock(), limit=limit)",
            'self._read(now=int(__import__("time").time() * 1000), limit=limit)',
            "clock_of_redis",
        ),
        "declare an older version": py(
            "celery/schedules/declaration.py", "if version in versions[1:] and not force:", "if False:", "old_version"
        ),
        "let stock beat send what workers send": py(
            "celery/dispatch/beat.py", "        stopped.set()\n", "        del stopped\n", "stock_beat_ends"
        ),
        "stop at a schedule that cannot be sent": py(
            "celery/schedules/runs.py",
            "except Exception as error:  # it must not keep",
            "except KeyError as error:  # it must not keep",
            "bad_schedule",
        ),
        "never pause what fails": py(
            "schedules/store.py",
            "if failed and most is not None and streak >= most and not state.is_paused:",
            "if False:",
            "runs_fail",
        ),
        "let runs overlap": py(
            "schedules/state.py",
            'if wanted and definition.overlap != "allow" and state.active != NONE',
            'if False and definition.overlap != "allow" and state.active != NONE',
            "Overlap",
        ),
        "wait for ever for a run of a dead worker": py(
            "celery/schedules/runs.py",
            "return self._workers.find_running(state.active) is None",
            "return False",
            "killed_worker",
        ),
        "send one of several missed runs": py(
            "schedules/state.py", '    if definition.missed == "all":\n', "    if False:\n", "missed_all"
        ),
        "send all runs that were missed": py(
            "schedules/state.py",
            '    if definition.missed == "all":\n',
            "    if True:\n",
            "latest_run",
        ),
    },
    "tests/celery/schedules/test_dispatch.py": {
        "look for schedules that no app has": py(
            "celery/dispatch/loop.py",
            "return math.inf if self._durable is None else max(",
            "return 0.0 if self._durable is None else max(",
            "without_schedules",
        ),
        "look no more at what a newer version wrote": py(
            "celery/schedules/runs.py", "now + UNREADABLE", "10**14", "newer_version"
        ),
    },
}
