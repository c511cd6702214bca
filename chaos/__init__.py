"""Fault injection: processes of every role are killed between any two Redis commands; a checker reads what they did.

In the repository only, not in the wheel: ``python -m chaos``.
"""
