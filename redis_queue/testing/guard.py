"""DeathGuard: end a child process when this process dies."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = 'read -r _ || { kill -KILL "$1"; rm -rf "$2"; }'


class DeathGuard:
    """End a process and remove its directory if this process dies first, even by SIGKILL.

    A shell waits for the end of a pipe that only this process holds open. PR_SET_PDEATHSIG would need a preexec_fn,
    which may deadlock in a process with threads; it exists on Linux only and already fires when the *thread* that
    started the server ends. A child that was forked without exec holds the pipe, too: the guard then also waits for
    its end.
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
        """End the guard only. Call it before the process is reaped, because then its pid may be reused."""
        self._shell.communicate(b"\n")
