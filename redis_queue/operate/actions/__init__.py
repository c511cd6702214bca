"""What people do to entries, messages, failures, queues, flows and workers: one description of each action."""
