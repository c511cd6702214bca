"""What workers report: their state, running tasks, history and failures; kept in the store, in bounded memory."""
