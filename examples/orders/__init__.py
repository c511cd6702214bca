"""A shop's orders through both queues, with a consumer killed and a worker restarted: ``python -m examples.orders``."""
