"""DelayQueue: a durable timed set."""
