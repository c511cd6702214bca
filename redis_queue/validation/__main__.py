"""One consumer process of a validation. Reads its order from stdin."""

import json
import signal
import sys

from redis_queue.validation.worker import Order, work

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(Order(**json.loads(sys.stdin.readline())))
