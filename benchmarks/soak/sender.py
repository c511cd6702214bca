"""``python -m benchmarks.soak.sender FOLDER``: make calls when the file ``order`` says how many, and how fast."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from kombu.exceptions import OperationalError

from benchmarks.soak.app import URL, calls, make_app


def main(folder: str) -> None:
    """Make calls until killed."""
    made, order = calls(make_app(os.environ[URL])), Path(folder, "order")
    while True:
        if not order.exists():
            time.sleep(0.01)
            continue
        tasks, rate = json.loads(order.read_text())
        order.unlink()
        started = time.monotonic()
        for number in range(tasks):
            call = next(made)
            while True:
                try:
                    call()
                except OperationalError:
                    # Its connection was cut; the call may have been made, and then its task runs twice.
                    time.sleep(0.01)
                else:
                    break
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
        Path(folder, "done").touch()


if __name__ == "__main__":
    main(sys.argv[1])
