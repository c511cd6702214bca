"""No server outlives the test process."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = 'read -r _ || { kill -KILL "$1"; rm -rf "$2"; }'


class DeathGuard:
    """Ends a process and removes its directory if this process dies first, even by SIGKILL.

    A shell waits for the end of a pipe that only this process holds open. The kernel's own way, PR_SET_PDEATHSIG, would
    need a preexec_fn, which may deadlock in a process with threads, exists on Linux only and already fires when the
    *thread* that started the server ends. A process forked from this one without exec holds the pipe as well: the guard
    then waits for that one too.
    """

    def __init__(self, pid: int, directory: Path) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
            ["/bin/sh", "-c", SCRIPT, "guard", str(pid), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is for the tests only
        )

    def dismiss(self) -> None:
        """End the guard and leave the process alone; to be called before the process is reaped and its pid free."""
        self._shell.communicate(b"\n")
