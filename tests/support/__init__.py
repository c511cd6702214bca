"""Real servers, faults and waiting for tests."""
