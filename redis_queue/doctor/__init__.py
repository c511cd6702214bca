"""Doctor: looks at a Redis and at what redis_queue keeps in it, says what is wrong and what to do."""

from redis_queue.doctor.examine import examine
from redis_queue.doctor.finding import Finding, Severity
from redis_queue.doctor.repair import repair

__all__ = ["Finding", "Severity", "examine", "repair"]
