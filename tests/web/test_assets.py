"""Static files: libraries are those of the table, and addresses change with the content."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

from redis_queue.web.assets import FOLDER, HTMX, MAX_AGE, addresses
from tests.support.web.browser import Browser

VENDOR = FOLDER / "vendor"
ROW = re.compile(r"^\| (\S+) \| (\S+) \| (\d\S*) \| (\S+) \| ([0-9a-f]{64}) \|$", re.MULTILINE)


def table() -> dict[str, str]:
    """Return the digest of each file in the table of libraries."""
    return {file: digest for file, _, _, _, digest in ROW.findall((VENDOR / "README.md").read_text())}


def test_libraries_are_those_of_the_table() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["README.md"]
    assert found == table()


def test_each_library_has_its_licence() -> None:
    names = {name.split(".")[0].split("-")[0] for name in table()}
    assert {name for name in names if not (VENDOR / f"{name}.LICENSE").is_file()} == set()


def test_libraries_need_no_other_host() -> None:
    for name in table():
        assert "sourceMappingURL" not in (VENDOR / name).read_text()


def test_htmx_may_not_evaluate_text_or_add_styles() -> None:
    settings = json.loads(HTMX)
    assert (settings["allowEval"], settings["includeIndicatorStyles"], settings["allowScriptTags"]) == (False,) * 3
    assert settings["selfRequestsOnly"] is True


def test_pages_have_the_settings_of_htmx(reader: Browser) -> None:
    (content,) = (found["content"] for tag, found in reader.get().tags if found.get("name") == "htmx-config")
    assert content == HTMX


def test_files_are_kept_by_browsers(reader: Browser) -> None:
    found = [attributes.get("src") or attributes.get("href", "") for _, attributes in reader.get().tags]
    static = [address for address in found if address.startswith("/static/")]
    assert {urlsplit(address).path for address in static} > {"/static/style.css", "/static/vendor/htmx.min.js"}
    for address in static:
        answer = reader.raw(address)
        assert (answer.status_code, answer.cache_control.max_age) == (200, MAX_AGE), address


def test_a_changed_file_has_another_address(tmp_path: Path, reader: Browser) -> None:
    file = tmp_path / "style.css"
    found = set()
    for content in ("a", "b", "a"):
        file.write_text(content)
        with reader.client.application.test_request_context():
            found.add(addresses(tmp_path)("style.css"))
    assert len(found) == 2
    assert all(re.fullmatch(r"/static/style\.css\?v=[0-9a-f]{12}", address) for address in found)
