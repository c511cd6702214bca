"""Workers of several task queues under the same kills: lost, duplicated and stuck tasks, and the time to redelivery."""
