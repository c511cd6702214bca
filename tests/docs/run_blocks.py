"""Run the Python of pages: ``python -m tests.docs.run_blocks URL PAGE...``; print a traceback for each failure.

Each page runs in a forked child, after the slow imports.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import redis

from tests.docs.blocks import Block, blocks

URL = "redis://localhost:6379/0"
SECONDS = 20


def runnable(page: Path) -> list[Block]:
    """Return the Python blocks of *page* that need neither other packages nor a reader: without a mark."""
    return [block for block in blocks(page) if block.language == "python" and block.mark not in ("not run", "with")]


def run(page: Path, url: str) -> None:
    """Run the blocks of *page* in order, in one namespace; a block with a file name is also written to that file."""
    os.environ["REDIS_URL"] = url
    names: dict[str, object] = {"__name__": page.stem.replace("-", "_")}
    for block in runnable(page):
        # With any number of a database: there may be a server at this port.
        text = block.text.replace(URL.removesuffix("0"), url.removesuffix("0"))
        if block.file:
            Path(block.file).write_text(text)
        exec(compile("\n" * block.line + text, str(page), "exec"), names)  # noqa: S102 - the code on the page


def child(page: Path, url: str) -> int:
    """Run *page* in a child of this process and return its exit code."""
    directory = tempfile.mkdtemp()
    with redis.Redis.from_url(url) as client:
        client.flushall()
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        shutil.rmtree(directory)
        return status
    code = 1
    try:
        import signal

        signal.alarm(SECONDS)
        os.chdir(directory)
        sys.path.insert(0, directory)
        run(page, url)
        code = 0
    except BaseException:  # noqa: BLE001 - any exception means that the page is wrong
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(url: str, names: list[str]) -> int:
    """Run all pages; return the number of failed ones."""
    return sum(bool(child(Path(name), url)) for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
