"""Prove on a user's own Redis that no message is lost, by losing messages on purpose."""

from redis_queue.validation.run import Plan, Report, validate

__all__ = ["Plan", "Report", "validate"]
