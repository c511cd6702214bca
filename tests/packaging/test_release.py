"""What is published: one build, which the index accepts and which works on each Python with each extra.

A Python that is not on this machine is a missing part: its tests are skipped and named; with CI=true they fail.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from redis_queue import aio, web
from redis_queue.celery import tracing
from redis_queue.contrib import django, flask
from redis_queue.testing import plugin
from tests.packaging.environments import EMBEDDED, USES, UV, Environment, Environments, build
from tests.support.parts import MissingPartError
from tests.support.paths import ROOT, VENDOR, VENDORED
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MODULES = {"aio": aio, "django": django, "flask": flask, "testing": plugin, "tracing": tracing, "web": web}
"""The module of each extra without code in `USES`."""
EXTRAS = sorted({*USES, *MODULES, "embedded"})
SBOM = ROOT / "build" / "sbom.cdx.json"


def run(*command: str, cwd: Path = ROOT, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str) -> str:
    """Return the path of a program of this environment."""
    return str(Path(sys.executable).with_name(name))


@functools.cache
def interpreter(python: str) -> str:
    """Return the path of an installed Python; raises MissingPartError."""
    # The shims of pyenv, if they are on PATH, start only the versions that are chosen there.
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{python}.*/bin"))
    variables = {"PATH": os.pathsep.join([*map(str, pyenv), os.environ["PATH"]]), "UV_PYTHON_DOWNLOADS": "never"}
    found = subprocess.run(
        [UV, "python", "find", "--no-project", python], env={**os.environ, **variables}, capture_output=True, text=True
    )
    if found.returncode:
        msg = f"Python {python} is missing: uv python install {python}"
        raise MissingPartError(msg)
    return found.stdout.strip()


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("celery_redis_queue-*")}


def test_two_builds_have_one_hash(distributions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder, another umask, and only the files of the commit."""
    run("git", "archive", "--output", str(tmp_path / "commit.tar"), "HEAD")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct").strip())
    before = os.umask(0o077)
    try:
        (tmp_path / "again").mkdir()
        run("tar", "-xf", str(tmp_path / "commit.tar"), "--no-same-permissions", "-C", str(tmp_path / "again"))
        build(tmp_path / "dist", tmp_path / "again")
    finally:
        os.umask(before)
    assert len(digests(distributions)) == 2
    assert digests(tmp_path / "dist") == digests(distributions), "commit, then build"


def test_the_index_accepts_both_files(distributions: Path, wheel: Path) -> None:
    files = [str(path) for path in distributions.glob("celery_redis_queue-*")]
    assert run(tool("twine"), "--no-color", "check", "--strict", *files).count("PASSED") == 2
    assert run(tool("check-wheel-contents"), str(wheel)).endswith(": OK\n")


def test_a_tagged_commit_has_the_version_of_its_tag(wheel: Path) -> None:
    tags = run("git", "tag", "--points-at", "HEAD", "--list", "v*").split()
    assert wheel.name.split("-")[1] == version("celery-redis-queue")
    assert tags in ([], [f"v{version('celery-redis-queue')}"])


@pytest.fixture
def fresh(python: str, tmp_path: Path) -> Environment:
    run(UV, "venv", "--quiet", "--python", interpreter(python), str(tmp_path / "venv"))
    return Environment(tmp_path / "venv")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_wheel_works(
    extra: str, resolution: str, fresh: Environment, environments: Environments, redis_server: RedisServer
) -> None:
    # uv counts as direct only what is asked for itself, not what a wheel asks for.
    # The lowest version is the first that has a wheel for this Python.
    asked = ["--only-binary=:all:", "-r", str(ROOT / "pyproject.toml"), *(["--extra", extra] if extra else [])]
    environments.add(fresh, extra, "--resolution", resolution, *asked)
    use(fresh, extra, redis_server)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_source_distribution_works(fresh: Environment, distributions: Path, redis_server: RedisServer) -> None:
    (source,) = distributions.glob("*.tar.gz")
    Environments(fresh.folder, source).add(fresh, "cli")
    use(fresh, "cli", redis_server)


def use(environment: Environment, extra: str, server: RedisServer) -> None:
    """Run the command line, the code of *extra*, and a message and a task from end to end; remove the environment."""
    url = f"redis+socket://{server.socket}"
    code = USES.get(extra) or EMBEDDED
    if extra in MODULES:
        code = f"import {MODULES[extra].__name__}; print('imported')"
    calls: list[tuple[str, ...]] = [
        ("-m", "redis_queue", "--help"),
        ("-W", "error::ImportWarning", "-c", f"URL = {url!r}; {code}" if extra in USES else code),
        ("-m", "smoke"),
    ]
    with server.client() as client:
        client.flushall()
    path = str(Path(__file__).parent)
    try:
        for number, arguments in enumerate(calls):
            machine = extra != "embedded" or number != 1
            done = environment.run(
                *arguments,
                cwd=environment.folder.parent,
                machine=machine,
                PYTHONPATH=path,
                REDIS_URL=url,
                C_FORCE_ROOT="1",
            )
            assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
            assert done.stdout or arguments == ("-m", "smoke"), arguments
    finally:
        shutil.rmtree(environment.folder)


@pytest.mark.parametrize("python", ["3.12"])
def test_the_bill_of_materials(fresh: Environment, environments: Environments) -> None:
    """CycloneDX: the newest versions of all that the extras install, and the libraries of the dashboard."""
    environments.add(fresh, ",".join(extra for extra in EXTRAS if extra))
    SBOM.parent.mkdir(exist_ok=True)
    command = [
        tool("cyclonedx-py"),
        "environment",
        "--pyproject",
        str(ROOT / "pyproject.toml"),
        "--output-reproducible",
    ]
    text = run(*command, "--mc-type", "library", "--validate", str(fresh.scripts / "python"))
    bill: dict[str, Any] = json.loads(text)
    libraries = {(name, number) for _, name, number, *_ in VENDORED.findall((VENDOR / "README.md").read_text())}
    bill["components"] += [
        {
            "type": "library",
            "name": name,
            "version": number,
            "purl": f"pkg:npm/{name}@{number}",
            "bom-ref": f"pkg:npm/{name}@{number}",
            "licenses": [{"license": {"id": "MIT" if name == "uplot" else "0BSD"}}],
        }
        for name, number in sorted(libraries)
    ]
    SBOM.write_text(json.dumps(bill, indent=1) + "\n")
    names = {each["name"] for each in bill["components"]}
    assert {"celery", "redis", "Django", "Flask", "htmx.org", "idiomorph", "uplot"} <= names
    assert bill["metadata"]["component"]["name"] == "celery-redis-queue"
