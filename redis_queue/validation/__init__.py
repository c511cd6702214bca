"""Prove on a user's own Redis that no message is lost, by losing messages on purpose."""

from redis_queue.validation.report import Report
from redis_queue.validation.run import Plan, validate

__all__ = ["Plan", "Report", "validate"]
