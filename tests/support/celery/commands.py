"""Run `celery -A tests.support.celery.migrating redis-queue …` as a user does."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.paths import ROOT


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "tests.support.celery.migrating", "redis-queue", *arguments]


def start_command(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
