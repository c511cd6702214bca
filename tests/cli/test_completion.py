"""Shell completion for bash, zsh and fish, called like their own functions do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

COMMAND = Path(sys.executable).parent / "redis-queue"


def complete(shell: str, words: str, *, kind: str = "complete") -> str:
    """Return the answer of `redis-queue` to the completion of *words*, whose last word is incomplete."""
    parts = words.split(" ")
    current = parts[-1] if shell == "fish" else str(len(parts) - 1)
    asked = {"_REDIS_QUEUE_COMPLETE": f"{shell}_{kind}", "COMP_WORDS": words, "COMP_CWORD": current}
    environment = {**os.environ, **asked, "PYTHONPATH": str(ROOT), "REDIS_QUEUE_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_commands_are_completed(shell: str) -> None:
    assert "scheduled" in complete(shell, "redis-queue sch").replace(",", " ").split()


def test_options_are_completed_without_loading_the_app() -> None:
    assert complete("bash", "redis-queue -A no.such.app scheduled cancel --ids").startswith("plain,--ids-file")


def test_the_script_for_a_shell_is_printed() -> None:
    assert "_REDIS_QUEUE_COMPLETE=fish_complete" in complete("fish", "", kind="source")
