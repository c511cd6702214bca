"""A worker's messages in flight: fetched, held under leases, settled."""
