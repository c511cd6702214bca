"""The files in the wheel and in the source distribution."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "redis_queue"


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def sources() -> set[str]:
    """Return the files of the package that belong into the wheel."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".pyo"))
    return {str(path.relative_to(ROOT)) for path in files if not path.is_relative_to(PACKAGE / "chaos")}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    found = {name for name in names(wheel) if ".dist-info/" not in name}
    assert found == sources()
    for name in ("py.typed", "lua/queue/get.lua", "web/templates/base.html", "web/static/style.css"):
        assert f"redis_queue/{name}" in found
    assert {name.split("/")[0] for name in found} == {"redis_queue"}


def test_the_wheel_declares_its_entry_points(wheel: Path) -> None:
    (file,) = (name for name in names(wheel) if name.endswith("entry_points.txt"))
    found = configparser.ConfigParser()
    found.read_string(zipfile.ZipFile(wheel).read(file).decode())
    assert {section: dict(found[section]) for section in found.sections()} == {
        "console_scripts": {"redis-queue": "redis_queue.cli:main"},
        "celery.commands": {"redis-queue": "redis_queue.cli.celery:group"},
        "pytest11": {"redis_queue": "redis_queue.testing.plugin"},
    }


def test_the_source_distribution_gives_the_same_wheel(distributions: Path, wheel: Path, tmp_path: Path) -> None:
    (source,) = distributions.glob("*.tar.gz")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=55)
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel.name
    assert names(again) == names(wheel)
