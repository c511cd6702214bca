"""State machines that drive the queues on a real Redis against plain-Python models."""
