"""kombu beyond its public interfaces: the client of a channel, timeouts, keys of its lists, internals."""
