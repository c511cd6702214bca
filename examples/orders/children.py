"""The processes of a run; all of them end with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.orders.errors import FailedError

ROOT = Path(__file__).resolve().parents[2]
WAIT_THEN_RUN = 'read -r _ && exec "$@" </dev/null'


class Child:
    """A process in its own session, so that a Ctrl-C at the terminal reaches only the run.

    It waits for :meth:`begin`, and exits if this process dies before.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str] | None, log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", WAIT_THEN_RUN, "sh", *command],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def begin(self) -> None:
        """Let the process run its command."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(b"\n")

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """The output so far."""
        return self._log.read_text(errors="replace")

    @property
    def ending(self) -> str:
        """A message with its exit code and its last line of output."""
        last = self.output.strip().rpartition("\n")[2]
        return f"{self.name} ended with code {self._process.returncode}: {last or 'it printed nothing'}"

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def freeze(self) -> None:
        """Stop it with SIGSTOP; return when it has stopped or ended."""
        self._process.send_signal(signal.SIGSTOP)
        # WNOWAIT leaves the exit status to Popen.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Continue it after :meth:`freeze`."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it and its children with SIGKILL; no-op if it has ended."""
        if self.running:
            self.kill_group()
            self._process.wait()

    def kill_group(self) -> None:
        """Kill its process group with SIGKILL, even if the process itself has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Children:
    """Start processes, and end them at the end of the ``with`` block.

    Their logs are in *folder*, a temporary one that is deleted at the end unless :meth:`keep_logs` was called. If this
    process dies before, a guard ends them and deletes their keys and files.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redis-queue-demo-"))
        self._kept = False
        self._children: list[Child] = []
        self._ended: set[Child] = set()
        self._left: dict[str, Any] = {"folder": str(self.folder)}
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "examples.orders.guard"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._tell_guard()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.kill()
        if not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(BrokenPipeError):
            self._guard.communicate("{}\n")

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Start *command*; until :meth:`expect_end`, :meth:`check` fails if it ends."""
        child = Child(name, command, env, self.folder / f"{name.replace(' ', '-')}.log")
        self._children.append(child)
        self._tell_guard()
        child.begin()
        return child

    def expect_end(self, child: Child) -> None:
        """Allow *child* to end."""
        self._ended.add(child)

    def check(self) -> None:
        """Raise FailedError if a process ended unexpectedly."""
        for child in self._children:
            if child not in self._ended and not child.running:
                child.kill_group()
                raise FailedError(child.ending)

    def finish(self, children: Sequence[Child], patience: float) -> None:
        """Send SIGTERM to *children*, and kill those that still run after *patience* seconds."""
        give_up = time.monotonic() + patience
        for child in children:
            self.expect_end(child)
            child.terminate()
        while any(child.running for child in children) and time.monotonic() < give_up:
            time.sleep(0.02)
        for child in children:
            child.kill()

    def watch_keys(self, url: str, prefix: str) -> None:
        """Also let the guard delete the keys with *prefix*."""
        self._left |= {"url": url, "prefix": prefix}
        self._tell_guard()

    def keep_logs(self) -> Path:
        """Keep the logs and return their folder."""
        self._kept = True
        return self.folder

    def _tell_guard(self) -> None:
        assert self._guard.stdin is not None  # noqa: S101 - for the type checker
        self._left["groups"] = [child.pid for child in self._children if child.running]
        # Without the guard the run still ends its children itself.
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(json.dumps(self._left) + "\n")
            self._guard.stdin.flush()
