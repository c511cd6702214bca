"""Schedules: rules by which a task is sent again and again."""
