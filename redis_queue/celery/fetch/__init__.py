"""Messages in flight in a worker: fetched, held under leases, settled."""
