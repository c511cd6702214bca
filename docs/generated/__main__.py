"""``python -m docs.generated``: update generated parts of pages; with ``--check``, only list outdated pages.

With ``--measure [NAME...]``, the benchmarks run first: all, or those with these names. ``--api`` writes the snapshot of
the public names instead.
"""

from __future__ import annotations

import sys

from docs.generated import FOLDER, api, figures, stale


def main() -> int:
    """Return 1 if a page is outdated and was not written, or a benchmark failed."""
    if "--api" in sys.argv[1:]:
        api.SNAPSHOT.write_text(api.snapshot(), "utf-8")
        return 0
    check = "--check" in sys.argv[1:]
    failed = figures.measure(sys.argv[2:]) if "--measure" in sys.argv[1:2] else 0
    found = stale()
    for path, text in found.items():
        sys.stdout.write(f"{path.relative_to(FOLDER.parent)} {'is outdated: run make reference' if check else ''}\n")
        if not check:
            path.write_text(text, "utf-8")
    return int(bool(failed or (check and found)))


if __name__ == "__main__":
    sys.exit(main())
