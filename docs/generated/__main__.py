"""``python -m docs.generated``: update generated parts of pages; with ``--check``, only list outdated pages."""

from __future__ import annotations

import sys

from docs.generated import FOLDER, stale


def main() -> int:
    """Return 1 if a page is outdated and was not written."""
    check = "--check" in sys.argv[1:]
    found = stale()
    for path, text in found.items():
        sys.stdout.write(f"{path.relative_to(FOLDER.parent)} {'is outdated: run make reference' if check else ''}\n")
        if not check:
            path.write_text(text, "utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
