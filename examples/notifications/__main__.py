"""``python -m examples.notifications``: the application on Flask's development server."""

from __future__ import annotations

import argparse

import examples.notifications

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m examples.notifications",
        description=examples.notifications.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=5000, help="port to listen on (default: 5000)")
    examples.notifications.create_app().run(port=parser.parse_args().port)
