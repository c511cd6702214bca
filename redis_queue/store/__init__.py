"""Everything that speaks Redis: connections, keys, script calls, records."""
