"""Processes for Celery tests: a dispatcher that may kill itself, and real workers."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import Self

from redis_queue.testing.server import DeathGuard
from tests.support.celery.forker import Forker
from tests.support.paths import ROOT
from tests.support.wait import wait_until


class DispatchProcess:
    """A process of `tests.support.celery.dispatch`; see there for *task*."""

    def __init__(self, **task: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.celery.dispatch", json.dumps(task)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_until_ready(self) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the printed number of sent entries."""
        sent, _ = self._process.communicate(timeout=60)
        return self._process.returncode, sent.strip()


FORKER = Forker()


class CeleryProcess:
    """`celery` with the given arguments, run in the repository root; *environment* extends that of the tests.

    It is killed with all its children at the end of `with`, or when the test process dies.
    """

    def __init__(self, *arguments: str, environment: dict[str, str], beat: bool = True) -> None:
        self._arguments = arguments
        self._environment = environment
        self._beat = beat

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="celery-"))
        # Its temporary files are removed with the directory, even if it is killed.
        environment = {**self._environment, "TMPDIR": str(self._directory)}
        # Beat keeps its schedule in a file.
        schedule = ["--schedule", str(self._directory / "schedule")] if self._beat else []
        arguments = [*self._arguments, *schedule]
        self._log.touch()
        self._process = FORKER.start(arguments, environment, self._log) or self._start_afresh(arguments, environment)
        self._guard = DeathGuard(self._process.pid, self._directory)
        return self

    def _start_afresh(self, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "celery", *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __exit__(self, failure: object, *_: object) -> None:
        if failure:
            sys.stderr.write(self.output)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.dismiss()
        self._process.wait(10)
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def output(self) -> str:
        """Return the output so far."""
        return self._log.read_text(errors="replace")

    @contextlib.contextmanager
    def ready(self) -> Iterator[Self]:
        """Run the worker, and wait until it consumes."""
        with self:
            self.wait_for_output("ready.")
            yield self

    def wait_for_output(self, *texts: str, timeout: float = 40.0) -> None:
        def written() -> bool:
            assert self._process.poll() is None, f"ended with code {self._process.returncode}:\n{self.output}"
            return any(text in self.output for text in texts)

        wanted = " or ".join(map(repr, texts))
        wait_until(written, timeout=timeout, description=f"{wanted} in the output of celery")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    def wait(self, *, timeout: float = 60.0) -> int:
        """Wait for the end and return the exit code."""
        return self._process.wait(timeout)

    def request_shutdown(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def finish(self, *, timeout: float = 60.0) -> int:
        """Request a warm shutdown with SIGTERM and return the exit code."""
        self.request_shutdown()
        return self._process.wait(timeout)

    def finish_between_ticks(self) -> int:
        """Like `finish()`, but right after a task has ended: a signal during one may block Celery for half a minute."""
        ended = self.output.count("succeeded in")
        # Late ticks expire; on a busy machine several do.
        wait_until(lambda: self.output.count("succeeded in") > ended, timeout=40, description="the end of a tick")
        return self.finish()

    @property
    def _log(self) -> Path:
        return self._directory / "log"
