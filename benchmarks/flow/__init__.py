"""What flow control costs: rate and commands of tasks in flows against others, and how exact it is."""
