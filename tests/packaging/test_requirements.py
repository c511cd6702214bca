"""The lock files pin all requirements of pyproject.toml with hashes, for every supported Python and system."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

import pytest
from packaging.dependency_groups import resolve_dependency_groups
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PYPROJECT["dependency-groups"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
# The requirements of each file that scripts/lock writes.
LOCKS: dict[str, list[str]] = {
    "bootstrap": [*resolve_dependency_groups(GROUPS, "bootstrap")],
    **{
        name: [*PYPROJECT["project"]["dependencies"], *extras, *resolve_dependency_groups(GROUPS, "build", *groups)]
        for name, extras, groups in (
            ("dev", EXTRAS["cli"], ("dev", "servers")),
            ("oldest", EXTRAS["cli"], ("oldest",)),
            ("bench", EXTRAS["cli"], ("bench",)),
            ("demo", EXTRAS["cli"] + EXTRAS["embedded"], ()),
        )
    },
}
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SYSTEMS = (
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
)
MARKERS = [
    {"python_version": python, "python_full_version": f"{python}.9", **system}
    for python, system in product(PYTHONS, SYSTEMS)
]
PIN = re.compile(
    r"(?P<pin>[a-z0-9-]+==[a-z0-9.]+( ; [^\\\n]+?)?)"
    r"(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})*)\n"
    r"    # via (?P<via>.+)\n"
)


class Pin(NamedTuple):
    requirement: Requirement
    hashes: int
    asked_for: bool


def pins(name: str) -> list[Pin]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return [
        Pin(Requirement(found["pin"]), found["hashes"].count("--hash"), "(pyproject.toml" in found["via"])
        for found in PIN.finditer(text)
    ]


def versions(name: str, markers: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the pinned versions of each package that is installed if `markers` apply."""
    found: dict[str, list[str]] = {}
    for requirement in chosen((pin.requirement for pin in pins(name)), markers):
        found.setdefault(requirement.name, []).append(str(requirement.specifier).removeprefix("=="))
    return found


def chosen(requirements: Iterable[Requirement], markers: Mapping[str, str]) -> list[Requirement]:
    return [each for each in requirements if each.marker is None or each.marker.evaluate(dict(markers))]


def test_each_environment_has_a_lock_file_and_there_are_no_others() -> None:
    assert {path.stem for path in (ROOT / "requirements").iterdir()} == {*LOCKS}


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_one_version_and_a_hash(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert [line for line in PIN.sub("", text).splitlines() if not line.startswith("#")] == []
    assert [pin.requirement.name for pin in pins(name) if not pin.hashes] == []


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_of_pyproject_is_pinned_on_every_system(name: str) -> None:
    for markers in MARKERS:
        pinned = versions(name, markers)
        assert {package: found for package, found in pinned.items() if len(found) > 1} == {}, markers
        for asked in chosen(map(Requirement, LOCKS[name]), markers):
            (version,) = pinned.get(canonicalize_name(asked.name), ["nothing"])
            assert version != "nothing", f"{asked} on {markers}: run make lock"
            assert asked.specifier.contains(version, prereleases=True), f"{asked} is {version}: run make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_removed_requirements_of_pyproject_are_not_pinned(name: str) -> None:
    asked = {canonicalize_name(Requirement(line).name) for line in LOCKS[name]}
    assert {pin.requirement.name for pin in pins(name) if pin.asked_for} == asked, "run make lock"


def test_the_build_backend_is_pinned() -> None:
    assert {*PYPROJECT["build-system"]["requires"]} <= {*GROUPS["build"]}


def test_the_demo_has_the_versions_of_development() -> None:
    for markers in MARKERS:
        assert versions("demo", markers).items() <= versions("dev", markers).items()
