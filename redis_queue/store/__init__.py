"""Access to Redis: connections, keys, script calls, records."""
