"""Run the blocks of a page as a reader would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from redis_queue.testing.server import DeathGuard
from tests.docs.blocks import Block, matches
from tests.support.celery.processes import CeleryProcess
from tests.support.wait import wait_until

TIMEOUT = 120
"""Time limit of a block in seconds. The first process in a new environment compiles all that it imports."""

READY = ("ready.", "dashboard on", "Running on", "Starting development server")


class ShopApp:
    """Commands of Celery for the app in ``shop.py`` in *directory*."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def celery(self, *arguments: str) -> CeleryProcess:
        return CeleryProcess("--workdir", str(self.directory), "-A", "shop", *arguments, environment={}, beat=False)

    def worker(self, name: str = "one", concurrency: int = 4, pool: str = "threads") -> CeleryProcess:
        options = ("--pool", pool, "--concurrency", str(concurrency), "--loglevel", "INFO", "-n", f"{name}@%h")
        return self.celery("worker", *options, "--without-mingle", "--without-gossip")


class Background:
    """A command that a reader starts in another terminal; it is ready once its output has one of the texts *ready*."""

    def __init__(
        self, command: str, directory: Path, environment: Mapping[str, str], ready: Sequence[str] = READY
    ) -> None:
        self._ready = ready
        self._log = directory / f"{abs(hash(command))}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard = DeathGuard(self._process.pid, directory / "nothing")
        self._started = self.output
        try:
            wait_until(self._is_ready, description=f"{command} to be ready")
        except BaseException:
            self.kill()
            raise

    @property
    def output(self) -> str:
        """The output so far, of this process and of earlier ones with the same command."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill it and its children with SIGKILL."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.end()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)
        self.end()

    def end(self) -> None:
        """Wait until a killed process and its children have ended."""
        self._guard.dismiss()
        self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.output
        return any(word in self.output[len(self._started) :] for word in self._ready)


class Reader:
    """Run the blocks of a page in *directory*, with *environment*.

    *instead* maps addresses and ports on the page to those of the test.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str], instead: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {**environment, "PYTHONUNBUFFERED": "1", "C_FORCE_ROOT": "1"}
        self._instead = instead
        self._running: dict[str, Background] = {}
        self._said = ""

    def do(self, block: Block) -> None:
        """Run one block, or compare it with the output of the block before."""
        text = block.text
        for written, meant in self._instead.items():
            text = text.replace(written, meant)
        if block.mark == "until":
            Background(text, self._directory, self._environment, [block.detail]).interrupt()
        elif block.mark == "background":
            self._running[block.text] = background = Background(text, self._directory, self._environment)
            self._said = background.output
        elif block.mark == "kills":
            background = self._running.pop(f"{block.detail}\n")
            self.run(["/bin/sh", "-ec", text])
            background.end()
        elif block.mark == "output of":
            background = self._running[f"{block.detail}\n"]
            wait_until(lambda: matches(text, background.output), description=text)
        elif block.mark != "not run":
            self._do_now(block, text)

    def _do_now(self, block: Block, text: str) -> None:
        if block.file:
            path = self._directory / block.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif block.language == "text":
            assert matches(text, self._said), f"line {block.line}: expected\n{text}\nfound\n{self._said}"
        else:
            self._said = self.run(["python", "-c", text] if block.language == "python" else ["/bin/sh", "-ec", text])

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self._directory, env=self._environment, capture_output=True, text=True, timeout=TIMEOUT
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
        return done.stdout

    def end(self) -> None:
        for background in self._running.values():
            background.kill()
