"""Messages of flows for a worker whose broker is elsewhere: a second connection, which takes them from the store."""
