"""What stands at the top of the repository, and what the Makefile passes to its commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.paths import ROOT

TOP = """
    .ci .github .gitignore .pre-commit-config.yaml .readthedocs.yaml CHANGELOG.md CONTRIBUTING.md LICENSE Makefile
    README.md SECURITY.md benchmarks celeryconfig.py chaos docker-compose.yml docs examples monitoring proof
    pyproject.toml redis_queue requirements scripts tasks tests
"""

KEPT = {"PATH", "HOME", "CI", "https_proxy", "SSL_CERT_FILE", "PIP_INDEX_URL", "UV_INDEX_SHOP_PASSWORD"}
LEFT_OUT = {"PYTHONUNBUFFERED", "PIP_NO_INPUT", "UV_OFFLINE", "LANG", "LC_ALL", "TERM", "COLUMNS", "REDIS_QUEUE_URL"}


def run(*command: str, env: dict[str, str] | None = None) -> list[str]:
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True, timeout=50)
    return done.stdout.splitlines()


def test_the_top_of_the_repository_has_no_leftovers(tmp_path: Path) -> None:
    # An empty repository: the files may be an unpacked archive.
    git = ("git", f"--git-dir={tmp_path}/git", f"--work-tree={ROOT}")
    run(*git, "init", "--quiet")
    files = run(*git, "ls-files", "--others", "--exclude-standard")

    assert {file.partition("/")[0] for file in files} == set(TOP.split())


def test_commands_of_make_get_no_other_variables_of_the_machine() -> None:
    machine = {name: os.environ.get(name, "1") for name in KEPT | LEFT_OUT}

    passed = run("make", "--silent", "--eval=variables: ; @env", "variables", env=machine)

    assert {line.partition("=")[0] for line in passed} & set(machine) == KEPT
