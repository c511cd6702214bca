"""The command line: ``python -m redis_queue``."""

from redis_queue.cli import main

if __name__ == "__main__":
    main()
