"""Store publishes with a delay as entries."""
