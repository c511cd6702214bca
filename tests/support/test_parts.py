"""Missing packages of the system: their tests are skipped or fail, and the report says how to install them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.binaries import server_binary
from tests.support.parts import INSTALL_VARIABLE, PARTS, MissingPartError, install, report, require
from tests.support.paths import ROOT
from tests.support.rerun import FILE_VARIABLE, MAX_RERUNS
from tests.support.services import MariaServer, PostgresServer, mariadb_connection

TLS_TEST = ("tests/support/test_servers.py", "-k", "speaks_tls")


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "redis-server").symlink_to(server_binary("path"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return str(tmp_path)


def test_a_missing_part_is_named_with_the_command_that_installs_it(bare_path: str) -> None:
    with pytest.raises(MissingPartError, match=r"openssl is missing .*: (sudo )?apt-get install openssl$"):
        require("openssl")


def test_the_report_is_one_line_with_one_command(bare_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    report(["redis-server", "openssl", "chromium"])

    (line,) = capsys.readouterr().out.splitlines()
    assert "openssl (certificates for TLS), chromium (the dashboard in a browser)" in line
    assert line.endswith("apt-get install openssl chromium")


def test_nothing_is_said_where_nothing_is_missing(bare_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    install(["redis-server"])
    report(["redis-server"])

    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("bare_path")
def test_nothing_is_installed_where_it_is_turned_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(INSTALL_VARIABLE, "0")

    install(list(PARTS))

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 failed")])
def test_a_test_without_its_part_is_skipped_or_fails_in_ci(bare_path: str, ci: str, outcome: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *TLS_TEST],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert outcome in done.stdout.splitlines()[-1], done.stdout
    assert "openssl is missing (certificates for TLS)" in done.stdout


def test_a_private_postgres_answers_and_leaves_nothing() -> None:
    with PostgresServer() as server:
        directory = server.directory
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not directory.exists()


def test_a_private_mariadb_answers_and_leaves_nothing() -> None:
    with MariaServer() as server:
        directory = server.directory
        mariadb_connection(server.url).close()
    assert not directory.exists()


# The command that runs failed tests once more, alone.

FLAKY = """
from pathlib import Path

def test_sound(): ...

def test_flaky():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("only once")
"""
BROKEN = "def test_broken(): raise AssertionError('always')"
HOPELESS = f"""
import pytest

@pytest.mark.parametrize("number", range({MAX_RERUNS + 1}))
def test_broken(number): raise AssertionError("always")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty project of tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.rerun", "-c", str(folder / "pytest.ini"), *options, str(folder)],
        cwd=ROOT,
        # Only what the command itself needs: other plugins take seconds to load.
        env={
            **os.environ,
            FILE_VARIABLE: str(folder / "flaky.txt"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p xdist",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_flaky_test_is_named_and_does_not_fail_the_run(folder: Path) -> None:
    (folder / "test_one.py").write_text(FLAKY)

    done = run(folder, "-n", "2", "--dist", "worksteal")

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "FLAKY: test_one.py::test_flaky"
    assert (folder / "flaky.txt").read_text() == "FLAKY: test_one.py::test_flaky\n"


def test_a_test_that_fails_twice_fails_the_run(folder: Path) -> None:
    (folder / "test_one.py").write_text(FLAKY)
    (folder / "test_two.py").write_text(BROKEN)

    done = run(folder)

    assert done.returncode == 1
    assert (folder / "flaky.txt").read_text() == "FLAKY: test_one.py::test_flaky\n"


@pytest.mark.parametrize("content", [HOPELESS, "def broken("], ids=["many", "not collected"])
def test_what_is_not_chance_is_not_run_again(folder: Path, content: str) -> None:
    (folder / "test_one.py").write_text(content)

    done = run(folder)

    assert done.returncode != 0
    assert "once more" not in done.stdout
    assert not (folder / "flaky.txt").exists()
