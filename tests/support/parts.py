"""Programs and libraries of the system that some tests need: find them, install them, report missing ones.

``python -m tests.support.parts install NAME …`` installs the missing ones with apt-get, as root or with a sudo that
needs no password; ``REDIS_QUEUE_TEST_INSTALL=0`` disables this. ``python -m tests.support.parts report NAME …``
prints one sentence about the missing ones, if there are any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

INSTALL_VARIABLE: Final = "REDIS_QUEUE_TEST_INSTALL"

LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
LIBFAKETIME: Final = "faketime/libfaketime.so.1"

RABBITMQ_PATH: Final = f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', '')}:/usr/local/sbin:/opt/homebrew/sbin"
"""The wrapper that Debian puts on PATH changes the user and needs root."""


class MissingPartError(LookupError):
    """A required system package is missing; the message says how to install it.

    Tests that need it are skipped; with ``CI=true`` they fail.
    """


class Part(NamedTuple):
    """A package of the distribution: its use in the tests, and the file that they need from it."""

    use: str
    find: Callable[[], str | None]


def find_libfaketime() -> str | None:
    found = (path for place in LIBRARIES for depth in ("", "*/") for path in Path(place).glob(depth + LIBFAKETIME))
    return next((str(path) for path in found), None)


def find_postgres() -> str | None:
    """Return the path of the newest server program."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))
    return str(packaged[-1]) if packaged else shutil.which("postgres")


SERVER_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"

PARTS: Final = {
    "openssl": Part("certificates for TLS", lambda: shutil.which("openssl")),
    "libfaketime": Part("servers whose clock is wrong", find_libfaketime),
    "rabbitmq-server": Part("RabbitMQ as the broker", lambda: shutil.which("rabbitmq-server", path=RABBITMQ_PATH)),
    "postgresql": Part("the outbox in PostgreSQL", find_postgres),
    "mariadb-server": Part("the outbox in MariaDB", lambda: shutil.which("mariadb-install-db", path=SERVER_PATH)),
    "curl": Part("the requests of the tutorial", lambda: shutil.which("curl")),
    "redis-server": Part("the distribution's Redis, and connections with TLS", lambda: shutil.which("redis-server")),
    "prometheus": Part("the tests of the alerts, by promtool", lambda: shutil.which("promtool")),
    "chromium": Part("the dashboard in a browser", lambda: shutil.which("chromium")),
}


def require(name: str) -> str:
    """Return the path of the program or library of package *name*; raises MissingPartError."""
    part = PARTS[name]
    found = part.find()
    if found is None:
        raise MissingPartError(f"{name} is missing ({part.use}): {' '.join(_command([name]))}")
    return found


def missing(names: Sequence[str]) -> list[str]:
    return [name for name in names if PARTS[name].find() is None]


def install(names: Sequence[str]) -> None:
    """Install the missing packages if this user is allowed to; errors are ignored."""
    lacking = missing(names)
    if not lacking or os.environ.get(INSTALL_VARIABLE) == "0" or not _may_install():
        return
    _say(f"Installing for the tests: {_described(lacking)}. {INSTALL_VARIABLE}=0 leaves them out.")
    _run("update", "-qq")
    for name in lacking:  # one by one: some distributions lack some of them
        _run("install", "-qq", "-y", name)


def report(names: Sequence[str]) -> None:
    """Print which tests were skipped because of missing packages, and one command that installs all of them."""
    if lacking := missing(names):
        _say(f"Skipped, for want of a package: {_described(lacking)}. To run them: {' '.join(_command(lacking))}")


def _described(names: Sequence[str]) -> str:
    return ", ".join(f"{name} ({PARTS[name].use})" for name in names)


def _sudo() -> list[str]:
    return [] if os.geteuid() == 0 else ["sudo", "-n"]


def _command(names: Sequence[str]) -> list[str]:
    return [*_sudo()[:1], "apt-get", "install", *names]


def _may_install() -> bool:
    if shutil.which("apt-get") is None:
        return False
    if not _sudo():
        return True
    asks_nothing = shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0
    return bool(asks_nothing)


def _run(*arguments: str) -> None:
    command = [*_sudo(), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        _say(f"apt-get {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"install": install, "report": report}[sys.argv[1]](sys.argv[2:])
