"""Workers of several task queues under the same kills: what is lost, doubled, stuck, and when it comes again."""
