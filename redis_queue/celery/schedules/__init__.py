"""Periodic tasks of an app: their rules, their due times by the wall clock, and what sends them."""
