"""Fault injection: kill processes of every role between any two Redis commands, and check their histories.

Only in the repository, not in the wheel: ``python -m chaos``.
"""
