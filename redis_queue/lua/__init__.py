"""The scripts: one operation, one file. Data only; :mod:`redis_queue.scripts` reads it."""
