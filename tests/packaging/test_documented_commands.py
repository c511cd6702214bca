"""The blocks of examples/README.md, run with the built wheel and only the extras that each example names."""

from __future__ import annotations

import re
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.docs.reader import Reader
from tests.packaging.environments import Environments, copy_examples
from tests.packaging.sections import README, SECTIONS
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.servers import RedisServer

pytestmark = pytest.mark.timeout(400)

PORTS = ("5000", "8000")


class User:
    """A user who installed the extras of an example and follows its section of the README."""

    def __init__(self, example: str, environments: Environments, folder: Path, url: str | None) -> None:
        self.extras, self._blocks = SECTIONS[example]
        environment = environments.get(self.extras)
        # Without a URL there is no server on the PATH either: it comes from the extra.
        variables = environment.variables(machine=bool(url), **({"REDIS_URL": url} if url else {}))
        self.ports = {port: str(free_port()) for port in PORTS}
        self._reader = Reader(copy_examples(folder), variables, self.ports)
        self._example = example

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.end()

    def help(self) -> str:
        """Return the output of the example's `--help`."""
        return self._reader.run(["python", "-m", f"examples.{self._example}", "--help"])

    def follow(self) -> None:
        """Run the blocks of the section."""
        for block in self._blocks:
            self._reader.do(block)


def test_every_example_has_a_section() -> None:
    examples = ROOT / "examples"
    found = {path.stem for path in examples.iterdir() if not path.name.startswith("__")} - {"README", "compose"}
    assert set(SECTIONS) == found
    table = re.findall(r"^\| \[(\w+)\]\(#(\w+)\)", README.read_text(), re.MULTILINE)
    assert table == [(name, name) for name in SECTIONS]


@pytest.mark.parametrize("example", ["limited", "pipeline", "notifications", "orders"])
def test_the_section_of_an_example_works(
    example: str, environments: Environments, server: RedisServer, tmp_path: Path
) -> None:
    # The orders example starts its own Redis.
    with User(example, environments, tmp_path, None if example == "orders" else server.url) as user:
        assert_help_names_requirements(user)
        user.follow()


def test_the_dashboard_of_the_shop_requires_a_login(
    environments: Environments, server: RedisServer, tmp_path: Path
) -> None:
    with User("shop", environments, tmp_path, server.url) as user:
        assert_help_names_requirements(user)
        user.follow()
        site = f"http://127.0.0.1:{user.ports['8000']}"
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(f"{site}/queues/") as page:
            assert page.url == f"{site}/admin/login/?next=/queues/"
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
        assert token is not None
        form = {"username": "ann", "password": "secret", "csrfmiddlewaretoken": token[1]}
        with browser.open(page.url, urllib.parse.urlencode(form).encode()) as page:
            assert page.url == f"{site}/queues/"
            assert "/queues/scheduled" in page.read().decode()


def assert_help_names_requirements(user: User) -> None:
    told = " ".join(user.help().split())
    assert f"pip install '.[{user.extras}]'" in told if user.extras else "pip install ." in told
    assert "REDIS_URL" in told
