"""Doctor: looks at a Redis and at what redis_queue keeps in it, says what is wrong and what to do."""

from redis_queue.doctor.examination import examine
from redis_queue.doctor.finding import Finding, Severity
from redis_queue.doctor.repairs import repair

__all__ = ["Finding", "Severity", "examine", "repair"]
