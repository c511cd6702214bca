"""A day of a moderate app in minutes, then lost connections: what grows in its processes and in Redis."""
