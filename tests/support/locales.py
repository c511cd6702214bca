"""A locale that compares text as people do, for a server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

NAME = "en_US.UTF-8"


def environment_with_locale(directory: Path) -> Mapping[str, str]:
    """Return what makes a process sort as in English, with what this host has; elsewhere it sorts by bytes.

    A host may have the locale, or only its sources, from which it is made in *directory*; or neither.
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
