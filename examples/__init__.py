"""Programs that use redis_queue as a whole; each is run by the tests."""
