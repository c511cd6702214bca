"""The scripts that a page may load: files of the dashboard, each with a digest in its address."""

from __future__ import annotations

import re

from redis_queue.web.assets import FOLDER

ADDRESS = re.compile(r"/static/([\w./-]+\.js)\?v=[0-9a-f]{12}")


def is_own_script(attributes: dict[str, str]) -> bool:
    """Tell whether a script element loads a file of the dashboard, and has no other attributes."""
    address = ADDRESS.fullmatch(attributes.get("src", ""))
    rest = {name: value for name, value in attributes.items() if name != "src"}
    return address is not None and (FOLDER / address[1]).is_file() and rest in ({}, {"defer": ""})
