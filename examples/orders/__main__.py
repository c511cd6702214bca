"""The command: ``python -m examples.orders``.

Exit codes: 0 nothing was lost; 1 something was, or the run failed; 2 it could not begin; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TypeVar

try:
    import redis
    from rich.console import Console

    from examples.orders.children import Children
    from examples.orders.errors import FailedError, StoppedError, UnusableError
    from examples.orders.run import Plan, run
    from examples.orders.screen import screen
    from examples.orders.signals import Signals
    from redis_queue import RedisQueueError
except ModuleNotFoundError as error:
    print(f"{error.name} is missing: pip install '.[cli,embedded]', or make demo", file=sys.stderr)
    sys.exit(2)
except KeyboardInterrupt:
    sys.exit(130)

FAILED = 1

Number = TypeVar("Number", int, float)


def main() -> int:
    """Run the demo that the command line asks for and return its exit code."""
    plan = _plan()
    with Signals() as signals, Children() as children:
        console = Console()
        try:
            with screen(console) as shown:
                result = run(plan, children, signals, shown)
        except (StoppedError, UnusableError) as error:
            print(error, file=sys.stderr)
            return error.code
        except (FailedError, RedisQueueError, redis.RedisError) as error:
            print(f"{error}\nthe logs are in {children.keep_logs()}", file=sys.stderr)
            return FAILED
        result.show(console)
        if result.lost:
            print(f"the logs are in {children.keep_logs()}", file=sys.stderr)
            return FAILED
        return 0


def _plan() -> Plan:
    parser = argparse.ArgumentParser(
        prog="python -m examples.orders",
        description="Feed orders into both queues, kill a consumer, restart the worker, and count what was lost. "
        "Uses the Redis in REDIS_URL, else starts one. Needs: pip install '.[cli,embedded]'.",
    )
    parser.add_argument("--orders", type=_positive(int), default=400, help="how many orders of the file")
    parser.add_argument("--speed", type=_positive(float), default=1.0, help="divides all delays")
    parser.add_argument("--prefix", help="what all keys begin with; must not be in use (default: a random one)")
    options = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    return Plan(url=os.environ.get("REDIS_URL", ""), **options)


def _positive(kind: Callable[[str], Number]) -> Callable[[str], Number]:
    def convert(text: str) -> Number:
        if not (value := kind(text)) > 0:
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        return value

    # argparse names this in its messages.
    convert.__name__ = "number"
    return convert


if __name__ == "__main__":
    sys.exit(main())
