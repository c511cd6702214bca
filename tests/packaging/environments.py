"""Virtual environments with the built wheel and nothing from this checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import copy_parts

UV = str(Path(sys.executable).with_name("uv"))
BESIDE_THE_WHEEL = ("examples", "tasks", "celeryconfig.py")
"""The parts of a checkout that the examples need."""

USES = {
    "": "from redis_queue import RedisQueue; queue = RedisQueue('q', URL); queue.put(1); print(queue.get().body)",
    # Without a row the command prints no table.
    "cli": "import subprocess; from redis_queue import RedisQueue; RedisQueue('q', URL).put(1); "
    "subprocess.run(['redis-queue', 'queues', '--url', URL], check=True)",
    "schedules": "from redis_queue.celery.schedules.rules import read_rules; print(read_rules('30 2 * * *'))",
    "metrics": "from redis_queue.operate.metrics import Collector; "
    "from redis_queue.operate.inspector import Inspector; print(len(list(Collector(Inspector(URL)).collect())))",
}
"""Code that uses an extra, for the extras without a test or an example of their own."""

EMBEDDED = """
import shutil, sys
from redis_queue import RedisQueue
from redis_queue.testing import OwnServer

# For Python 3.10, the extra puts one beside `python`.
found = [shutil.which(name) or sys.prefix for name in ("redis-server", "valkey-server")]
assert all(path.startswith(sys.prefix) for path in found), found
with OwnServer() as server:
    queue = RedisQueue("orders", server.url)
    queue.put({"order": 42})
    print(queue.get().body)
"""


@dataclass(frozen=True)
class Environment:
    folder: Path

    @property
    def scripts(self) -> Path:
        return self.folder / "bin"

    def variables(self, *, machine: bool = True, **more: str) -> dict[str, str]:
        """Return the variables for a user; without *machine* the PATH has only the programs of this environment."""
        paths = [str(self.scripts), os.environ["PATH"]] if machine else [str(self.scripts)]
        # PYTHONDONTWRITEBYTECODE, among others, would let each process compile all its imports.
        unwanted = ("CELERY", "COV_", "DJANGO", "PYTEST", "PYTHON", "REDIS_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        return {**kept, "PATH": os.pathsep.join(paths), **more}

    def run(
        self, *arguments: str, cwd: Path, machine: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.scripts / "python"), *arguments],
            cwd=cwd,
            env=self.variables(machine=machine, **variables),
            capture_output=True,
            text=True,
            timeout=50,
        )


class Environments:
    """One environment per set of extras, created by the first process that needs it."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._wheel = wheel

    def get(self, extras: str = "") -> Environment:
        """Return the environment with the wheel and its *extras* (``"cli,web"``)."""

        def install(folder: Path) -> None:
            subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
            self.add(Environment(folder), extras)

        return Environment(once(self._folder / "-".join(["venv", *extras.split(",")]), install))

    def add(self, environment: Environment, extras: str, *packages: str) -> None:
        """Install the wheel with *extras* and *packages* into an environment that no other test uses."""
        wheel = f"{self._wheel}[{extras}]" if extras else str(self._wheel)
        python = str(environment.scripts / "python")
        subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wheel, *packages], check=True, timeout=200)


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Let the first process of the test run create *folder* while others wait; return *folder*."""
    done = folder.with_name(f"{folder.name}.done")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            done.touch()
    return folder


def build(folder: Path, source: Path, *kinds: str) -> None:
    """Build *source*, a checkout or a source distribution, into *folder*: ``--wheel``, ``--sdist``."""
    command: Sequence[str] = [UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, *kinds, "--out-dir", str(folder), str(source)], check=True, timeout=100)


def copy_examples(folder: Path) -> Path:
    """Copy the examples, without the sources of the package, into *folder*; return *folder*."""
    return copy_parts(BESIDE_THE_WHEEL, folder)
