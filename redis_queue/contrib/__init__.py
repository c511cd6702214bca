"""What redis_queue is inside of web frameworks."""
