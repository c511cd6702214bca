"""Checks of a Redis server and of the queues in it: findings with advice, and repairs."""

from redis_queue.doctor.examination import examine, repair
from redis_queue.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine", "repair"]
