"""The scripts: one operation, one file. Data only; :mod:`redis_queue.store.scripts` reads it."""
