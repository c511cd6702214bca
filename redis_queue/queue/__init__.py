"""RedisQueue: a reliable work queue for data, and its consumer."""
