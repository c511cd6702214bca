"""docker-compose.yml and examples/compose: no service runs as root, and all versions are pinned."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.compose import services
from tests.support.paths import ROOT

FILES = [ROOT / "docker-compose.yml", *sorted((ROOT / "examples" / "compose").glob("*.yml"))]
SERVICES = {f"{file.stem} {name}": spec for file in FILES for name, spec in services(file).items()}

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)


@each_service
def test_nothing_runs_as_root(service: dict[str, Any]) -> None:
    assert str(service.get("user", "root")).partition(":")[0] not in ("root", "0")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@each_service
def test_images_have_a_full_version(service: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+(-[a-z-]+)?", service["image"])


def test_packages_have_the_versions_of_the_tests() -> None:
    locked = (ROOT / "requirements" / "dev.txt").read_text()
    packages = [word for word in SERVICES["docker-compose install"]["command"] if "==" in word or ">=" in word]
    assert len(packages) == 3
    for package in packages:
        assert re.search(rf"(?m)^{re.escape(package)} ", locked), package
