"""A server locale with language-specific string collation."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

NAME = "en_US.UTF-8"


def environment_with_locale(directory: Path) -> Mapping[str, str]:
    """Return the environment of a process that sorts as in English if this host allows it, else by bytes.

    A host may have the locale, or only its sources, from which it is compiled into *directory*, or neither.
    """
    listed = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=True).stdout.split()
    if any(name.lower().replace("-", "") == "en_us.utf8" for name in listed):
        return {"LC_ALL": NAME}
    if localedef := shutil.which("localedef"):
        made = directory / NAME
        subprocess.run([localedef, "-i", "en_US", "-f", "UTF-8", str(made)], capture_output=True, check=False)
        if made.is_dir():
            return {"LC_ALL": NAME, "LOCPATH": str(directory)}
    return {}
