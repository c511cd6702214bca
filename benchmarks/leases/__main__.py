"""Messages that are lost or delivered twice when consumers are killed: stock kombu, leases, atomic fetch.

Prints progress, a table, and as its last line one JSON object with the figures.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.leases import losing
from benchmarks.modes import MODES
from benchmarks.server import private_redis


def main() -> None:
    """Kill consumers of each mode and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="consumers to kill in each mode (default 100)")
    kills = parser.parse_args().kills
    lost: dict[str, int] = {}
    doubled: dict[str, int] = {}
    with private_redis() as url:
        for mode in MODES:
            lost[mode], doubled[mode] = losing.lost_and_doubled(url, mode, kills)
            print(f"{mode}: {kills} kills: {lost[mode]} lost, {doubled[mode]} doubled", flush=True)
    print(f"\n{'':14}{'lost':>6}{'doubled':>9}")
    for mode in MODES:
        print(f"{mode:14}{lost[mode]:>6}{doubled[mode]:>9}")
    figures = {
        "lost_per_100_kills": {mode: round(100 * lost[mode] / kills, 1) for mode in MODES},
        "doubled_per_100_kills": {mode: round(100 * doubled[mode] / kills, 1) for mode in MODES},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
