"""State machines that compare the queues on a real Redis with models in plain Python."""
