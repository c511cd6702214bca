"""Child processes of a benchmark, ended with their own children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
STOP_WITHIN = 15.0


@contextlib.contextmanager
def child(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* in the checkout with its output in *log*; at the end, stop it and its remaining children."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_for_file(path: Path, process: subprocess.Popen[bytes], log: Path, *, within: float = 30.0) -> None:
    """Wait until *path* exists; raises RuntimeError with the end of *log* if *process* ends or takes too long."""
    deadline = time.monotonic() + within
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"a worker did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
